"""The log's world with producers whose batches are stored once: they send, send again, leave numbers out, begin epochs,
and go on with ones that have ended."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

from shardd.log import layout
from shardd.log.segment_reader import segment_starts
from shardd.protocol.producers import Produced, ProducedKind
from tests.sim.findings import Trace
from tests.sim.log_library import Batch, By, Producing
from tests.sim.log_model import HEADER_BYTES
from tests.sim.log_world import LEVELS, LogWorld
from tests.sim.planted import Planted
from tests.support.once_model import WINDOW, OnceModel, Part, Run

PRODUCERS = 3
BATCH_MAX = 5
_NUMBER = struct.Struct("<Q")  # begins the payload of a record
KEPT = WINDOW + 8  # batches that are sent again, now and then older than the window


class _Producer:
    """As an application holds it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = 0
        self.begun = 0
        self.sequence = 0
        self.batches: dict[int, list[bytes]] = {}  # of this epoch, by number

    @property
    def run(self) -> Run:
        return Run(self.number, self.epoch)


class OnceWorld(LogWorld):
    """As LogWorld."""

    def __init__(self, seed: int, root: Path, planted: Planted, trace: Trace) -> None:
        self.once = OnceModel(trace.report)
        self.chance = random.Random(f"producers {seed}")
        self.producers = [_Producer(number) for number in range(1, PRODUCERS + 1)]
        self.record = 0  # of the metadata
        self._starts: list[int] = []
        super().__init__(seed, root, planted, trace)
        for producer in self.producers:
            self._begin(producer)

    def operations(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            *super().operations(),
            (60, self._send_next),
            (12, self._send_again),
            (3, self._leave_out),
            (4, self._send_stale),
            (3, self._begin_epoch),
        ]

    # ---- producers ----

    def _begin(self, producer: _Producer) -> None:
        self.record += 1
        producer.epoch, producer.begun, producer.sequence = producer.epoch + 1, self.record, 0
        producer.batches = {}
        self.producing = self.producing._replace(known_last=self.record)

    def _begin_epoch(self) -> None:
        producer = self.chance.choice(self.producers)
        self._begin(producer)
        self._note("epoch", f"{producer.number}: {producer.epoch}")

    def _batch(self, producer: _Producer, sequence: int) -> list[bytes]:
        """The same whenever it is asked for in an epoch."""
        if sequence not in producer.batches:
            count, first = self.chance.randint(1, BATCH_MAX), self.next_id
            producer.batches[sequence] = self._records(count)
            for position in range(count):
                self.once.sending(first + position, Part(producer.run, sequence, position, count))
            producer.batches.pop(sequence - KEPT, None)
        return producer.batches[sequence]

    def _ask(self, producer: _Producer, epoch: int, sequence: int) -> Produced | None:
        """None: nobody was told anything about the batch."""
        batch = Batch(self._batch(producer, sequence))
        by = By(producer.number, epoch, sequence, producer.begun)
        self._tick(self.rng.randrange(1000))
        answer = self.partition.send_once(batch, by, self.now_us)
        self._note("once", f"{producer.number} {epoch} {sequence}: {batch.status} {answer}")
        if batch.status or (answer is not None and answer.kind is ProducedKind.STORED):
            self.model.appended(batch.stored(), batch.status, batch.first_offset, alive=not self.disk.dead)
        if self.disk.dead:
            return None
        self.model.saved(self.partition.ends())
        return answer

    def _send(self, producer: _Producer, sequence: int) -> Produced | None:
        answer = self._ask(producer, producer.epoch, sequence)
        if answer is None:
            return None
        if LEVELS[self.level] == "memory":
            if answer.kind is not ProducedKind.REFUSED_AT_MEMORY:
                self.trace.report(f"at level memory a batch of a producer gets {answer}")
            return answer
        count = len(producer.batches[sequence])
        self.once.answered(producer.run, producer.begun, sequence, count, answer)
        if answer.kind is ProducedKind.UNKNOWN_PRODUCER:
            self._note("unknown")
            self._begin(producer)
        return answer

    def _send_next(self) -> None:
        """What got no answer before is the same batch again."""
        producer = self.chance.choice(self.producers)
        answer = self._send(producer, producer.sequence)
        if answer is None:
            return
        if answer.kind is ProducedKind.GAP and answer.first in producer.batches:  # a power cut has taken what was told
            producer.sequence = answer.first
        elif answer.kind is ProducedKind.GAP:
            self._begin(producer)
        elif answer.kind in (ProducedKind.STORED, ProducedKind.DUPLICATE):
            producer.sequence += 1

    def _send_again(self) -> None:
        producer = self.chance.choice(self.producers)
        told = [sequence for sequence in producer.batches if sequence < producer.sequence]
        if not told:
            return
        sequence = self.chance.choice(told)
        if self.planted.log == "sequence accepted twice":
            self._append_unjudged(producer, sequence)
        else:
            self._send(producer, sequence)

    def _leave_out(self) -> None:
        producer = self.chance.choice(self.producers)
        if self.planted.log == "hole accepted":
            self._append_unjudged(producer, producer.sequence + 1)
            return
        producer.batches.setdefault(producer.sequence, self._batch(producer, producer.sequence))
        self._send(producer, producer.sequence + self.chance.randint(1, 3))

    def _send_stale(self) -> None:
        """Of the epoch before, where the partition has something of this one."""
        producer = self.chance.choice(self.producers)
        if not self.once.next_of(producer.run) or producer.epoch < 2 or LEVELS[self.level] == "memory":
            return
        stale = Run(producer.number, producer.epoch - 1)
        if self.planted.log == "stale epoch accepted":
            number = self.next_id
            self.once.sending(number, Part(stale, self.once.next_of(stale), 0, 1))
            self._append_records(self._records(1))
            return
        answer = self._ask(producer, stale.epoch, self.chance.randrange(3))
        self.once.answered_stale(stale, producer.epoch, producer.begun, answer)

    def _append_unjudged(self, producer: _Producer, sequence: int) -> None:
        """A planted fault: it is stored, whatever is there."""
        self._append_records(self._batch(producer, sequence))

    def _append_records(self, records: list[bytes]) -> None:
        batch = Batch(records)
        self.partition.append([batch], self.now_us)
        self.model.appended(batch.stored(), batch.status, batch.first_offset, alive=not self.disk.dead)
        if not self.disk.dead:
            self.model.saved(self.partition.ends())

    # ---- ends and starts ----

    def _power(self) -> None:
        self.once.power_cut(self.record)
        if self.planted.log != "producers believed after a power cut":
            boot = self.producing.boot + 1
            self.producing = Producing(boot, self.record, self.record)
        super()._power()

    def _purge(self, *, unproven: bool = False, by_operator: bool = False) -> None:
        if self.running is None:
            self.once.purged(self.record)
        super()._purge(unproven=unproven, by_operator=by_operator)

    def _recover(self) -> None:
        starts = segment_starts(self.directory) if self.directory.exists() else []
        if self.planted.log == "producers lost at a roll" and len(starts) > 1 and starts != self._starts:
            (self.directory / layout.PRODUCERS).unlink(missing_ok=True)
        self._starts = starts
        super()._recover()

    def recovered(self, records: list[bytes], first: int) -> None:
        numbers = [_NUMBER.unpack_from(record, HEADER_BYTES)[0] for record in records]
        self.once.recovered(numbers, first, power_was_cut=self.model.power_was_cut)
