"""Lake sinks under failing tasks and repeated commits: each row once, to a reader that is not Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.lake_tables import KINDS, table_of
from tests.spark.sink_child import options_of
from tests.spark.support import Topic
from tests.support.wide import wide_but


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


@pytest.mark.parametrize("kind", wide_but(["delta"], KINDS))
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
