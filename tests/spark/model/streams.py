"""Streaming queries of the model, of one source or of two: batches with changes between plan and tasks, batches that
are planned twice, tasks of both sources that are read beside each other, watermarks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from shardd.spark.loss import DataLossError
from shardd.spark.planner import Slice
from tests.spark.direct import COLUMNS, Stream
from tests.spark.model.reading import Reading
from tests.spark.model.world import PARTITIONS_MAX, TOPICS, BrokenPromiseError, History, World

QUERIES = 4
DELAYS_MS = {"0s": 0, "200ms": 200, "1h": 3_600_000}


@dataclass
class Side:
    """One source of a query, and what it has read of each life of an incarnation: [first, next). `put_backs`: of the
    world, when it had its last batch. `newest_us`: of all rows of earlier batches, where the query has a watermark."""

    stream: Stream
    options: dict[str, str]
    lenient: bool
    seen: dict[tuple[str, int, int, int], tuple[int, int]] = field(default_factory=dict)
    put_backs: int = 0
    newest_us: int | None = None
    rewinds: int = 0

    @property
    def topics(self) -> tuple[str, ...]:
        subscribed = self.options.get("subscribe")
        return TOPICS if subscribed is None else (subscribed.rpartition("/")[2],)

    @property
    def delay_ms(self) -> int | None:
        return DELAYS_MS[self.options["watermarkDelay"]] if "watermarkDelay" in self.options else None

    def move(self, options: dict[str, str]) -> None:
        """The query goes on with its checkpoint and other options."""
        at, self.options = self.stream.at, options
        self.stream = stream_of(options)
        self.stream.at = at


def stream_of(options: dict[str, str]) -> Stream:
    return Stream(options, (*COLUMNS, "timestamp") if "watermarkDelay" in options else COLUMNS)


@dataclass
class Planned:
    """The part of one source in a batch."""

    side: Side
    reason: bool
    tasks: list[InputPartition]
    end: dict[str, object]
    readings: list[Reading] = field(default_factory=list)


class Queries:
    """All queries of a run. `make`: the options of a source; `change`: something happens to the topics; `readings`
    and `advance`: of the model."""

    def __init__(
        self,
        world: World,
        chance: random.Random,
        counts: Counter[str],
        *,
        make: Callable[[], tuple[dict[str, str], bool]],
        change: Callable[[], None],
        reading: Callable[[Side, InputPartition], Reading],
        advance: Callable[[Reading], bool],
        told: Callable[[bool, bool, Exception], None],
    ) -> None:
        self.all: list[list[Side]] = []
        self.two_sources = 0.4  # of the queries
        self._world = world
        self._chance = chance
        self._counts = counts
        self._make = make
        self._change = change
        self._reading = reading
        self._advance = advance
        self._told = told

    def step(self, *, changes: bool = True) -> None:
        """One batch of a query, with changes between its plan and its tasks, and sometimes planned twice."""
        if len(self.all) < QUERIES:
            count = 2 if self._chance.random() < self.two_sources else 1
            self.begin(*(self._make() for _ in range(count)))
        query = self._chance.choice(self.all)
        if not self._planned_and_read(query, changes):
            self.all.remove(query)

    def begin(self, *sources: tuple[dict[str, str], bool]) -> None:
        """A query of these sources: options, and whether losses are accepted."""
        put_backs, rewinds = self._world.put_backs, self._world.rewinds
        self.all.append(
            [Side(stream_of(each), each, lenient, put_backs=put_backs, rewinds=rewinds) for each, lenient in sources]
        )

    def _planned_and_read(self, query: list[Side], changes: bool) -> bool:
        """False when the query has ended with an error that has a reason."""
        limit = ReadMaxRows(self._chance.choice([50, 500]))
        batch: list[Planned] = []
        for side in query:
            reason = self.behind(side)
            try:
                tasks, end = side.stream.plan(limit)
                planned = Planned(side, reason, tasks, end, self._readings_of(side, tasks))
            except DataLossError as error:
                self._told(side.lenient, reason, error)
                return False
            batch.append(planned)
            if not tasks and not changes:
                self._check_goes_on(side)
        for _ in range(self._chance.choice([0, 0, 1, 2]) if changes else 0):
            self._change()
        again = self._chance.random() < 0.3
        return all(not again or self._planned_again(each) for each in batch) and self._read(batch, limit)

    def _planned_again(self, each: Planned) -> bool:
        """The driver was killed: the batch is planned as it stands in the checkpoint."""
        if not each.tasks:
            return True
        assert each.side.stream.at is not None
        each.reason = self.behind(each.side)
        try:
            tasks = each.side.stream.reader.partitions(each.side.stream.at, each.end)
            each.readings = self._readings_of(each.side, tasks)
        except DataLossError as error:
            self._told(each.side.lenient, each.reason, error)
            return False
        return True

    def _read(self, batch: list[Planned], limit: ReadMaxRows) -> bool:
        """All tasks of a batch, those of two sources beside each other, and its commit."""
        for each in batch:
            self._check_follows(each.side, [part.slice for task in each.readings for part in task.parts])
        left = [(each, task) for each in batch for task in each.readings]
        while left:
            each, task = left[0] if len(batch) == 1 else self._chance.choice(left)
            reason = any(part.reason for part in task.parts)
            try:
                if not self._advance(task):
                    left.remove((each, task))
            except DataLossError as error:
                self._told(each.side.lenient, reason, error)
                return False
        for each in batch:
            self._commit(each, limit)
        self._counts["batches"] += 1
        self._counts["batches of two sources"] += sum(bool(each.tasks) for each in batch) > 1
        return True

    def _commit(self, each: Planned, limit: ReadMaxRows) -> None:
        side, rows = each.side, sum(task.read for task in each.readings)
        if side.delay_ms is None and rows > limit.max_rows + len(TOPICS) * PARTITIONS_MAX:
            raise BrokenPromiseError(f"a batch of {rows} rows, allowed are {limit.max_rows}")
        self._check_times(side, each.readings)
        side.stream.at = each.end
        side.put_backs = self._world.put_backs

    def _readings_of(self, side: Side, tasks: list[InputPartition]) -> list[Reading]:
        made = [self._reading(side, each) for each in tasks]
        for part in (part for each in made for part in each.parts):
            if part.slice.name.topic not in side.topics:
                raise BrokenPromiseError(f"planned is {part.slice}, but the source has {side.topics}")
        return made

    # ---- times ----

    def _check_times(self, side: Side, readings: list[Reading]) -> None:
        """No row of a query with a watermark is so old that the watermark drops it. A directory of before, as a backup
        has it, brings old rows anew."""
        if side.delay_ms is None:
            return
        if side.rewinds != self._world.rewinds:
            side.newest_us, side.rewinds = None, self._world.rewinds
        oldest = min((each.oldest_us for each in readings if each.oldest_us is not None), default=None)
        if oldest is None:
            return
        if side.newest_us is not None and oldest <= side.newest_us - side.delay_ms * 1000 - (side.delay_ms == 0):
            raise BrokenPromiseError(
                f"a row of {oldest} us comes behind one of {side.newest_us} us: a watermark {side.delay_ms} ms behind"
                " drops it"
            )
        newest = max(each.newest_us for each in readings if each.newest_us is not None)
        side.newest_us = max(newest, side.newest_us or 0)
        self._counts["batches by time"] += 1
        self._counts["batches by time beside a partition ahead"] += self._ahead(side)

    def _ahead(self, side: Side) -> bool:
        return any(
            self._world.history(*place).ahead is not None for place in self._world.now if place[0] in side.topics
        )

    def _check_goes_on(self, side: Side) -> None:
        """There was nothing to read, and all is on the device: a message of the future keeps none of now back."""
        if side.delay_ms is None or side.stream.at is None or self.behind(side):
            return
        for topic, n, incarnation, offset in self._places(side):
            history = self._world.histories[topic, n, incarnation]
            if offset < (len(history.payloads) if history.ahead is None else history.ahead):
                raise BrokenPromiseError(f"{topic} {n}: nothing is read at {offset}, where a message of now is")

    # ---- places ----

    def _places(self, side: Side) -> list[tuple[str, int, int, int]]:
        found = []
        for text, entry in (side.stream.at or {"topics": {}})["topics"].items():
            found += [(text.rpartition("/")[2], int(n), each[0], each[1]) for n, each in entry["p"].items()]
        return found

    def behind(self, side: Side) -> bool:
        """Whether its checkpoint names something that is gone."""
        if side.put_backs != self._world.put_backs or (self._world.put_backs and "archivePath" in side.options):
            return True
        for topic, n, incarnation, offset in self._places(side):
            now = self._world.now.get((topic, n))
            if now != incarnation or offset < self._world.history(topic, n).floor:
                return True
        return False

    def _check_follows(self, side: Side, planned: list[Slice]) -> None:
        """A stream goes on where it was: nothing twice, nothing left out but what is gone."""
        for each in sorted(planned, key=lambda s: (s.name, s.partition, s.incarnation, s.start)):
            place = (each.name.topic, each.partition, each.incarnation)
            history = self._world.histories[place]
            key = (*place, history.life)
            first, following = side.seen.get(key) or self._before(side, key, history, each.start)
            floor = history.floor
            if each.start < following or (each.start > following and not (side.lenient and each.start <= floor)):
                raise BrokenPromiseError(
                    f"a stream goes on at {each.start} of {key}, but was at {following} (kept from {floor})"
                )
            side.seen[key] = (first, each.end)

    @staticmethod
    def _before(side: Side, key: tuple[str, int, int, int], history: History, start: int) -> tuple[int, int]:
        """Where a stream goes on that has read nothing of this life: where it was in the last one that it has read, if
        that had the same messages up to there, else at what was kept when it was planned."""
        for life in range(history.life - 1, -1, -1):
            _, following = side.seen.get((*key[:3], life), (0, None))
            if following is not None and following > history.shared[life]:
                break
            if following is not None:
                return following, following
        return (min(start, history.floor),) * 2
