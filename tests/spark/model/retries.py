"""A query that copies a topic with semantics=idempotent, of which attempts die, and retention deletes messages of its
source before the next attempt. Each row of an attempt that ends well is stored once, or the sink says that it cannot
know (UnprovableError)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from unittest import mock

import pyarrow as pa

from shardd.spark.sinks.topic import options as topic_options
from shardd.spark.sinks.topic import writers as sink
from shardd.spark.sinks.topic.stored import UnprovableError
from shardd.spark.sinks.topic.writers import Work
from tests.spark.direct import batch
from tests.spark.model.world import BrokenPromiseError, World
from tests.spark.support import DELETE_SEGMENTS
from tests.support import wire

SOURCE, SOURCE_TOPIC = "copied", "rows"
MESSAGES = 400  # of a batch
PART = 40  # rows of one Arrow batch that the sink gets
ATTEMPTS_MAX = 5


class DiedError(Exception):
    """What ends an attempt."""


class Copy:
    """One query from a topic of its own into another; made, played and forgotten in one step of the model."""

    def __init__(self, world: World, chance: random.Random, counts: Counter[str], number: int) -> None:
        self._world = world
        self._chance = chance
        self._counts = counts
        self._stream = f"{SOURCE}{number}"
        options = world.options(topic=f"{self._stream}/out", createTopic="2", batchBytes="4 KiB", order="source")
        self._options = topic_options.parse({**options, "semantics": "idempotent"}, streaming=True)
        self.deletions = 0.4  # behind so many of the attempts that die
        self._end = 0
        self._first = 0
        world.connection.create_topic(world.connection.create_stream(self._stream), SOURCE_TOPIC, 1)

    def play(self, batches: int = 2) -> None:
        """`BrokenPromiseError`."""
        try:
            for number in range(batches):
                self._send(MESSAGES)
                if not self._batch(number):
                    return
        finally:
            self._world.connection.delete_stream(self._stream)

    def _send(self, count: int) -> None:
        for low in range(self._end, self._end + count, 25):
            payloads = [f"{n}:".encode() + b"x" * (n % 60) for n in range(low, low + 25)]
            messages = [wire.message(each) for each in payloads]
            self._world.connection.send(self._stream, SOURCE_TOPIC, wire.to_partition(0), messages)
        self._end += count

    def _batch(self, number: int) -> bool:
        """Attempts until one ends well. False: the sink has said that it cannot know."""
        start = self._end - MESSAGES
        for attempt in range(ATTEMPTS_MAX):
            last = attempt + 1 == ATTEMPTS_MAX or self._chance.random() < 0.5
            dies = None if last and attempt else self._chance.randrange(MESSAGES // PART)
            rows = self._rows(start)
            try:
                with mock.patch.object(sink, "task_number", lambda: 0):
                    done = sink.write(self._options, Work(self._stream, "run", number), self._parts(rows, dies))
            except DiedError:
                if self._chance.random() < self.deletions:
                    self._delete()
                continue
            except UnprovableError:
                if self._first <= start:
                    raise BrokenPromiseError("the sink cannot know, but nothing of the batch was deleted") from None
                self._counts["retries refused behind retention"] += 1
                self._check_stored([])
                return False
            sink.commit(self._options, [done], number)
            self._counts["retries"] += attempt > 0
            self._counts["retries behind retention"] += attempt > 0 and self._first > start
            self._check_stored(rows)
            return True
        raise BrokenPromiseError("the last attempt dies of itself")

    def _rows(self, start: int) -> list[bytes]:
        """Of the batch, what is kept: read by the source as a task does it."""
        position = f'{{"{self._stream}/{SOURCE_TOPIC}": {{"0": %d}}}}'
        options = self._world.options(
            subscribe=f"{self._stream}/{SOURCE_TOPIC}",
            startingOffsets=position % start,
            endingOffsets=position % self._end,
            failOnDataLoss="false",
        )
        reader = batch(options)
        parts = [part for task in reader.partitions() for part in reader.read(task)]
        rows = [value for part in parts for value in part.column("value").to_pylist()]
        wanted = [f"{n}:".encode() + b"x" * (n % 60) for n in range(max(start, self._first), self._end)]
        if rows != wanted:
            raise BrokenPromiseError(f"{len(rows)} rows of {self._stream}, {len(wanted)} are kept")
        return rows

    def _parts(self, rows: list[bytes], dies: int | None) -> Iterator[pa.RecordBatch]:
        for number, low in enumerate(range(0, len(rows), PART)):
            if number == dies:
                raise DiedError
            yield pa.RecordBatch.from_pydict({"value": rows[low : low + PART]})
        if dies is not None:
            raise DiedError

    def _delete(self) -> None:
        """Retention: one to three sealed segments of the source go."""
        address = wire.identifier(self._stream) + wire.identifier(SOURCE_TOPIC)
        count = self._chance.randint(1, 3)
        self._world.connection.request(DELETE_SEGMENTS, address + bytes(4) + count.to_bytes(4, "little"))
        self._first = self._world.first_of(self._stream, SOURCE_TOPIC)

    def _check_stored(self, rows: list[bytes]) -> None:
        """Each once, and nothing twice."""
        connection = self._world.connection
        found = Counter(
            each.payload
            for partition in range(len(connection.partitions(self._stream, "out")))
            for each in connection.read_all(self._stream, "out", partition)
        )
        twice = [each for each, count in found.items() if count > 1]
        missing = [each for each in rows if each not in found]
        if twice or missing:
            raise BrokenPromiseError(f"{len(missing)} rows are not stored, {len(twice)} more than once: {missing[:1]}")
