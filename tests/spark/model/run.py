"""Random interleavings of changes, plans and reads. Whatever happens, the rows of a task are those of the history that
was planned, in the planned range, in order and once; or the read ends with a typed error that has a reason."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from shardd.spark.cold import DamagedRecordError
from shardd.spark.loss import DataLossError
from shardd.spark.planner import Slice
from shardd.spark.reading import SlicePartition
from shardd.spark.source import ShardReader
from shardd.spark.stream import ShardStreamReader
from tests.spark.direct import Stream, batch
from tests.spark.model.world import PARTITIONS_MAX, STREAM, TOPICS, BrokenPromiseError, History, World

MODES = ("live", "cold", "auto", "archive", "all")
READS_MAX = 8


@dataclass
class Expected:
    """What one slice may bring."""

    slice: Slice
    history: History
    changes: int  # of the history, when it was planned
    next_offset: int

    @property
    def reason(self) -> bool:
        """Whether something of it may be gone: since it was planned, or between the archive and the server."""
        return self.history.changes > self.changes or self.slice.start < self.history.floor


@dataclass
class Reading:
    """One task on its way."""

    tasks: Iterator[pa.RecordBatch]
    parts: list[Expected]
    lenient: bool
    read: int = 0

    def take(self, partition: int, topic: str, offset: int, value: bytes) -> None:
        """One row. `BrokenPromiseError` when it is not the next one of its history."""
        while self.parts and not self._of_this(self.parts[0], topic, partition, offset):
            self.finish(self.parts.pop(0))
        if not self.parts:
            raise BrokenPromiseError(f"{topic} {partition}: offset {offset} was not planned, or came twice")
        each = self.parts[0]
        if offset > each.next_offset:
            self._missing(each, offset)
        if value != each.history.payloads[offset]:
            raise BrokenPromiseError(
                f"{topic} {partition}: offset {offset} is {value!r}, planned was {each.history.payloads[offset]!r}"
            )
        each.next_offset = offset + 1
        self.read += 1

    @staticmethod
    def _of_this(each: Expected, topic: str, partition: int, offset: int) -> bool:
        same = (each.slice.name.topic, each.slice.partition) == (topic, partition)
        return same and each.next_offset <= offset < each.slice.end

    def finish(self, each: Expected) -> None:
        if each.next_offset < each.slice.end:
            self._missing(each, each.slice.end)

    def _missing(self, each: Expected, upto: int) -> None:
        """The offsets from the next one up to `upto` did not come."""
        what = f"{each.slice}: offsets {each.next_offset} to {upto} are missing"
        if not self.lenient:
            raise BrokenPromiseError(f"{what} and nothing is said")
        if not each.history.over and upto > each.history.floor:
            raise BrokenPromiseError(f"{what}, but kept from {each.history.floor} on")


@dataclass
class Query:
    """A stream, and what it has read of each life of an incarnation: [first, next). `put_backs`: of the world, when it
    had its last batch."""

    stream: Stream
    options: dict[str, str]
    lenient: bool
    seen: dict[tuple[str, int, int, int], tuple[int, int]] = field(default_factory=dict)
    put_backs: int = 0


class Model:
    """One run. `counts` tells what happened."""

    def __init__(self, world: World, seed: int, *, restores: bool = True, restarts: bool = True) -> None:
        self.world = world
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._readings: list[Reading] = []
        self._queries: list[Query] = []
        rare = [(self._restart, 1), (self._kill, 1)] if restarts else []
        rare += [(self._backup, 2), (self._restore, 1)] if restores else []
        rare += [(self.roll_back, 1), (self.replace, 1)] if restores else []
        self._actions: list[tuple[Callable[[], None], int]] = [
            (self._send, 40),
            (self._plan, 30),
            (self._read, 80),
            (self._stream, 30),
            (self._purge, 4),
            (self._recreate, 3),
            (self._delete, 20),
            (self._add, 3),
            (self._archive, 8),
            (self._vacuum, 2),
            *rare,
        ]

    def run(self, steps: int) -> None:
        """`BrokenPromiseError` at the first broken promise."""
        actions, weights = zip(*self._actions, strict=True)
        for _ in range(steps):
            self._random.choices(actions, weights)[0]()
        while self._readings:
            self._finish(self._readings.pop())

    # ---- changes ----

    def _topic(self) -> str:
        return self._random.choice(TOPICS)

    def _place(self) -> tuple[str, int]:
        topic = self._topic()
        return topic, self._random.choice(self.world.partitions(topic))

    def _send(self) -> None:
        self.world.send(*self._place(), self._random.choice([1, 20, 100, 300]))

    def _purge(self) -> None:
        self.world.purge(self._topic())
        self.counts["purged"] += 1

    def _recreate(self) -> None:
        self.world.recreate(self._topic())
        self.counts["made anew"] += 1

    def _delete(self) -> None:
        self.world.delete_segments(*self._place(), self._random.randint(1, 3))

    def _add(self) -> None:
        self.world.add_partition(self._topic())

    def _restart(self) -> None:
        self.world.restart()
        self.counts["restarts"] += 1

    def _kill(self) -> None:
        self.world.kill()
        self.counts["kills"] += 1

    def _archive(self) -> None:
        self.world.archive(self._topic(), path=self._random.random() < 0.5)
        self.counts["archive runs"] += 1

    def _vacuum(self) -> None:
        self.world.vacuum()

    def _backup(self) -> None:
        self.world.backup()

    def _restore(self) -> None:
        self.world.restore()
        self.counts["restores"] += 1

    def roll_back(self) -> None:
        """The directory is copied, streams go on, and the copy is put back, with other messages behind its end. What
        is on its way is read before: a plan proves incarnations alone."""
        while self._readings:
            self._finish(self._readings.pop())
        path, counts = self.world.copy()
        for topic, partition in list(self.world.now):
            self.world.send(topic, partition, self._random.choice([1, 40, 150]))
        self.world.settle()
        for _ in range(2 * len(self._queries)):
            self._stream(changes=False)
        if self._random.random() < 0.5:
            self._archive()
        self.world.put_back(path, counts)
        for topic, partition in list(self.world.now):
            self.world.send(topic, partition, self._random.choice([1, 40, 200, 300]))
        self.world.settle()
        self.counts["put back"] += 1

    def replace(self) -> None:
        """Queries go on with their checkpoints at another server."""
        while self._readings:
            self._finish(self._readings.pop())
        self.world.replace()
        for query in self._queries:
            at, query.options = query.stream.at, {**query.options, **self.world.options()}
            if "path" in query.options:
                query.options["path"] = str(self.world.server.data_dir)
            query.stream = Stream(query.options)
            query.stream.at = at
        self.counts["replaced"] += 1

    # ---- plans ----

    def _options(self, mode: str, lenient: bool, **more: str) -> dict[str, str]:
        options = self.world.options(failOnDataLoss=str(not lenient).lower(), **more)
        options |= {"poll.maxBytes": self._random.choice(["1 KiB", "8 KiB", "1 MiB"])}
        options |= {"batchBytes": self._random.choice(["1 KiB", "2 MiB"])}
        if self._random.random() < 0.5:
            options["maxRecordsPerPartition"] = str(self._random.choice([37, 100, 1000]))
        if mode in ("cold", "auto", "all"):
            options["path"] = str(self.world.server.data_dir)
        if mode in ("archive", "all"):
            options["archivePath"] = str(self.world.archive_root)
        options["readMode"] = mode if mode in ("live", "cold") else "auto"
        return options

    def _subscription(self) -> dict[str, str]:
        if self._random.random() < 0.5:
            return {"subscribePattern": ".*"}
        return {"subscribe": f"`{STREAM}`/{self._topic()}"}

    def _plan(self) -> None:
        if len(self._readings) >= READS_MAX:
            self._finish(self._readings.pop(self._random.randrange(len(self._readings))))
        if self._random.random() < 0.7:
            self.world.settle()
        mode, lenient = self._random.choice(MODES), self._random.random() < 0.5
        reader = batch(self._options(mode, lenient, **self._subscription()))
        try:
            tasks = reader.partitions()
        except DataLossError as error:
            self._check_reason(lenient, mode in ("archive", "all") and self.world.put_backs > 0, error)
            return
        self.counts["plans"] += 1
        for each in self._random.sample(tasks, min(3, len(tasks))):
            self._readings.append(self._reading(reader, each, lenient))

    def _reading(self, reader: ShardReader | ShardStreamReader, task: InputPartition, lenient: bool) -> Reading:
        parts = []
        for each in task.slices if isinstance(task, SlicePartition) else ():
            history = self.world.histories.get((each.name.topic, each.partition, each.incarnation))
            if history is None or not each.start < each.end <= len(history.payloads):
                raise BrokenPromiseError(f"planned is {each}, which never was")
            parts.append(Expected(each, history, history.changes, each.start))
        return Reading(iter(reader.read(task)), parts, lenient)

    # ---- reads ----

    def _read(self) -> None:
        """One batch of one of the tasks on their way, or the rest of it."""
        if not self._readings:
            return
        reading = self._random.choice(self._readings)
        if self._random.random() < 0.5 and self._step(reading):
            return
        self._readings.remove(reading)
        self._finish(reading)

    def _step(self, reading: Reading) -> bool:
        """False when it has ended."""
        reason = any(each.reason for each in reading.parts)
        try:
            return self._advance(reading)
        except DataLossError as error:
            self._check_reason(reading.lenient, reason, error)
            reading.parts.clear()
            return False

    def _advance(self, reading: Reading) -> bool:
        """One record batch of a task, judged. False when there was none any more; `DataLossError`."""
        topics = {each.slice.partition: each.slice.name.topic for each in reading.parts}
        try:
            part = next(reading.tasks, None)
        except DamagedRecordError as error:  # nothing here damages a record: the file of another incarnation was read
            raise BrokenPromiseError(f"damage where nothing was damaged: {error}") from error
        if part is None:
            for each in reading.parts:
                reading.finish(each)
            self.counts["reads"] += 1
            return False
        columns = [part.column(name).to_pylist() for name in ("partition", "offset", "value")]
        for partition, offset, value in zip(*columns, strict=True):
            if partition not in topics:
                raise BrokenPromiseError(f"partition {partition} was not planned")
            reading.take(partition, value.split(b":")[0].decode(), offset, value)
        self.counts["rows"] += part.num_rows
        return True

    def _check_reason(self, lenient: bool, reason: bool, error: Exception) -> None:
        if lenient or not reason:
            raise BrokenPromiseError(f"an error without a reason: {error}") from error
        self.counts["losses told"] += 1

    def _finish(self, reading: Reading) -> None:
        while self._step(reading):
            pass

    # ---- streams ----

    def _stream(self, *, changes: bool = True) -> None:
        """One batch of a stream, with changes between its plan and its tasks, and sometimes planned twice."""
        if len(self._queries) < 3:
            mode, lenient = self._random.choice(("live", "auto", "archive", "all")), self._random.random() < 0.5
            options = self._options(mode, lenient, startingOffsets="earliest", **self._subscription())
            self._queries.append(Query(Stream(options), options, lenient, put_backs=self.world.put_backs))
        query = self._random.choice(self._queries)
        limit = ReadMaxRows(self._random.choice([50, 500]))
        reason = self._behind(query)
        try:
            tasks, end = query.stream.plan(limit)
            readings = self._readings_of(query, tasks)
            for _ in range(self._random.choice([0, 0, 1, 2]) if changes else 0):
                self._random.choice((self._send, self._delete, self._purge))()
            if tasks and self._random.random() < 0.3:  # the driver was killed: the batch is planned again
                assert query.stream.at is not None
                reason = self._behind(query)
                readings = self._readings_of(query, query.stream.reader.partitions(query.stream.at, end))
            self._check_follows(query, [part.slice for each in readings for part in each.parts])
            for each in readings:
                reason = any(part.reason for part in each.parts)
                while self._advance(each):
                    pass
        except DataLossError as error:
            self._check_reason(query.lenient, reason, error)
            self._queries.remove(query)
            return
        rows = sum(each.read for each in readings)
        if rows > limit.max_rows + len(TOPICS) * PARTITIONS_MAX:
            raise BrokenPromiseError(f"a batch of {rows} rows, allowed are {limit.max_rows}")
        query.stream.at = end
        query.put_backs = self.world.put_backs
        self.counts["batches"] += 1

    def _readings_of(self, query: Query, tasks: list[InputPartition]) -> list[Reading]:
        return [self._reading(query.stream.reader, each, query.lenient) for each in tasks]

    def _check_follows(self, query: Query, planned: list[Slice]) -> None:
        """A stream goes on where it was: nothing twice, nothing left out but what is gone."""
        for each in sorted(planned, key=lambda s: (s.name, s.partition, s.incarnation, s.start)):
            place = (each.name.topic, each.partition, each.incarnation)
            history = self.world.histories[place]
            key = (*place, history.life)
            first, following = query.seen.get(key) or self._before(query, key, history, each.start)
            floor = history.floor
            if each.start < following or (each.start > following and not (query.lenient and each.start <= floor)):
                raise BrokenPromiseError(
                    f"a stream goes on at {each.start} of {key}, but was at {following} (kept from {floor})"
                )
            query.seen[key] = (first, each.end)

    @staticmethod
    def _before(query: Query, key: tuple[str, int, int, int], history: History, start: int) -> tuple[int, int]:
        """Where a stream goes on that has read nothing of this life: where it was in the one before, if that had the
        same messages up to there, else at what was kept when it was planned."""
        for life in range(history.life - 1, -1, -1):
            _, following = query.seen.get((*key[:3], life), (0, None))
            if following is not None and following > history.shared:
                break
            if following is not None:
                return following, following
        return (min(start, history.floor),) * 2

    def _behind(self, query: Query) -> bool:
        """Whether its checkpoint names something that is gone."""
        if query.put_backs != self.world.put_backs or (self.world.put_backs and "archivePath" in query.options):
            return True
        if query.stream.at is None:
            return False
        for text, entry in query.stream.at["topics"].items():
            topic = text.rpartition("/")[2]
            for n, (incarnation, offset, *_) in entry["p"].items():
                now = self.world.now.get((topic, int(n)))
                if now != incarnation or offset < self.world.history(topic, int(n)).floor:
                    return True
        return False


def play(directory: Path, seed: int, steps: int, **more: Any) -> Counter[str]:
    """One run with a server of its own. `BrokenPromiseError`."""
    world = World(directory)
    model = Model(world, seed, **more)
    try:
        model.run(steps)
    finally:
        world.close()
    return model.counts
