"""`make crash-producers`: kill -9 at each step of what an idempotent producer needs: an append, a checkpoint, a roll, a
new epoch, a recovery.

    python -m tests.crash.producer_kills [--kills N] [--seed N] [--lanes N] [--engine io_uring|epoll]

Lanes and kills are those of clean_kills.py. One thread sends for two producers and for somebody without one, in turns.
What got no answer is sent again until it gets one. Now and then a batch of the window is sent again that has had its
answer, or a producer begins a new epoch. At every moment each batch is in the log whole and once, at the place that was
told, in order (once_observer.py); nobody is ever *unknown*, because no kill may make the server forget.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, Produced, ProducedKind, ProducerEpoch, send_once_head
from tests.crash import faults
from tests.crash.clean_kills import SERVED_S, STEP_WAIT_S, STREAM, TOPIC, Kind, Lane, Observed, Step, main
from tests.crash.fault_control import TORN
from tests.crash.kill_figures import ENGINES
from tests.support import wire
from tests.support.once_observer import Batch, OnceObserver, payloads

PRODUCERS: Final = 2
PLAIN: Final = 99  # no producer
WINDOW: Final = 32
COUNT_MAX: Final = 12  # messages of a batch
AGAIN: Final = 0.1  # of the sends
NEW_EPOCH: Final = 0.02
ALL: Final = 1_000_000

APPEND: Final = (
    Step("a place of a batch, or an end, is written", "write", "/producers$", 12),
    Step("half of a place of a batch, or of an end, is written", "write", "/producers$", 12, TORN),
    Step("records are written behind their place", "write", ".log$", 8),
    Step("half of the records is written behind their place", "write", ".log$", 8, TORN),
    Step("an index is written", "write", ".index$", 4),
)
CHECKPOINT: Final = (  # on io_uring these are entries of the ring
    Step("a log is synced", "sync", ".log$"),
    Step("the places are synced", "sync", "/producers$"),
    Step("an index is synced", "sync", ".index$"),
)
ROLL: Final = (
    Step("the next log is made", "open", ".log$"),
    Step("the next manifest is written", "write", ".manifest.tmp$"),
    Step("half of the next manifest is written", "write", ".manifest.tmp$", how=TORN),
    Step("the next manifest gets its name", "rename", ".manifest.tmp$"),
    Step("names are synced", "sync", "/partitions/0$"),
)
EPOCH: Final = (
    Step("a new epoch is written", "write", "/state.messages$", 2),
    Step("half of a new epoch is written", "write", "/state.messages$", 2, TORN),
)
RECOVERY: Final = (
    Step("recovery reads the places", "read", "/producers$", 2),
    Step("recovery opens the places", "open", "/producers$", 1),
    Step("recovery writes the places anew", "rename", "/producers.tmp$", 1),
    Step("recovery reads records", "read", ".log$", 2),
    Step("recovery opens the log", "open", ".log$", 2),
    Step("recovery cuts off what is torn", "truncate", ".log$", 1),
    Step("recovery keeps what is torn", "write", ".torn$", 1),
)
STEPS: Final = APPEND + RECOVERY + CHECKPOINT + ROLL + EPOCH
KINDS: Final = (
    Kind("written", STEPS),
    Kind("durable", STEPS),
    Kind("count", STEPS, kept=300),
)


@dataclass
class Producer:
    """As an application holds it. `unanswered`: the batch that may be stored or not."""

    name: int
    who: ProducerEpoch | None = None
    epochs: int = 0
    sequence: int = 0
    sent: dict[int, int] = field(default_factory=dict)  # of this epoch: messages by sequence number
    unanswered: bool = False
    beginning: bool = False  # an epoch, without an answer

    @property
    def batch(self) -> Batch:
        return Batch(self.name, self.epochs, self.sequence)


class ProducerLane(Lane):
    """Judged by a `OnceObserver`."""

    def __init__(self, root: Path, kind: Kind, seed: int, engines: Sequence[str] = ENGINES) -> None:
        super().__init__(root, kind, seed, engines)
        self.once = OnceObserver(kind.kept)
        self.producers = [Producer(name) for name in range(PRODUCERS)]
        self.plain = 0

    def observed(self) -> Observed:
        return self.once

    def chosen(self) -> dict[str, str]:
        return super().chosen() | {"ack": "durable" if self.kind.name == "durable" else ""}

    # ---- sends ----

    def send(self, connection: wire.Wire, batches: int = 1) -> None:
        for producer in self.producers:
            if producer.beginning:
                self._begin_epoch(connection, producer)
            elif producer.unanswered:
                self._send_next(connection, producer)
        for _ in range(batches):
            producer = self.random.choice(self.producers)
            chance = self.random.random()
            if producer.who is None or chance < NEW_EPOCH:
                self._begin_epoch(connection, producer)
            if chance > 1 - AGAIN and producer.sent:
                self._send_again(connection, producer)
            self._send_next(connection, producer)
            if chance < 2 * AGAIN:
                self._send_plain(connection)

    def _begin_epoch(self, connection: wire.Wire, producer: Producer) -> None:
        """What got no answer in the one before never gets one."""
        number = producer.who.producer if producer.who is not None else 0
        before = producer.who, producer.sequence
        producer.beginning = True
        answer = connection.request(ExtensionCode.INIT_PRODUCER, InitProducer(number, 0, False).encode())
        producer.who = ProducerEpoch.read(Reader(answer))
        producer.epochs, producer.sequence, producer.sent = producer.epochs + 1, 0, {}
        producer.unanswered = producer.beginning = False
        self.figures.counts["epochs"] += 1
        if before[0] is not None:
            stale = self._ask(connection, before[0], before[1], [b"never"])
            if stale != Produced(ProducedKind.STALE_EPOCH, producer.who.epoch, 0):
                self.once.findings.append(f"answer: a batch of the epoch before gets {stale}")

    def _send_next(self, connection: wire.Wire, producer: Producer) -> None:
        batch = producer.batch
        if not producer.unanswered:
            producer.sent[batch.sequence] = self.random.randint(1, COUNT_MAX)
        producer.unanswered = True
        self._send_batch(connection, producer, batch)
        producer.unanswered, producer.sequence = False, producer.sequence + 1

    def _send_again(self, connection: wire.Wire, producer: Producer) -> None:
        """Of what the server has to know."""
        sequence = self.random.choice(list(producer.sent)[-WINDOW + 1 :])
        self._send_batch(connection, producer, producer.batch._replace(sequence=sequence))
        self.figures.counts["duplicates"] += 1

    def _send_batch(self, connection: wire.Wire, producer: Producer, batch: Batch) -> None:
        assert producer.who is not None
        count = producer.sent[batch.sequence]
        self.once.sending(batch)
        answer = self._ask(connection, producer.who, batch.sequence, payloads(batch, count))
        self.once.answered(batch, count, answer)

    def _ask(self, connection: wire.Wire, who: ProducerEpoch, sequence: int, contents: Sequence[bytes]) -> Produced:
        send = wire.batch(STREAM, TOPIC, wire.to_partition(0), [wire.message(each) for each in contents])
        head = send_once_head(who.producer, who.epoch, sequence)
        return Produced.read(Reader(connection.request(ExtensionCode.SEND_ONCE, head + send)))

    def _send_plain(self, connection: wire.Wire) -> None:
        batch, count = Batch(PLAIN, -1, self.plain), self.random.randint(1, COUNT_MAX)
        self.plain += 1
        self.once.sending(batch)
        contents = [wire.message(each) for each in payloads(batch, count)]
        connection.send(STREAM, TOPIC, wire.to_partition(0), contents)
        self.once.stored(batch, count)

    def look(self, connection: wire.Wire) -> None:
        self.once.judge(connection.poll(STREAM, TOPIC, 0, strategy=wire.POLL_FIRST, count=ALL).messages)

    # ---- kills ----

    def work(self, connection: wire.Wire) -> None:
        deadline = time.monotonic() + STEP_WAIT_S
        while time.monotonic() < deadline:
            self.send(connection, 4)
            time.sleep(self.kind.pause_s)
        raise TimeoutError("the step did not come")

    def kill_at(self, step: Step) -> None:
        if step in RECOVERY:
            self.kill_recovery_at(step)
        else:
            super().kill_at(step)

    def kill_recovery_at(self, step: Step) -> None:
        """A worker dies in the middle of a write, and the next one at this step of its start."""
        with wire.connect(self.server.address) as connection:
            self.control.arm("write", ".log$", self.random.randint(1, 8), 5, how=TORN)
            try:
                self.work(connection)
            except (OSError, wire.StatusError):
                self.control.disarm()
                self.arm(step)
        self.worker_kills += 1
        faults.wait_until_served(self.server.address, STREAM, TOPIC, [0], SERVED_S)
        self.go_on_after(step, self.control.disarm()[1])

    # ---- what must hold in the end ----

    def check(self) -> None:
        """Everything that is open gets its answer, and a restart changes nothing."""
        for restart in (False, True):
            if restart:
                self.server.stop()
                self.start()
            with wire.connect(self.server.address) as connection:
                self.send(connection)
                for producer in self.producers:
                    if producer.sent:
                        self._send_again(connection, producer)
                self.look(connection)


if __name__ == "__main__":
    sys.exit(main("crash-producers", KINDS, ProducerLane))
