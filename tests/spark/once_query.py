"""A query whose sink stores rows once, without Spark: its attempts are called by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from shardd.spark.sinks.topic import options as topic_options
from shardd.spark.sinks.topic import writers as sink
from shardd.spark.sinks.topic.options import SinkOptions
from shardd.spark.sinks.topic.writers import RowsSent, Work
from tests.support import wire
from tests.support.server import Server

ROWS = 400  # of a task, in batches of 50
PARTITIONS = 3


class DiedError(Exception):
    """What ends an attempt."""


class Query:
    """One application; a batch has the rows `batch * 10000 + task * 1000 + n`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, address: str, stream: str, **more: str) -> None:
        given = {"servers": address, "topic": f"{stream}/out", "createTopic": str(PARTITIONS), "batchBytes": "4 KiB"}
        given |= {"username": "iggy", "password": "iggy", "semantics": "idempotent", "order": "source", **more}
        self.options: SinkOptions = topic_options.parse(given, streaming=True)
        self.name = f"query {stream}"
        self.single = False
        self._task = 0
        self.id_of: Callable[[int], bytes] | None = None
        self.gone = 0  # so many of the first rows of a task the source does not have any more
        monkeypatch.setattr(sink, "task_number", lambda: self._task)

    def attempt(
        self, run: str, batch: int, task: int = 0, *, at: int | None = None, does: Callable[[], object] | None = None
    ) -> RowsSent:
        """Before the rows of its part `at` it does something, or dies."""
        self._task = task
        return sink.write(self.options, Work(self.name, run, batch, self.single), self._parts(batch, task, at, does))

    def _parts(
        self, batch: int, task: int, at: int | None, does: Callable[[], object] | None
    ) -> Iterator[pa.RecordBatch]:
        first = batch * 10_000 + task * 1000
        for part in range((ROWS - self.gone) // 50):
            if part == at:
                if does is None:
                    raise DiedError
                does()
            numbers = range(first + self.gone + part * 50, first + self.gone + part * 50 + 50)
            columns = {"value": [str(n) for n in numbers], "key": [f"k{n % 17}" for n in numbers]}
            if self.id_of is not None:
                columns = {
                    "value": columns["value"],
                    "id": pa.array([self.id_of(n) for n in numbers], pa.binary()),
                    "partition": pa.array([task] * 50, pa.int32()),
                }
            yield pa.RecordBatch.from_pydict(columns)

    def die(self, run: str, batch: int, task: int = 0, *, at: int) -> None:
        with pytest.raises(DiedError):
            self.attempt(run, batch, task, at=at)

    def commit(self, batch: int, *done: RowsSent) -> None:
        sink.commit(self.options, list(done), batch)

    def run(self, run: str, batch: int, tasks: int = 2) -> None:
        self.commit(batch, *(self.attempt(run, batch, task) for task in range(tasks)))


def stored(server: Server, stream: str) -> list[int]:
    with wire.connect(server.address) as connection:
        count = len(connection.partitions(stream, "out"))
        messages = [connection.read_all(stream, "out", partition) for partition in range(count)]
    assert all([each.offset for each in found] == list(range(len(found))) for found in messages)
    return sorted(int(each.payload) for found in messages for each in found)


def rows_of(batches: int, tasks: int = 2) -> list[int]:
    return [batch * 10_000 + task * 1000 + n for batch in range(batches) for task in range(tasks) for n in range(ROWS)]
