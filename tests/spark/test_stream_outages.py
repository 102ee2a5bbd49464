"""Through Spark: plans and streams over topics that change, servers that stop. Every row once, or the query stops."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.spark.support import Topic, delete_sealed, settle
from tests.support import wire
from tests.support.ports import free_port
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Row = tuple[int, int, bytes]


def load(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return spark.read.format("shardd").options(**topic.options(**options)).load()


def rows(frame: DataFrame) -> list[Row]:
    found = frame.select("partition", "offset", "value").collect()
    return [(row.partition, row.offset, bytes(row.value)) for row in found]


def start(spark: SparkSession, topic: Topic, directory: Path, *, once: bool, **options: str) -> StreamingQuery:
    source = spark.readStream.format("shardd").options(**topic.options(startingOffsets="earliest", **options)).load()
    writer = source.select("partition", "offset", "value").writeStream.format("shardd_parquet")
    writer = writer.option("path", str(directory / "out")).option("checkpointLocation", str(directory / "checkpoint"))
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="100 milliseconds")).start()


def written(directory: Path) -> list[Row]:
    """What the sink shows, read without Spark."""
    found: list[Row] = []
    for path in sorted((directory / "out").glob("batch=*/*.parquet")):
        table = pq.ParquetFile(path).read()
        found += zip(*(table.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True)
    return found


def refill(topic: Topic) -> set[Row]:
    """Another history; the rows of the one before."""
    before = topic.rows()
    topic.connection.purge_topic(topic.stream, topic.topic)
    topic.payloads.clear()
    for partition in range(2):
        topic.send(partition, 4000)
    settle(topic)
    return before


def test_a_frozen_plan_reads_its_own_history_or_stops(spark: SparkSession, topic: Topic) -> None:
    frame = load(spark, topic)
    assert len(frame.take(1)) == 1  # this plans it
    refill(topic)
    with pytest.raises(Exception, match="made anew or restored"):
        frame.agg({"offset": "max"}).collect()


def test_a_stream_goes_on_in_a_new_history_without_doubling_it(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    assert start(spark, topic, tmp_path, once=True).awaitTermination(100)
    before = refill(topic)
    query = start(spark, topic, tmp_path, once=True, failOnDataLoss="false", maxOffsetsPerTrigger="3000")
    assert query.awaitTermination(100)
    batches = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert batches and max(batches) <= 3002
    found = written(tmp_path)
    assert sorted(found) == sorted([*before, *topic.rows()])


def test_a_stream_reads_what_is_kept_and_its_progress_tells_what_is_not(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    assert start(spark, topic, tmp_path, once=True, maxOffsetsPerTrigger="4000").awaitTermination(100)
    done = {p: max((n for q, n, _ in written(tmp_path) if q == p), default=-1) + 1 for p in range(2)}
    for partition in range(2):
        topic.send(partition, 3000)
    settle(topic)
    delete_sealed(topic, 0)
    first = topic.bounds()[0].first
    assert first > done[0]
    query = start(spark, topic, tmp_path, once=True, failOnDataLoss="false")
    assert query.awaitTermination(100)
    found = written(tmp_path)
    assert len(found) == len(set(found))
    assert set(found) == {row for row in topic.rows() if row[0] == 1 or row[1] >= first or row[1] < done[0]}
    progress = query.recentProgress[0]["sources"][0]["latestOffset"]
    lost = (json.loads(progress) if isinstance(progress, str) else progress)["lost"]
    assert lost == {topic.name: {"0": first - done[0]}}


# ---- a server that is not there ----


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Topic]:
    env = {"SHARDD_TCP_ADDRESS": f"127.0.0.1:{free_port()}", "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "50 ms"}
    with Server(tmp_path / "data", env=env) as server:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("own"), "rows", 2)
        yield Topic(server, "own", connection)


def send(topic: Topic) -> None:
    with wire.connect(topic.server.address, deadline_s=30) as topic.connection:
        for partition in range(2):
            topic.send(partition, 1500)


def wait_for_all(topic: Topic, directory: Path, query: StreamingQuery) -> None:
    deadline_s = time.monotonic() + 90
    while len(written(directory)) < len(topic.rows()):
        assert time.monotonic() < deadline_s and query.exception() is None, query.exception()
        time.sleep(0.2)
    found = written(directory)
    assert len(found) == len(set(found)) and set(found) == topic.rows()


def orderly_restart(server: Server) -> None:
    server.stop()
    server.start()


def workers_killed(server: Server) -> None:
    for pid in server.worker_pids():
        os.kill(pid, signal.SIGKILL)


def all_killed(server: Server) -> None:
    server.kill_supervisor()
    server.start()


def away_for_30_seconds(server: Server) -> None:
    server.stop()
    time.sleep(30)
    server.start()


def _survives(spark: SparkSession, own: Topic, directory: Path, outages: list[Callable[[Server], None]]) -> None:
    send(own)
    query = start(spark, own, directory, once=False, maxOffsetsPerTrigger="700")
    try:
        for outage in outages:
            send(own)
            outage(own.server)
            send(own)
            wait_for_all(own, directory, query)
    finally:
        query.stop()


def test_a_stream_survives_restarts_and_kills(spark: SparkSession, own: Topic, tmp_path: Path) -> None:
    _survives(spark, own, tmp_path, [orderly_restart, workers_killed])


@pytest.mark.slow
def test_a_stream_survives_outages_of_half_a_minute(spark: SparkSession, own: Topic, tmp_path: Path) -> None:
    _survives(spark, own, tmp_path, [away_for_30_seconds, all_killed, workers_killed, away_for_30_seconds])


@pytest.mark.slow
def test_a_read_outlasts_half_a_minute_without_a_server(spark: SparkSession, own: Topic) -> None:
    """The plan is made, the tasks find nobody."""
    send(own)
    frame = load(spark, own, isolation="visible", columns="partition,offset,value")
    assert len(frame.take(1)) == 1
    own.server.stop()
    timer = threading.Timer(30, own.server.start)
    timer.start()
    found = rows(frame)
    timer.join()
    assert len(found) == len(set(found)) and set(found) == own.rows()
