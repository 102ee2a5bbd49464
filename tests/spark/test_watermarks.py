"""A query with a watermark loses no message, however far partitions are apart in time."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

from shardd.spark import admission
from shardd.spark.pipelines import aggregate, archive, dedup
from shardd.spark.pipelines.aggregate import Aggregation
from shardd.spark.pipelines.archive import Target
from shardd.spark.pipelines.common import Counted, PipelineError, follow_query
from shardd.spark.pipelines.dedup import Deduplication
from shardd.spark.positions import TopicName
from tests.spark.direct import Stream
from tests.spark.support import Topic, settle, source_of
from tests.support import wire
from tests.support.server import Server

ROWS = 1500
APART_S = 2.5
NAME = TopicName("s", "t")


@pytest.fixture
def apart(server: Server) -> Iterator[Topic]:
    """Partition 0 is stored some seconds before partition 1; partition 2 stays empty."""
    name = f"w{time.monotonic_ns()}"
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream(name), "rows", 3)
        made = Topic(server, name, connection)
        made.send(0, ROWS)
        stored = time.monotonic()
        while time.monotonic() < stored + APART_S:  # what the test is about, not a wait for something
            time.sleep(0.1)
        made.send(1, ROWS)
        settle(made)
        yield made
        connection.delete_stream(name)


def times_of(topic: Topic) -> dict[tuple[int, int], int]:
    """Append time of each message by partition and offset."""
    with wire.connect(topic.server.address) as connection:
        return {
            (n, each.offset): each.timestamp_us
            for n in topic.payloads
            for each in connection.read_all(topic.stream, topic.topic, n)
        }


# ---- pipelines ----


def test_dedup_within_a_time_keeps_every_message_that_is_no_duplicate(
    spark: SparkSession, apart: Topic, tmp_path: Path
) -> None:
    source = source_of(apart, maxOffsetsPerTrigger="600")
    found = dedup.run(
        spark, Deduplication(source, "id", "1s", tmp_path / "state", str(tmp_path / "table")), follow=False
    )
    rows = DeltaTable(tmp_path / "table").to_pyarrow_table().column("value").to_pylist()
    assert Counter(rows) == Counter(payload for _, _, payload in apart.rows())
    assert (found["rows"], found["late"]) == (2 * ROWS, 0)


def test_windows_of_a_stream_hold_every_message(spark: SparkSession, apart: Topic, tmp_path: Path) -> None:
    """The windows that are ended by the watermark have all their messages; the last ones are still open."""
    wanted = Aggregation.parse("100ms", "partition", "count", "length")
    more: dict[str, Any] = {"checkpoint": tmp_path / "c", "watermark": "0s", "follow": False}
    source = source_of(apart, maxOffsetsPerTrigger="600")
    found = aggregate.run_stream(spark, source, wanted, str(tmp_path / "t"), **more)
    assert (found["rows"], found["late"]) == (2 * ROWS, 0)
    rows = DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist()
    assert sum(row["count"] for row in rows if row["partition"] == 0) == ROWS


def test_messages_behind_the_watermark_stop_a_pipeline_or_are_counted(
    spark: SparkSession, apart: Topic, tmp_path: Path
) -> None:
    """A query that does not tell the source of its watermark has its batches by number alone."""
    options = apart.options(startingOffsets="earliest", maxOffsetsPerTrigger="1200", columns="id,timestamp,value")

    def started(name: str) -> StreamingQuery:
        rows = dedup.distinct(spark.readStream.format("shardd").options(**options).load(), "id", "1s")
        writer = rows.writeStream.format("shardd_parquet").option("path", str(tmp_path / name))
        return writer.option("checkpointLocation", str(tmp_path / f"{name}-c")).trigger(availableNow=True).start()

    with pytest.raises(PipelineError, match=r"^[1-9]\d* messages came later than the watermark allows"):
        follow_query(started("stopped"), Counted())
    counted = Counted()
    follow_query(started("counted"), counted, late_allowed=True)
    assert counted.rows == 2 * ROWS and counted.late > 0


@pytest.mark.parametrize("each_marked", [True, False])
def test_two_sources_in_one_query_keep_every_message_with_a_watermark_of_their_own(
    spark: SparkSession, apart: Topic, tmp_path: Path, each_marked: bool
) -> None:
    """As docs/spark.md says of a union: Spark goes by the source that is behind."""

    def source(partition: int) -> DataFrame:
        options = apart.options(startingOffsets="earliest", maxOffsetsPerTrigger="600", watermarkDelay="1s")
        del options["subscribe"]
        options |= {"assign": json.dumps({apart.name: [partition]}), "columns": "id,timestamp,value"}
        rows = spark.readStream.format("shardd").options(**options).load()
        return rows.withWatermark("timestamp", "1 second") if each_marked else rows

    both = source(1).union(source(0))
    both = (both if each_marked else both.withWatermark("timestamp", "1 second")).dropDuplicatesWithinWatermark(["id"])
    writer = both.writeStream.format("shardd_parquet").option("path", str(tmp_path / "rows"))
    counted = Counted()
    started = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    follow_query(started, counted, late_allowed=True)
    assert counted.rows == 2 * ROWS
    assert (counted.late == 0) == each_marked


# ---- batches ----


@pytest.mark.parametrize("delay", ["0s", "300ms", "1h"])
def test_no_row_of_a_batch_is_older_than_the_watermark_of_those_before(apart: Topic, delay: str) -> None:
    delay_us = {"0s": 0, "300ms": 300_000, "1h": 3_600_000_000}[delay]
    stream, times = Stream(apart.options(startingOffsets="earliest", watermarkDelay=delay)), times_of(apart)
    newest, seen = 0, 0
    while part := stream.run(ReadMaxRows(400)):
        stored = [times[n, offset] for n, offset, _ in part]
        assert min(stored) > newest - delay_us or newest == 0
        newest, seen = max(newest, *stored), seen + len(part)
        assert len(part) <= 402 or delay == "0s"  # of one moment all are taken
    assert seen == 2 * ROWS


def test_admission_by_time_reads_the_archive_where_the_server_has_deleted(apart: Topic, tmp_path: Path) -> None:
    for job in archive.plan(source_of(apart), Target.parse(f"parquet:{tmp_path}", {}))[0]:
        job.run()
    options = {"readMode": "archive", "archivePath": str(tmp_path), "subscribe": apart.name}
    stream, times = Stream({**options, "startingOffsets": "earliest", "watermarkDelay": "1s"}), times_of(apart)
    newest, seen = 0, 0
    while part := stream.run(ReadMaxRows(400)):
        stored = [times[n, offset] for n, offset, _ in part]
        assert min(stored) > newest - 1_000_000
        newest, seen = max(newest, *stored), seen + len(part)
    assert seen == 2 * ROWS


class Known:
    """Times that the test has chosen."""

    def __init__(self, stored: Mapping[int, list[int]]) -> None:
        self._stored = stored

    def at(self, place: admission.Place, offset: int) -> int | None:
        times = self._stored[place[1]]
        return times[offset] if offset < len(times) else None

    def offset_at(self, place: admission.Place, timestamp_us: int) -> int | None:
        return next((n for n, time_us in enumerate(self._stored[place[1]]) if time_us >= timestamp_us), None)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 30), max_size=12).map(sorted), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(0, 12),
)
def test_batches_by_time_end_and_drop_nothing(stored: list[list[int]], limit: int, delay_us: int) -> None:
    times = Known(dict(enumerate(stored)))
    ends = {(NAME, n): len(each) for n, each in enumerate(stored)}
    at = dict.fromkeys(ends, 0)
    newest = -delay_us - 1
    while at != ends:
        offered = {place: min(at[place] + limit, end) for place, end in ends.items()}
        found = admission.ends_by_time(times, at, offered, ends, delay_us=delay_us, now_us=1000)
        taken = [time_us for place, end in found.items() for time_us in stored[place[1]][at[place] : end]]
        assert taken, "no batch goes on"
        assert min(taken) > newest - delay_us
        newest, at = max(newest, *taken), found


def test_a_message_from_the_future_waits_and_holds_nobody_back(caplog: pytest.LogCaptureFixture) -> None:
    future = 10**9
    times = Known({0: [1, 2, future], 1: [1, 2, 3, 4]})
    ends = {(NAME, 0): 3, (NAME, 1): 4}
    at = dict.fromkeys(ends, 0)
    with caplog.at_level(logging.WARNING):
        at = admission.ends_by_time(times, at, ends, ends, delay_us=0, now_us=100)
        assert at == {(NAME, 0): 2, (NAME, 1): 4}
        assert admission.ends_by_time(times, at, ends, ends, delay_us=0, now_us=100) == at
    assert "ahead of the clock" in caplog.text
    assert admission.ends_by_time(times, at, ends, ends, delay_us=0, now_us=future) == ends
