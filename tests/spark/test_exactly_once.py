"""Lake sinks under kills of the driver before and after commits, and under failing tasks: each (partition, offset)
once, to a reader that is not Spark."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.sink_child import options_of
from tests.spark.support import Topic

ROOT = Path(__file__).parents[2]
RUN_TIMEOUT_S = 280
KINDS = ("delta", "iceberg", "parquet")


def run_child(topic: Topic, kind: str, directory: Path, *crash: str) -> None:
    """One run; with `crash` it must be killed. (The driver may see the end of the JVM first: status 1.)"""
    arguments = [kind, topic.server.address, topic.stream, str(directory), *crash]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.sink_child", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode in ((1, -signal.SIGKILL) if crash else (0,)), done.stderr[-3000:]


def table_of(kind: str, directory: Path) -> pa.Table:
    """What deltalake, pyiceberg or a listing of the directory shows."""
    if kind == "delta":
        from deltalake import DeltaTable

        return DeltaTable(str(directory / "table")).to_pyarrow_table()
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        options = options_of(kind, directory)
        catalog = {name.removeprefix("catalog."): value for name, value in options.items() if name != "table"}
        return load_catalog("default", **catalog).load_table("space.rows").scan().to_arrow()
    files = sorted((directory / "table").glob("batch=*/*.parquet"))
    return pa.concat_tables(pq.read_table(file, partitioning=None) for file in files)


def faults(table: pa.Table, topic: Topic) -> list[str]:
    """What is missing, doubled or different."""
    columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
    found = Counter(zip(*columns, strict=True))
    wanted = topic.rows()
    doubled = [f"{key[:2]} came {count} times" for key, count in found.items() if count > 1]
    missing = [f"{key[:2]} is missing" for key in wanted - found.keys()]
    return doubled + missing + [f"{key[:2]} was never sent" for key in found.keys() - wanted]


def test_a_driver_killed_behind_a_commit_doubles_nothing(topic: Topic, tmp_path: Path) -> None:
    """The short form: the batch that is done again was committed."""
    run_child(topic, "parquet", tmp_path, "after", "1")
    committed = table_of("parquet", tmp_path).num_rows
    assert 0 < committed < len(topic.rows())
    run_child(topic, "parquet", tmp_path)
    assert faults(table_of("parquet", tmp_path), topic) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_whole_drivers_of_one_query_double_nothing(topic: Topic, kind: str, tmp_path: Path) -> None:
    """Started at the same time on one checkpoint: one of them may be told and stop, what is there is there once."""
    arguments = [
        sys.executable,
        "-m",
        "tests.spark.sink_child",
        kind,
        topic.server.address,
        topic.stream,
        str(tmp_path),
    ]
    drivers = [
        subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        said = [each.communicate(timeout=RUN_TIMEOUT_S * 2)[1] for each in drivers]
    finally:
        for each in drivers:
            each.kill()
    told = [text for each, text in zip(drivers, said, strict=True) if each.returncode]
    assert len(told) <= 1, told
    assert all("another" in text or "CONCURRENT_STREAM_LOG_UPDATE" in text for text in told), told
    if len(told) == 1:
        run_child(topic, kind, tmp_path)  # what the survivor left, if it ended before the other was told
    assert faults(table_of(kind, tmp_path), topic) == []


@pytest.mark.slow
def test_a_lost_checkpoint_is_told_by_the_parquet_directory(topic: Topic, tmp_path: Path) -> None:
    """It is another query then; its rows would be there twice."""
    run_child(topic, "parquet", tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(AssertionError, match="belongs to the query"):
        run_child(topic, "parquet", tmp_path)
    assert faults(table_of("parquet", tmp_path), topic) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_killed_around_commits_loses_and_doubles_nothing(topic: Topic, kind: str, tmp_path: Path) -> None:
    run_child(topic, kind, tmp_path, "after", "1")
    committed = table_of(kind, tmp_path).num_rows
    run_child(topic, kind, tmp_path, "before", "3")
    assert table_of(kind, tmp_path).num_rows > committed, "batch 1 was there already, batch 2 is new"
    run_child(topic, kind, tmp_path)
    assert faults(table_of(kind, tmp_path), topic) == []


def test_the_comparison_sees_a_planted_duplicate_and_a_loss(topic: Topic) -> None:
    rows = sorted(topic.rows())
    table = pa.table({name: [row[i] for row in rows] for i, name in enumerate(("partition", "offset", "value"))})
    assert faults(table, topic) == []
    assert faults(pa.concat_tables([table, table.slice(7, 1)]), topic) == ["(0, 7) came 2 times"]
    assert faults(table.slice(1), topic) == ["(0, 0) is missing"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_committed_twice_is_there_once(spark: SparkSession, kind: str, tmp_path: Path) -> None:
    """Batch writes with a name and a version of their own: the second write is skipped."""
    if kind == "parquet":
        spark.range(5).write.format("shardd_parquet").option("path", str(tmp_path / "table")).option("appId", "a").mode(
            "append"
        ).save()
        spark.range(5).write.format("shardd_parquet").option("path", str(tmp_path / "table")).option("appId", "a").mode(
            "append"
        ).save()
    else:
        for _ in range(2):
            writer = spark.range(5).write.format(f"shardd_{kind}").options(**options_of(kind, tmp_path))
            writer.option("appId", "a").option("appVersion", "3").mode("append").save()
    assert table_of(kind, tmp_path).num_rows == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_fails_and_is_repeated_leaves_no_second_copy(
    spark: SparkSession, kind: str, tmp_path: Path
) -> None:
    from pyspark import TaskContext
    from pyspark.sql import functions as f
    from pyspark.sql.types import LongType

    def fail_once(n: int) -> int:
        context = TaskContext.get()
        if n == 3 and context is not None and context.attemptNumber() == 0:
            raise RuntimeError("planted")
        return n

    planted = f.udf(fail_once, LongType())
    rows = spark.range(1000).select(planted("id").alias("id"))
    rows.write.format(f"shardd_{kind}").options(**options_of(kind, tmp_path)).mode("append").save()
    assert sorted(table_of(kind, tmp_path).column("id").to_pylist()) == list(range(1000))


def test_complete_mode_exchanges_the_table(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    source = spark.readStream.format("shardd").options(
        **topic.options(columns="partition", startingOffsets="earliest", maxOffsetsPerTrigger="2500")
    )
    writer = source.load().groupBy("partition").count().writeStream.format("shardd_delta").outputMode("complete")
    writer = writer.option("path", str(tmp_path / "table")).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(100)
    assert sorted(table_of("delta", tmp_path).to_pylist(), key=lambda row: row["partition"]) == [
        {"partition": 0, "count": 3000},
        {"partition": 1, "count": 3000},
    ]


def test_another_query_may_not_write_into_the_same_parquet_directory(spark: SparkSession, tmp_path: Path) -> None:
    for number, application in enumerate(("first", "second")):
        writer = spark.range(3).write.format("shardd_parquet").option("path", str(tmp_path / "table"))
        writer = writer.option("appId", application).mode("append")
        if number == 0:
            writer.save()
        else:
            with pytest.raises(Exception, match="belongs to the query first"):
                writer.save()


def test_sinks_refuse_options_they_do_not_know(spark: SparkSession, tmp_path: Path) -> None:
    for kind, options, text in (
        ("delta", {"path": str(tmp_path), "schemaMerge": "true"}, "schemamerge"),
        ("delta", {"path": str(tmp_path), "mergeSchema": "yes"}, "must be true or false"),
        ("delta", {}, "needs the option 'path'"),
        ("iceberg", {"table": "a.b"}, "catalog.warehouse"),
        ("iceberg", {"table": "b", "catalog.warehouse": "file:///x"}, "namespace.name"),
        ("parquet", {"path": "s3://bucket/x"}, "local paths only"),
    ):
        with pytest.raises(Exception) as caught:
            spark.range(1).write.format(f"shardd_{kind}").options(**options).mode("append").save()
        assert text.lower() in str(caught.value).lower()
