"""The source without Spark: what driver and tasks do, called by the test."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from shardd.spark.options import parse
from shardd.spark.source import ShardReader, make_server
from shardd.spark.stream import ShardStreamReader

COLUMNS = ("partition", "offset", "value")
Row = tuple[int, int, bytes]


def batch(options: dict[str, str]) -> ShardReader:
    return ShardReader(parse(options, streaming=False), COLUMNS)


def rows(reader: ShardReader | ShardStreamReader, tasks: Iterable[InputPartition]) -> list[Row]:
    """What the tasks read, in order."""
    found: list[Row] = []
    for task in tasks:
        for part in reader.read(task):
            columns = (part.column(name).to_pylist() for name in COLUMNS)
            found += zip(*columns, strict=True)
    return found


def everything(options: dict[str, str]) -> list[Row]:
    reader = batch(options)
    return rows(reader, reader.partitions())


class Stream:
    """A streaming query with a checkpoint in memory."""

    def __init__(self, options: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> None:
        parsed = parse(options, streaming=True)
        self.reader = ShardStreamReader(parsed, make_server(parsed), columns)
        self.at: dict[str, Any] | None = None

    def plan(self, limit: ReadLimit | None = None) -> tuple[list[InputPartition], dict[str, Any]]:
        """Tasks and end of the next batch."""
        if self.at is None:
            self.at = _stored(self.reader.initialOffset())
        end = _stored(self.reader.latestOffset(self.at, limit or ReadAllAvailable()))
        return ([] if end == self.at else self.reader.partitions(self.at, end)), end

    def run(self, limit: ReadLimit | None = None) -> list[Row]:
        """One batch."""
        tasks, end = self.plan(limit)
        found = rows(self.reader, tasks)
        self.at = end
        return found

    def lost(self) -> dict[str, Any]:
        lost: dict[str, Any] = (self.reader.reportLatestOffset() or {})["lost"]
        return lost


def _stored(offset: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from a checkpoint."""
    stored: dict[str, Any] = json.loads(json.dumps(offset))
    return stored
