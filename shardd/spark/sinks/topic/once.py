"""A task whose rows are stored once: its batches have the numbers of an idempotent producer, so a repeated attempt
sends what is known already. Where numbers cannot tell (another run, a new task, a producer that the server has
forgotten), a new epoch ends all other attempts first, then the ids in the log say what is stored, and only the rest is
sent. docs/adr/0089-a-sink-that-stores-rows-once.md"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from shardd.protocol.producers import InitProducer, ProducerEpoch
from shardd.runtime.boot import boot_id
from shardd.spark.sinks.topic.buffers import RowError
from shardd.spark.sinks.topic.journal import Claim, Journal, JournalState, Places, TakenOverError, TaskProducer
from shardd.spark.sinks.topic.options import SinkOptions
from shardd.spark.sinks.topic.rows import Numbers, RowEncoder
from shardd.spark.sinks.topic.sender import FrameDeliveryError, OtherContentError, ProducerEndedError, Sender
from shardd.spark.sinks.topic.server import SinkServer, keep, kept
from shardd.spark.sinks.topic.stored import find

TASKS_MAX: Final = 512  # each has a producer: of the 4,096 that a user may have
EPOCHS_MAX: Final = 5  # that one attempt begins; another one that does the same is as often told to stop
_RENEWALS: Final = 4  # within the time after which the server forgets an idle producer


@dataclass(frozen=True)
class OnceWork:
    """Which task of which batch. `partitions`: of the topic. `single`: its run has no other batch, as `df.write` has
    it."""

    application: str
    run: str
    batch: int
    task: int
    partitions: int
    single: bool


@dataclass
class OnceDone:
    """For the journal. `producer` None: there was no row."""

    rows: int
    producer: TaskProducer | None
    ends: Places


@dataclass
class _Kept:
    """A batch of which not all frames are answered. `frames_end`: how many there are up to its last one."""

    rows: pa.RecordBatch
    position: int
    frames_end: int = 1 << 62


class OnceTask:
    """One attempt. `state`: what the journal says when it begins."""

    def __init__(self, options: SinkOptions, work: OnceWork, encoder: RowEncoder, state: JournalState) -> None:
        if work.task >= TASKS_MAX:
            raise RowError(
                f"the batch has more than {TASKS_MAX} tasks, but with semantics 'idempotent' each needs a producer:"
                " coalesce() the rows before they are written"
            )
        self._options = options
        self._work = work
        self._encoder = encoder
        self._sender = Sender(options)
        self._producer = state.tasks.get(work.task)
        self._follows = state.done == work.batch - 1  # else a record of the journal is lost, with the newest numbers
        self._places: Places = dict(state.ends or {})
        self._begun = False
        self._epochs = 0
        self._frames = 0  # given to the sender, and not forgotten
        self._rows = 0
        self._kept: deque[_Kept] = deque()
        self._dropped = False  # there were batches that are not kept any more

    def write(self, batches: Iterable[pa.RecordBatch]) -> OnceDone:
        """`RowError`, `FrameDeliveryError`, `TakenOverError`, `UnprovableError`."""
        with self._sender:
            for batch in batches:
                if batch.num_rows:
                    self._send(batch)
            self._with_epochs(self._flush)
        numbers = self._encoder.numbers
        done = None
        if self._begun and self._producer is not None and numbers is not None:
            done = replace(self._producer, numbers=numbers.next, partitions=self._work.partitions)
        ends = {
            partition: (place[0], max(place[1], self._sender.ends.get(partition, 0)))
            for partition, place in self._places.items()
        }
        return OnceDone(self._rows, done, ends)

    def _send(self, batch: pa.RecordBatch) -> None:
        if not self._begun:
            self._begin()
            self._sender.use(kept(self._options))
        self._encoder.check_order(batch)
        mine = _Kept(batch, self._rows)
        self._rows += batch.num_rows
        self._kept.append(mine)
        self._with_epochs(lambda: self._send_kept(mine))
        while self._kept and self._kept[0].frames_end <= self._sender.answered:
            self._kept.popleft()
            self._dropped = True

    def _send_kept(self, mine: _Kept) -> None:
        for frame in self._encoder.frames_at(mine.rows, mine.position):
            self._frames += 1
            self._sender.send(frame)
        mine.frames_end = self._frames

    def _flush(self) -> None:
        keep(self._options, self._sender.flush())

    def _with_epochs(self, work: Callable[[], None]) -> None:
        """What the server refuses because the epoch has ended is done in a new one, as far as it is not stored."""
        try:
            work()
            return
        except ProducerEndedError as error:
            fault = error
        while True:
            self._sender.forget()
            self._frames = self._sender.answered
            if self._dropped and "id" in self._kept[0].rows.schema.names:  # which of equal ids is stored?
                if isinstance(fault, OtherContentError):
                    self._next_epoch(str(fault))  # the numbers of this one would lead the next attempt here again
                raise FrameDeliveryError(f"{fault}; the task has to begin again with its first row") from fault
            self._next_epoch(str(fault))
            try:
                for each in self._kept:
                    self._send_kept(each)
                self._flush()
                return
            except ProducerEndedError as error:
                fault = error

    # ---- epochs ----

    def _begin(self) -> None:
        known = self._producer
        self._begun = True
        counts = self._follows and known is not None and known.partitions == self._work.partitions
        if known is not None and counts and known.numbers is not None and self._is_alive(known):
            self._encoder.numbers = Numbers(known.producer, known.epoch, known.numbers)
            return
        self._next_epoch("")

    def _is_alive(self, known: TaskProducer) -> bool:
        if known.boot and known.boot == boot_id() and _since_boot_us() < known.renew_at_us:
            return True
        server = SinkServer(self._options)
        try:
            made = server.init_producer(InitProducer(known.producer, known.epoch, renew=True))
        except LookupError:
            return False
        finally:
            keep(self._options, server.hand_over())
        self._producer = replace(known, renew_at_us=_renew_at_us(made), boot=boot_id())
        return True

    def _next_epoch(self, fault: str) -> None:
        """No other attempt can store anything when this returns, and what they have stored is known."""
        self._epochs += 1
        if self._epochs > EPOCHS_MAX:
            raise FrameDeliveryError(f"{fault}, also after {EPOCHS_MAX} new epochs: is the query running twice?")
        server, work = SinkServer(self._options), self._work
        assert self._options.journal is not None
        journal = Journal(server, self._options.journal, work.application)
        try:
            made, fresh = self._own_epoch(server, journal)
            state = journal.look(work.run)  # behind the epoch: whoever takes over later ends it
            if state.done >= work.batch:
                raise TakenOverError(f"batch {work.batch} of '{work.application}' is stored by another attempt")
            self._encoder.stored = None
            if fresh:
                self._places = dict(state.ends or {})
            else:
                self._encoder.stored, self._places = find(server, self._options, state.ends or {})
            keep(self._options, server.hand_over())
        finally:
            server.close()
        self._producer = TaskProducer(made.producer, made.epoch, _renew_at_us(made), boot=boot_id())
        self._encoder.numbers = Numbers(made.producer, made.epoch, {})

    def _own_epoch(self, server: SinkServer, journal: Journal) -> tuple[ProducerEpoch, bool]:
        """A new one of the producer of this task; whether no other attempt can have sent rows of the batch."""
        work = self._work
        known = journal.look(work.run).tasks.get(work.task)
        if known is not None:
            try:
                made = server.init_producer(InitProducer(known.producer))
            except LookupError:
                pass  # forgotten: it was idle for too long, or is another user's
            else:
                return made, work.single and made.epoch == known.epoch + 1
        made = server.init_producer(InitProducer())
        before = 0 if known is None else known.producer
        agreed = journal.claim(work.run, Claim(work.task, made.producer, before)).tasks[work.task]
        if agreed.producer == made.producer:
            return made, before == 0
        return server.init_producer(InitProducer(agreed.producer)), False


def _renew_at_us(made: ProducerEpoch) -> int:
    return _since_boot_us() + made.expiry_us // _RENEWALS


def _since_boot_us() -> int:
    """All tasks of one machine agree on it, and no change of its clock moves it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
