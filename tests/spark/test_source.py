"""The source on a real session and a real server: batch, paths, streams, data loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from shardd.spark import columns, session
from tests.spark.proxies import StockProxy
from tests.spark.support import Topic, delete_sealed, settle
from tests.support.wide import wide


def load(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return spark.read.format("shardd").options(**topic.options(**options)).load()


def rows(frame: DataFrame) -> list[tuple[int, int, bytes]]:
    found = frame.select("partition", "offset", "value").collect()
    return [(row.partition, row.offset, bytes(row.value)) for row in found]


def exactly(frame: DataFrame, topic: Topic) -> None:
    found = rows(frame)
    assert len(found) == len(set(found)), "doubled rows"
    assert set(found) == topic.rows()


def fails(action: Any, *texts: str) -> None:
    with pytest.raises(Exception) as caught:
        action()
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize("mode", ["live", wide("auto"), "auto-with-path"])
def test_every_row_comes_once(spark: SparkSession, topic: Topic, mode: str) -> None:
    options = {"readMode": mode.removesuffix("-with-path")}
    if mode == "auto-with-path":
        options["path"] = str(topic.server.data_dir)
    exactly(load(spark, topic, **options), topic)


def test_cuts_inside_segments_lose_and_double_nothing(spark: SparkSession, topic: Topic) -> None:
    frame = load(spark, topic, path=str(topic.server.data_dir), maxRecordsPerPartition="171", batchBytes="4096")
    assert frame.rdd.getNumPartitions() >= 2 * 3000 // 171
    exactly(frame, topic)


def test_cold_reads_end_with_the_last_sealed_segment(spark: SparkSession, topic: Topic) -> None:
    sealed = sum(max(s.end for s in each.segments if s.sealed) for each in topic.bounds())
    frame = load(spark, topic, readMode="cold", path=str(topic.server.data_dir), columns="offset")
    assert frame.count() == sealed > 0


def test_the_schema_is_kafkas_and_a_given_one_prunes(spark: SparkSession, topic: Topic) -> None:
    assert load(spark, topic).columns == list(columns.default_names())
    pruned = spark.read.format("shardd").schema("value binary, offset long").options(**topic.options()).load()
    assert pruned.columns == ["value", "offset"] and pruned.count() == 6000
    frame = session.read(spark, topic.name, columns="offset,partition", **_without_topic(topic))
    assert frame.columns == ["offset", "partition"] and frame.count() == 6000


def _without_topic(topic: Topic) -> dict[str, str]:
    return {name: value for name, value in topic.options().items() if name != "subscribe"}


def test_headers_and_key(spark: SparkSession, topic: Topic) -> None:
    frame = load(spark, topic, includeHeaders="true", keyHeader="kind")
    found = frame.where("offset < 20 and partition = 0").orderBy("offset").select("key", "headers").collect()
    assert [bytes(row.key) if row.key is not None else None for row in found[::10]] == [b"0", b"1"]
    assert found[1].key is None and found[1].headers == []
    assert [(each.key, bytes(each.value)) for each in found[0].headers] == [("kind", b"0")]


def test_sql_views_work(spark: SparkSession, topic: Topic) -> None:
    pairs = ", ".join(f"{name} '{value}'" for name, value in topic.options(columns="partition,offset").items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW rows USING shardd OPTIONS ({pairs})")
    assert spark.sql("SELECT partition, count(*) c FROM rows GROUP BY 1 ORDER BY 1").collect() == [(0, 3000), (1, 3000)]


def test_offsets_bound_the_range(spark: SparkSession, topic: Topic) -> None:
    start = json.dumps({topic.name: {"0": 10, "1": -1}})
    end = json.dumps({topic.name: {"0": 25, "1": -1}})
    found = rows(load(spark, topic, startingOffsets=start, endingOffsets=end))
    assert sorted(found) == [(0, n, topic.payloads[0][n]) for n in range(10, 25)]


def test_a_time_bounds_the_range(spark: SparkSession, topic: Topic) -> None:
    middle = load(spark, topic).selectExpr("unix_millis(max(timestamp)) + 1000").collect()[0][0]
    fails(lambda: load(spark, topic, startingTimestamp=str(middle)).count(), "startingOffsetsByTimestampStrategy")
    more = {"startingTimestamp": str(middle), "startingOffsetsByTimestampStrategy": "latest"}
    assert load(spark, topic, **more).count() == 0
    assert load(spark, topic, startingTimestamp="2000-01-01").count() == 6000


def test_patterns_and_assignments(spark: SparkSession, topic: Topic) -> None:
    options = _without_topic(topic)
    by_pattern = spark.read.format("shardd").options(**options, subscribePattern=f"{topic.stream}/r.*").load()
    assert by_pattern.count() == 6000
    one = spark.read.format("shardd").options(**options, assign=json.dumps({topic.name: [1]})).load()
    assert {row.partition for row in one.select("partition").distinct().collect()} == {1}
    nothing = spark.read.format("shardd").options(**options, subscribePattern="no-such/.*").load()
    assert nothing.count() == 0, "an empty plan is one task without a slice"


def test_bad_input_is_one_sentence(spark: SparkSession, topic: Topic) -> None:
    fails(lambda: load(spark, topic, startingofset="1"), "did you mean 'startingOffsets'?")
    fails(lambda: load(spark, topic, subscribe="nope/rows").count(), "there is no stream 'nope'")
    fails(lambda: load(spark, topic, subscribe=f"{topic.stream}/nope").count(), "there is no topic")
    fails(lambda: load(spark, topic, password="wrong").count(), "refuses the credentials")
    retry = {"servers": "127.0.0.1:1", "fetchOffset.numRetries": "0"}
    fails(lambda: load(spark, topic, **retry).count(), "no server of 127.0.0.1:1 answers")
    beyond = json.dumps({topic.name: {"0": 9999, "1": 0}})
    fails(lambda: load(spark, topic, startingOffsets=beyond).count(), "starts at offset 9999, but ends at 3000")
    missing = json.dumps({topic.name: {"0": 1}})
    fails(lambda: load(spark, topic, startingOffsets=missing).count(), "does not name partition 1")
    fails(lambda: spark.read.format("shardd").schema("offset int").options(**topic.options()).load().count(), "bigint")


def test_deleted_history_is_data_loss_unless_it_is_accepted(spark: SparkSession, topic: Topic) -> None:
    delete_sealed(topic, 0)
    first = topic.bounds()[0].first
    assert first > 0
    start = json.dumps({topic.name: {"0": 5, "1": 0}})
    fails(lambda: load(spark, topic, startingOffsets=start).count(), f"begins at {first}", "failOnDataLoss=false")
    found = rows(load(spark, topic, startingOffsets=start, failOnDataLoss="false"))
    assert sorted(n for p, n, _ in found if p == 0) == list(range(first, 3000))


def test_a_segment_that_goes_away_between_plan_and_read_is_read_from_the_server(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """`path` names a place where the files are not (retention, or an executor without the mount)."""
    exactly(load(spark, topic, path=str(tmp_path)), topic)


def test_a_damaged_segment_is_named(spark: SparkSession, topic: Topic) -> None:
    segment = topic.bounds()[1].segments[0]
    log = next(topic.server.data_dir.glob("streams/*/topics/*/partitions/1/00000000000000000000.log"))
    log = next(
        each
        for each in log.parents[5].rglob("partitions/1/00000000000000000000.log")
        if each.stat().st_size == segment.size_bytes and topic.payloads[1][0] in each.read_bytes()[:200]
    )
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    path = {"path": str(topic.server.data_dir), "readMode": "cold"}
    fails(
        lambda: load(spark, topic, **path).agg({"offset": "max"}).collect(), f"offset {segment.end - 1} fails", str(log)
    )
    report = load(spark, topic, **path, verifyChecksums="report")
    bad = report.where("not checksumOk").select("partition", "offset").collect()
    assert [(row.partition, row.offset) for row in bad] == [(1, segment.end - 1)]


# ---- streams ----


def run_stream(spark: SparkSession, topic: Topic, directory: Path, **options: str) -> list[int]:
    """One AvailableNow run into Parquet; rows of each batch."""
    source = spark.readStream.format("shardd").options(**topic.options(**options)).load()
    writer = source.select("partition", "offset", "value").writeStream.format("shardd_parquet")
    writer = writer.option("path", str(directory / "out")).option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    return [int(each["numInputRows"]) for each in query.recentProgress if each["numInputRows"]]


def written(spark: SparkSession, directory: Path) -> list[tuple[int, int, bytes]]:
    return rows(spark.read.parquet(str(directory / "out")))


def test_a_stream_stops_restarts_and_grows_without_loss_or_repeat(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    batches = run_stream(spark, topic, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="2500")
    assert len(batches) == 3 and max(batches) <= 2502
    topic.send(1, 700)
    topic.connection.request(402, _partitions_request(topic, 1))
    topic.send(2, 300)
    settle(topic)
    run_stream(spark, topic, tmp_path, startingOffsets="earliest")
    found = written(spark, tmp_path)
    assert len(found) == len(set(found)) and set(found) == topic.rows()


def _partitions_request(topic: Topic, count: int) -> bytes:
    from tests.support import wire

    return wire.identifier(topic.stream) + wire.identifier("rows") + count.to_bytes(4, "little")


def test_a_purge_under_a_checkpoint_is_data_loss(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    run_stream(spark, topic, tmp_path, startingOffsets="earliest")
    topic.connection.purge_topic(topic.stream, "rows")
    topic.payloads.clear()
    topic.send(0, 5000)
    settle(topic)
    fails(lambda: run_stream(spark, topic, tmp_path, startingOffsets="earliest"), "was purged, made anew, restored")


def test_a_server_without_our_extensions_is_read_over_the_classic_wire(spark: SparkSession, topic: Topic) -> None:
    delete_sealed(topic, 1)
    first = topic.bounds()[1].first
    with StockProxy(topic.server.address) as stock:
        found = rows(load(spark, topic, servers=stock.address))
        assert stock.refused > 0
    assert len(found) == len(set(found))
    assert set(found) == {row for row in topic.rows() if row[0] == 0 or row[1] >= first}
