"""Random interleavings of changes, plans and reads. Whatever happens, the rows of a task are those of the history that
was planned, in the planned range, in order and once; or the read ends with a typed error that has a reason."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from shardd.spark.cold import DamagedRecordError
from shardd.spark.loss import DataLossError
from shardd.spark.reading import SlicePartition
from shardd.spark.source import ShardReader
from shardd.spark.stream import ShardStreamReader
from tests.spark.direct import batch
from tests.spark.model import gaps
from tests.spark.model.reading import Expected, Reading
from tests.spark.model.retries import Copy
from tests.spark.model.streams import DELAYS_MS, QUERIES, Queries
from tests.spark.model.world import STREAM, TOPICS, BrokenPromiseError, World

MODES = ("live", "cold", "auto", "archive", "all")
READS_MAX = 8
PATTERN = f"`{STREAM}`/.*"


class Model:
    """One run. `counts` tells what happened."""

    def __init__(self, world: World, seed: int, *, restores: bool = True, restarts: bool = True) -> None:
        self.world = world
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._readings: list[Reading] = []
        self.queries = Queries(
            world, self._random, self.counts,
            make=self._options_of_a_stream,
            change=lambda: self._random.choice((self._send, self._delete, self._purge))(),
            reading=lambda side, task: self._reading(side.stream.reader, task, side.lenient),
            advance=self._advance,
            told=self._check_reason,
        )  # fmt: skip
        rare = (
            [(self._restart, 1), (self._kill, 1), (self.thin, 1), (self.give_up, 1), (self.go_ahead, 1)]
            if restarts
            else []
        )
        rare += [(self._backup, 2), (self._restore, 1)] if restores else []
        rare += [(self.roll_back, 1), (self.replace, 1)] if restores else []
        self._actions: list[tuple[Callable[[], None], int]] = [
            (self._send, 40),
            (self._plan, 30),
            (self._read, 80),
            (self.queries.step, 30),
            (self.copy, 1),
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

    def go_ahead(self) -> None:
        self._finish_all()
        self.counts["ahead in time"] += gaps.ahead(self.world, self._random)
        self.world.settle()

    def thin(self) -> None:
        """As an import of a thinned log leaves a segment."""
        self._finish_all()
        self.counts["thinned"] += bool(gaps.thin(self.world, self._random))
        self.world.settle()

    def give_up(self) -> None:
        """A message is damaged, and an operator isolates it."""
        self._finish_all()
        self.counts["isolated"] += bool(gaps.give_up(self.world, self._random))
        self.world.settle()

    def copy(self) -> None:
        """Attempts of a sink with retention in between."""
        Copy(self.world, self._random, self.counts, self.world.next_number()).play()

    def fill(self) -> None:
        """Every partition has sealed segments, and all is on the device."""
        for place in list(self.world.now):
            self.world.send(*place, 300)
        self.world.settle()

    def read_all(self) -> None:
        """By batch queries of both kinds, from the server and from files."""
        for mode, lenient in itertools.product(("live", "auto"), (True, False)):
            self._plan_as(mode, lenient, every=True)
            self._finish_all()

    def follow(self, delays: tuple[str, ...], rounds: int) -> None:
        """Queries with watermarks, batch by batch, while partition after partition gets messages."""
        for _ in range(QUERIES):
            more = {"watermarkDelay": self._random.choice(delays), "subscribePattern": PATTERN}
            self.queries.begin((self._options("live", False, startingOffsets="earliest", **more), False))
        for _ in range(rounds):
            self.world.send(*self._place(), self._random.choice([1, 20]))
            self.world.settle()
            for _ in range(QUERIES):
                self.queries.step(changes=False)

    def _finish_all(self) -> None:
        """Nothing is on its way while files are exchanged."""
        while self._readings:
            self._finish(self._readings.pop())

    def _finish_unproven(self) -> None:
        """What is read from segments by tasks that ask no server: nothing but its incarnation is known of a
        directory."""
        for each in [each for each in self._readings if each.has_unproven_files()]:
            self._readings.remove(each)
            self._finish(each)

    def roll_back(self) -> None:
        """The directory is copied, streams go on, and the copy is put back, with other messages behind its end. What
        is on its way goes on behind it, and was planned before the copy or after it."""
        self._finish_unproven()
        path, counts = self.world.copy()
        for topic, partition in list(self.world.now):
            self.world.send(topic, partition, self._random.choice([1, 40, 150]))
        self.world.settle()
        for _ in range(2 * len(self.queries.all)):
            self.queries.step(changes=False)
        if self._random.random() < 0.5:
            self._archive()
        for mode, lenient in itertools.product(("live", "auto"), (True, False)):
            self._plan_as(mode, lenient)
        behind = [each for each in self._readings if each.behind(counts)]
        self.counts["readings over a put back"] += len(behind)
        self.counts["files over a put back"] += sum(each.has_files() for each in behind)
        self.world.put_back(path, counts)
        for topic, partition in list(self.world.now):
            self.world.send(topic, partition, self._random.choice([1, 40, 200, 300]))
        self.world.settle()
        self.counts["put back"] += 1

    def replace(self) -> None:
        """Queries go on with their checkpoints at another server. Tasks have the token of the one before."""
        self._finish_all()
        self.world.replace()
        for side in (each for query in self.queries.all for each in query):
            options = {**side.options, **self.world.options()}
            side.move(options | ({"path": str(self.world.server.data_dir)} if "path" in options else {}))
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
            return {"subscribePattern": PATTERN}
        return {"subscribe": f"`{STREAM}`/{self._topic()}"}

    def _options_of_a_stream(self) -> tuple[dict[str, str], bool]:
        mode, lenient = self._random.choice(("live", "auto", "archive", "all")), self._random.random() < 0.5
        more = {"watermarkDelay": self._random.choice(sorted(DELAYS_MS))} if self._random.random() < 0.3 else {}
        return self._options(mode, lenient, startingOffsets="earliest", **more, **self._subscription()), lenient

    def _plan(self) -> None:
        if len(self._readings) >= READS_MAX:
            self._finish(self._readings.pop(self._random.randrange(len(self._readings))))
        if self._random.random() < 0.7:
            self.world.settle()
        self._plan_as(self._random.choice(MODES), self._random.random() < 0.5)

    def _plan_as(self, mode: str, lenient: bool, *, every: bool = False) -> None:
        reader = batch(self._options(mode, lenient, **self._subscription()))
        try:
            tasks = reader.partitions()
        except DataLossError as error:
            self._check_reason(lenient, mode in ("archive", "all") and self.world.put_backs > 0, error)
            return
        self.counts["plans"] += 1
        for each in tasks if every else self._random.sample(tasks, min(3, len(tasks))):
            self._readings.append(self._reading(reader, each, lenient))

    def _reading(self, reader: ShardReader | ShardStreamReader, task: InputPartition, lenient: bool) -> Reading:
        parts = []
        for each in task.slices if isinstance(task, SlicePartition) else ():
            history = self.world.histories.get((each.name.topic, each.partition, each.incarnation))
            if history is None or not each.start < each.end <= len(history.payloads):
                raise BrokenPromiseError(f"planned is {each}, which never was")
            parts.append(Expected(each, history, history.changes, each.start))
        return Reading(iter(reader.read(task)), parts, lenient, self.counts)

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
            self.counts["isolated told"] += any(part.history.isolated for part in reading.parts)
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
        if "timestamp" in part.schema.names and part.num_rows:
            times = part.column("timestamp").cast(pa.int64()).to_pylist()
            reading.oldest_us = min(times) if reading.oldest_us is None else min(*times, reading.oldest_us)
            reading.newest_us = max(times) if reading.newest_us is None else max(*times, reading.newest_us)
        self.counts["rows"] += part.num_rows
        return True

    def _check_reason(self, lenient: bool, reason: bool, error: Exception) -> None:
        if lenient or not reason:
            raise BrokenPromiseError(f"an error without a reason: {error}") from error
        self.counts["losses told"] += 1

    def _finish(self, reading: Reading) -> None:
        while self._step(reading):
            pass


def play(directory: Path, seed: int, steps: int, **more: Any) -> Counter[str]:
    """One run with a server of its own. `BrokenPromiseError`."""
    world = World(directory)
    model = Model(world, seed, **more)
    try:
        model.run(steps)
    finally:
        world.close()
    return model.counts
