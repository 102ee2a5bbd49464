"""Producers and readers over the raw wire that keep going through kills, and write everything into a `History`.

Each producer has its own thread, connection and partition (or key), one request in flight or a pipeline. After an error
it connects again and sends the same batches again: only then may a message be there twice.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from shardd.engine import owner
from shardd.protocol.namespaces import namespace
from tests.support import wire
from tests.support.checker import Destination, History, Identity, make_payload
from tests.support.earlier_wire import EarlierWire
from tests.support.wire09 import RELEASE, Wire09

RETRY_PAUSE_S = 0.02
REFUSALS = frozenset({11001})  # statuses of a SEND that was not carried out
Answer = TypeVar("Answer")


def owner_of(stream: int, topic: int, partition: int, shards: int) -> int:
    """The shard that owns a partition (docs/protocol/records.md#placement)."""
    return owner(namespace(stream, topic, partition), shards)


@dataclass(slots=True)
class Target:
    """Where the load goes: `batch_count` messages of `payload_size_bytes` per request.

    `address` may be changed while a load runs (a server that was started again has another port). While `paused` is
    set nothing is asked. `token`: how clients log in; without one by a password, which waits for a thread that gives
    way to all others: on a busy machine longer than `answer_timeout_s`. `release`: of other clients than
    classic ones, or "".
    """

    address: str
    stream: int | str
    topic: int | str
    batch_count: int = 10
    payload_size_bytes: int = 100
    answer_timeout_s: float = 5.0
    token: str = ""
    release: str = ""
    paused: threading.Event = field(default_factory=threading.Event)


def logged_in(target: Target, timeout_s: float) -> wire.Wire:
    """A connection of the first user; tried once."""
    if target.release == RELEASE:
        connection: wire.Wire = Wire09(target.address, timeout_s=timeout_s)
    elif target.release:
        connection = EarlierWire(target.address, target.release, timeout_s=timeout_s)
    else:
        connection = wire.Wire(target.address, timeout_s=timeout_s)
    try:
        if target.token:
            connection.login_with_token(target.token)
        else:
            connection.login()
    except BaseException:
        connection.close()
        raise
    return connection


class LoadThread(threading.Thread):
    """A thread that runs `step` until it is stopped and keeps a connection for it."""

    def __init__(self, target: Target, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.target = target
        self.stopping = threading.Event()
        self.errors = 0
        self.last_error = ""
        self.timeouts: Counter[str] = Counter()  # by what it waited for
        self.longest_login_s = 0.0
        self.failure: BaseException | None = None
        self._wire: wire.Wire | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                if self.target.paused.is_set():
                    time.sleep(RETRY_PAUSE_S)
                    continue
                try:
                    self.step(self._connected())
                except (OSError, wire.StatusError) as problem:
                    what = "login" if self._wire is None else "answer"
                    self.errors += 1
                    self.timeouts[what] += isinstance(problem, TimeoutError)
                    self.last_error = f"{time.strftime('%H:%M:%S')} {what}: {type(problem).__name__}: {problem}"
                    self._disconnect()
                    time.sleep(RETRY_PAUSE_S)
        except BaseException as problem:  # kept for the test, which raises it in `finish`
            self.failure = problem
        finally:
            self._disconnect()

    def step(self, connection: wire.Wire) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no step")

    def finish(self, timeout_s: float = 30.0) -> None:
        """Stops and joins; raises what the thread died of."""
        self.stopping.set()
        self.join(timeout_s)
        if self.is_alive():
            raise TimeoutError(f"{self.name} does not stop")
        if self.failure is not None:
            raise self.failure

    def _connected(self) -> wire.Wire:
        if self._wire is None:
            began = time.monotonic()
            try:
                self._wire = logged_in(self.target, self.target.answer_timeout_s)
            finally:
                self.longest_login_s = max(self.longest_login_s, time.monotonic() - began)
        return self._wire

    def _disconnect(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def partitioning_of(place: Destination) -> bytes:
    """As SEND_MESSAGES carries it."""
    if place is None:
        return wire.balanced()
    return wire.to_partition(place) if isinstance(place, int) else wire.to_key(place)


class Producer(LoadThread):
    """Sends batches to one partition (`place` a number), with one key (`place` bytes) or balanced (None)."""

    def __init__(
        self, target: Target, history: History, producer: int, place: Destination, *, pause_s: float = 0.0
    ) -> None:
        super().__init__(target, f"producer-{producer}")
        self.history = history
        self.producer = producer
        self.place = place
        self.pause_s = pause_s
        self.acknowledged_batches = 0
        self.longest_gap_s = 0.0
        self._last_answer_s = time.monotonic()
        self._sequence = 0
        self._batch: list[tuple[Identity, bytes]] = []

    def next_count(self) -> int:
        """Messages of the next batch."""
        return self.target.batch_count

    def _new_batch(self) -> list[tuple[Identity, bytes]]:
        count = self.next_count()
        sequences = range(self._sequence, self._sequence + count)
        self._sequence += count
        size = self.target.payload_size_bytes
        return [((self.producer, n), make_payload(self.producer, n, size)) for n in sequences]

    def step(self, connection: wire.Wire) -> None:
        if not self._batch:
            self._batch = self._new_batch()
        for identity, payload in self._batch:
            self.history.attempt(identity, payload, self.place)
        messages = [wire.message(payload, origin_timestamp_us=identity[1]) for identity, payload in self._batch]
        connection.send(self.target.stream, self.target.topic, partitioning_of(self.place), messages)
        self.history.acknowledge(identity for identity, _payload in self._batch)
        now = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now - self._last_answer_s)
        self._last_answer_s = now
        self.acknowledged_batches += 1
        self._batch = []
        if self.pause_s:
            time.sleep(self.pause_s)


class PipelinedProducer(Producer):
    """Keeps up to `depth` batches on their way, to each of the partitions in turn. After an error all that were not
    answered are sent again, in order; one that was refused is not: those behind it may be there."""

    def __init__(
        self,
        target: Target,
        history: History,
        producer: int,
        partitions: Sequence[int],
        depth: int,
        *,
        pause_s: float = 0.0,
    ) -> None:
        super().__init__(target, history, producer, None, pause_s=pause_s)
        self.depth = depth
        self.refused_batches = 0
        self._next_partition = itertools.cycle(partitions)
        self._under_way: deque[tuple[int, list[tuple[Identity, bytes]]]] = deque()
        self._on: wire.Wire | None = None  # the connection that they went out on

    def step(self, connection: wire.Wire) -> None:
        again = [] if self._on is connection else list(self._under_way)
        free = range(self.depth - len(self._under_way))
        new = [(next(self._next_partition), self._new_batch()) for _ in free]
        self._under_way.extend(new)
        self._on = connection
        connection.send_bytes(b"".join(self._frame(partition, batch) for partition, batch in (*again, *new)))
        for _ in range(max(1, self.depth // 2)):
            self._take_answer(connection)
        if self.pause_s:
            time.sleep(self.pause_s)

    def _frame(self, partition: int, batch: list[tuple[Identity, bytes]]) -> bytes:
        for identity, payload in batch:
            self.history.attempt(identity, payload, partition)
        messages = [wire.message(payload, origin_timestamp_us=identity[1]) for identity, payload in batch]
        where = wire.to_partition(partition)
        return wire.frame(wire.SEND_MESSAGES, wire.batch(self.target.stream, self.target.topic, where, messages))

    def _take_answer(self, connection: wire.Wire) -> None:
        status, _payload = connection.reply()
        if status != 0 and status not in REFUSALS:
            raise wire.StatusError(wire.SEND_MESSAGES, status)  # its effect is unknown
        identities = [identity for identity, _payload in self._under_way.popleft()[1]]
        if status == 0:
            self.history.acknowledge(identities)
            self.acknowledged_batches += 1
        else:
            self.history.refuse(identities)
            self.refused_batches += 1


class Reader(LoadThread):
    """Follows one partition by offset and reports what it sees, so that a reused offset is noticed later."""

    def __init__(self, target: Target, history: History, partition: int) -> None:
        super().__init__(target, f"reader-{partition}")
        self.history = history
        self.partition = partition
        self.next_offset = 0

    def step(self, connection: wire.Wire) -> None:
        polled = connection.poll(
            self.target.stream, self.target.topic, self.partition, value=self.next_offset, count=500
        )
        if not polled.messages:
            time.sleep(0.02)
            return
        self.history.observe(self.partition, polled.messages)
        self.next_offset = polled.messages[-1].offset + 1


class Patient:
    """Asks until it is answered, on one connection as long as that holds; a worker may be starting. A login costs the
    server as much as thousands of requests. A context manager."""

    def __init__(self, target: Target, *, timeout_s: float, pause_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._wire: wire.Wire | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def ask(self, question: Callable[[wire.Wire], Answer], end_s: float) -> Answer:
        """Raises its last refusal (OSError, StatusError) when `time.monotonic()` has come to `end_s`."""
        while True:
            try:
                return question(self._connected())
            except (OSError, wire.StatusError) as problem:
                if isinstance(problem, OSError):
                    self._close()
                if time.monotonic() > end_s:
                    raise
                time.sleep(self._pause_s)

    def _connected(self) -> wire.Wire:
        if self._wire is None:
            self._wire = logged_in(self._target, self._timeout_s)
        return self._wire

    def _close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def read_partition(patient: Patient, target: Target, partition: int, *, deadline_s: float = 20.0) -> list[wire.Message]:
    """The whole content; tries again while a worker starts, at most `deadline_s`, then raises."""
    end_s = time.monotonic() + deadline_s
    return patient.ask(lambda connection: connection.read_all(target.stream, target.topic, partition), end_s)


def read_partitions(
    target: Target, partitions: Iterable[int], *, deadline_s: float = 20.0
) -> dict[int, list[wire.Message]]:
    """The same of many partitions."""
    with Patient(target, timeout_s=60.0, pause_s=0.05) as patient:
        return {number: read_partition(patient, target, number, deadline_s=deadline_s) for number in partitions}


def wait_until_answered(target: Target, partitions: Iterable[int], *, deadline_s: float = 20.0) -> float:
    """Seconds until a poll of each of these partitions is answered with status 0; TimeoutError."""
    began = time.monotonic()
    with Patient(target, timeout_s=2.0, pause_s=0.01) as patient:
        for partition in partitions:
            try:
                patient.ask(_last_of(target, partition), began + deadline_s)
            except (OSError, wire.StatusError) as problem:
                raise TimeoutError(f"partition {partition} did not answer within {deadline_s} s: {problem}") from None
    return time.monotonic() - began


def _last_of(target: Target, partition: int) -> Callable[[wire.Wire], wire.Polled]:
    return lambda connection: connection.poll(target.stream, target.topic, partition, strategy=wire.POLL_LAST, count=1)
