"""format("discard"): an Arrow writer that throws the rows away, as the reference of the sink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType


@dataclass
class Seen(WriterCommitMessage):
    rows: int


def _count(batches: Iterator[pa.RecordBatch]) -> Seen:
    return Seen(sum(batch.num_rows for batch in batches))


class DiscardWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Seen:
        return _count(iterator)


class DiscardStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Seen:
        return _count(iterator)


class DiscardSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DiscardWriter:
        return DiscardWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DiscardStreamWriter:  # noqa: N802
        return DiscardStreamWriter()
