"""The works that are timed. Each plans anew, reads the same rows and answers how many it saw."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.spark.data import PARTITIONS, USER, Rows
from bench.spark.discard import DiscardSink
from shardd.client import Connection, Credentials
from shardd.protocol import requests
from shardd.protocol.codes import Code
from shardd.spark.columns import default_names
from shardd.spark.pipelines import archive
from shardd.spark.pipelines.common import Source
from shardd.spark.sinks.topic.options import JOURNAL_STREAM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

SINK_STREAM: Final = "bench-sink"
MICRO_BATCH_ROWS: Final = 10_000
MICRO_ROWS: Final = 100_000
ONCE: Final = {"semantics": "idempotent", "order": "source"}


class Works:
    """On one topic, in one session. `prepare` first."""

    def __init__(self, spark: SparkSession, rows: Rows, directory: Path) -> None:
        self._spark = spark
        self._rows = rows
        self._directory = directory
        self._parquet = directory / f"reference-{rows.payload_bytes}"

    def prepare(self) -> None:
        """The reference: the same rows and columns as Parquet, by Spark's own writer, zstd."""
        self._writer(self._cold(",".join(default_names()))).parquet(str(self._parquet))
        self._spark.dataSource.register(DiscardSink)

    def run(self, name: str) -> None:
        """RuntimeError when it saw other rows than there are."""
        works: dict[str, Callable[[], int]] = {
            "cold-sum": lambda: self._sum(self._cold(None)),
            "cold-sum-value": lambda: self._sum(self._cold("value")),
            "cold-all": lambda: self._all(self._cold(None)),
            "live-sum": lambda: self._sum(self._live()),
            "parquet-sum": lambda: self._sum(self._spark.read.parquet(str(self._parquet))),
            "parquet-all": lambda: self._all(self._spark.read.parquet(str(self._parquet))),
            "archive": self._archive,
            "spark-writer": self._spark_writer,
            "sink": lambda: self._write(self._sink()),
            "sink-once": lambda: self._write(self._sink(**ONCE, appId=uuid.uuid4().hex)),
            "discard": lambda: self._write(("discard", {})),
            "micro-sink": lambda: self._micro_batches(self._sink()),
            "micro-once": lambda: self._micro_batches(self._sink(**ONCE)),
            "micro-discard": lambda: self._micro_batches(("discard", {})),
        }
        found = works[name]()
        if found != self._rows.count:
            raise RuntimeError(f"{name} on {self._rows.name}: {found} rows instead of {self._rows.count}")

    def clean(self) -> None:
        """Outside of the time that is taken: removes what the writers made."""
        for name in ("archive", "spark-writer"):
            shutil.rmtree(self._directory / name, ignore_errors=True)
        shutil.rmtree(self._directory / "checkpoint", ignore_errors=True)
        with Connection(self._rows.address, Credentials(USER, USER)) as connection:
            for stream in connection.streams():
                if stream.name in (SINK_STREAM, JOURNAL_STREAM):
                    connection.request(Code.DELETE_STREAM, requests.StreamRequest(stream.name).encode())

    def _cold(self, columns: str | None) -> DataFrame:
        return self._read({"readMode": "cold", "path": str(self._rows.data)}, columns)

    def _live(self) -> DataFrame:
        return self._read({"readMode": "live"}, None)

    def _read(self, more: dict[str, str], columns: str | None) -> DataFrame:
        options = self._rows.options(**more) | ({} if columns is None else {"columns": columns})
        return self._spark.read.format("shardd").options(**options).load()

    def _sum(self, frame: DataFrame) -> int:
        total = frame.selectExpr("sum(length(value))").collect()[0][0]
        return int(total) // self._rows.payload_bytes

    def _all(self, frame: DataFrame) -> int:
        """Every column of every row reaches the sink, which does nothing; it cannot count."""
        frame.write.format("noop").mode("overwrite").save()
        return self._rows.count

    def _archive(self) -> int:
        options = {**self._rows.place(), "readMode": "cold", "path": str(self._rows.data)}
        topic = options.pop("subscribe")
        target = archive.Target.parse(f"parquet:{self._directory / 'archive'}", {})
        return int(archive.archive(self._spark, Source(topic, options), target)["rows"])

    def _spark_writer(self) -> int:
        target = self._directory / "spark-writer"
        self._writer(self._cold(",".join(archive.COLUMNS))).parquet(str(target))
        return self._rows.count

    def _sink(self, **options: str) -> tuple[str, dict[str, str]]:
        place = {name: value for name, value in self._rows.place().items() if name != "subscribe"}
        more = {"topic": f"{SINK_STREAM}/rows", "createTopic": str(PARTITIONS), "partitioning": "balanced"}
        return "shardd", {**place, **more, **options}

    def _write(self, sink: tuple[str, dict[str, str]]) -> int:
        """The values of the reference's Parquet files into a topic, or nowhere."""
        values = self._spark.read.parquet(str(self._parquet)).select("value")
        values.write.format(sink[0]).options(**sink[1]).mode("append").save()
        return self._rows.count

    def _micro_batches(self, sink: tuple[str, dict[str, str]]) -> int:
        """The end of the topic, MICRO_BATCH_ROWS at a time."""
        begin = {str(n): max(end - MICRO_ROWS // PARTITIONS, 0) for n, end in enumerate(self._rows.ends)}
        options = {**self._rows.place(), "startingOffsets": json.dumps({self._rows.name: begin}), "columns": "value"}
        rows = self._spark.readStream.format("shardd").options(**options, maxOffsetsPerTrigger=MICRO_BATCH_ROWS).load()
        writer = rows.writeStream.format(sink[0]).options(**sink[1])
        writer = writer.option("checkpointLocation", str(self._directory / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        return self._rows.count

    def _writer(self, frame: DataFrame) -> DataFrameWriter:
        return frame.write.option("compression", "zstd")
