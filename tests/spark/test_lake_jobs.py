"""Archive runs beside each other, audits of what is missing, vacuum beside a reader, views, long streams, and where
credentials do not go: on a real session and a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from shardd.spark import archive_listing, session
from shardd.spark.pipelines import aggregate, archive, archive_publish, audit, export, vacuum
from shardd.spark.pipelines.aggregate import Aggregation
from shardd.spark.pipelines.archive import Target
from shardd.spark.positions import TopicName
from shardd.spark.sinks.tables import CommitConflictError
from tests.spark.support import Topic, delete_sealed, settle, source_of
from tests.spark.test_pipelines import holds_exactly, stored, target_of

ROOT = Path(__file__).parents[2]
CHILD_TIMEOUT_S = 280.0


def name_of(topic: Topic) -> TopicName:
    return TopicName(topic.stream, topic.topic)


# ---- archive ----


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_an_archive_run_that_began_before_another_one_ended_is_told(topic: Topic, tmp_path: Path, kind: str) -> None:
    """Tasks as executors run them: two runs planned at different ends, the earlier plan commits last, task by task."""
    source = source_of(topic, path=str(topic.server.data_dir), maxRecordsPerPartition="1300")
    target = target_of(kind, tmp_path)
    early, _ = archive.plan(source, target)
    topic.send(0, 500)
    settle(topic)
    late, _ = archive.plan(source, target)
    results = [job.run() for job in late]
    if kind != "parquet":
        archive.commit(target, results)
    with pytest.raises((CommitConflictError, archive_listing.ArchiveConflictError), match="another run"):
        again = [job.run() for job in early]
        archive.commit(target, again)
    holds_exactly(target, topic)
    assert archive.plan(source, target)[0] == []


def test_a_second_archiver_is_told_and_fails(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    """The command itself, while another process holds the topic."""
    from typer.testing import CliRunner

    from shardd.cli.main import app

    options = [word for name, value in source_of(topic).options.items() for word in ("-o", f"{name}={value}")]
    words = ["pipeline", "archive", topic.name, "--to", f"parquet:{tmp_path}", *options]
    with archive_publish.alone(str(tmp_path), name_of(topic)):
        result = CliRunner().invoke(app, words)
    assert result.exit_code == 1 and f"another run archives '{topic.name}'" in result.stderr, result.output
    assert not list(tmp_path.rglob("*.parquet"))


def test_archive_fills_the_holes_of_a_killed_run(topic: Topic, tmp_path: Path) -> None:
    """Tasks end in any order: what is missing in front and between is archived, and nothing twice."""
    source = source_of(topic, path=str(topic.server.data_dir), maxRecordsPerPartition="700")
    target = target_of("parquet", tmp_path)
    jobs, _ = archive.plan(source, target)
    for job in jobs[1:4:2]:
        job.run()
    rest, _ = archive.plan(source, target)
    assert sum(job.slice.end - job.slice.start for job in rest) == 6000 - 2 * 700
    for job in reversed(rest):
        job.run()
    holds_exactly(target, topic)


def test_what_was_deleted_before_it_was_archived_is_recorded(topic: Topic, tmp_path: Path) -> None:
    """Told once, then recorded: later runs go on, and audit knows that the offsets are no missing file."""
    target = target_of("parquet", tmp_path)
    for job in archive.plan(source_of(topic), target)[0]:
        job.run()
    topic.send(0, 3000)
    settle(topic)
    delete_sealed(topic, 0)
    first = topic.bounds()[0].first
    for job in archive.plan(source_of(topic, failOnDataLoss="false"), target)[0]:
        job.run()
    assert archive.plan(source_of(topic), target)[0] == [], "nothing is asked for again"
    reports = audit.plan(source_of(topic), target.place)[1]
    assert [each["faults"] for each in reports] == [0, 0]
    rows = {(row["partition"], row["offset"]) for row in stored(target).to_pylist()}
    assert rows == {(p, n) for p, n, _ in topic.rows() if p == 1 or not 3000 <= n < first}


def test_audit_finds_missing_files_and_gaps(topic: Topic, tmp_path: Path) -> None:
    target = target_of("parquet", tmp_path)
    source = source_of(topic, maxRecordsPerPartition="500")
    for job in archive.plan(source, target)[0]:
        job.run()
    directory = Path(archive_listing.topic_path(target.place, name_of(topic)))
    assert [each["faults"] for each in audit.plan(source, target.place)[1]] == [0, 0]
    for partition, start in ((0, 0), (0, 1000), (0, 1500), (1, 1000)):
        (gone,) = directory.glob(f"{partition}-*-{start:020}-*.parquet")
        gone.unlink()
    delete_sealed(topic, 1)
    first = topic.bounds()[1].first
    assert first >= 1500, "the server does not have them, either"
    reports = audit.plan(source, target.place)[1]
    assert reports[0]["first_faults"] == [
        "offsets 0 to 500 are in no file of the archive",
        "offsets 1000 to 2000 are in no file of the archive",
    ]
    assert reports[1]["first_faults"] == ["offsets 1000 to 1500 are in no file of the archive"]


def test_a_reader_beside_vacuum_and_archive_loses_nothing(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    target = target_of("parquet", tmp_path)
    source = source_of(topic, path=str(topic.server.data_dir), maxRecordsPerPartition="1000")
    for job in archive.plan(source, target)[0]:
        job.run()
    for partition in range(2):
        delete_sealed(topic, partition)
    planned = session.read(
        spark, topic.name, columns="partition,offset,value", archivePath=target.place, **source_of(topic).options
    )
    planned.explain()
    leftover = Path(archive_listing.topic_path(target.place, name_of(topic))) / (
        archive_listing.file_name(0, 1, 0, 10) + f".{'0' * 32}.tmp"
    )
    leftover.write_bytes(b"x")
    os.utime(leftover, (0, 0))
    assert vacuum.vacuum("parquet", target.place, older_than_s=0, dry_run=False, properties={})["files"] == 1
    rows = Counter((row.partition, row.offset, bytes(row.value)) for row in planned.collect())
    assert set(rows) == topic.rows() and set(rows.values()) == {1}


# ---- sinks ----


def test_a_stream_is_refused_by_a_table_it_does_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    """Through Spark: the sentence comes out, and mergeSchema reaches the commit."""
    path = str(tmp_path / "table")
    spark.createDataFrame([(1, "a")], "n bigint, text string").write.format("shardd_delta").mode("append").save(path)
    wider = spark.createDataFrame([(2, "b", 3)], "n bigint, text string, more int")
    with pytest.raises(Exception, match="no column 'more'"):
        wider.write.format("shardd_delta").mode("append").save(path)
    wider.write.format("shardd_delta").option("mergeSchema", "true").mode("append").save(path)
    from deltalake import DeltaTable

    rows = sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda row: row["n"])
    assert rows == [{"n": 1, "text": "a", "more": None}, {"n": 2, "text": "b", "more": 3}]


# ---- aggregate, export ----


@pytest.mark.slow
def test_aggregate_counts_the_rows_of_all_batches(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    """More batches than Spark remembers (100; fewer here)."""
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "4")
    try:
        wanted = Aggregation.parse(None, "partition", "count", "length")
        source = source_of(topic, maxOffsetsPerTrigger="1000")
        more: dict[str, Any] = {"checkpoint": tmp_path / "c", "watermark": "10s", "follow": False}
        assert aggregate.run_stream(spark, source, wanted, str(tmp_path / "t"), **more)["rows"] == 6000
    finally:
        spark.conf.unset("spark.sql.streaming.numRecentProgressUpdates")


def test_views_of_different_topics_do_not_share_a_name(tmp_path: Path) -> None:
    assert export.view_names(["shop/orders"]) == {"shop/orders": "shop_orders"}
    for topics in (["a_b/c", "a/b_c"], ["a-b/c", "a.b/c", "a_b/c"], ["Shop/orders", "shop/orders", "shop/Orders"]):
        views = export.view_names([*topics, "other/topic"])
        assert len({each.casefold() for each in views.values()}) == len(topics) + 1
        assert views["other/topic"] == "other_topic"
        assert views == export.view_names(["other/topic", *reversed(topics)]), "whatever the order"


def test_checkpoints_of_different_topics_do_not_share_a_directory(topic: Topic, tmp_path: Path) -> None:
    from shardd.spark.pipelines.common import Source

    options = {"username": "u", "password": "p"}
    topics = ("a_b/c", "a/b_c", "a-b/c", "a/b/c".replace("b/", "b-"), "shop/orders", "shop_orders/x")
    found = {aggregate.checkpoint_of(tmp_path, Source(each, options)) for each in topics}
    assert len(found) == len(topics) and tmp_path / "aggregate-shop_orders" in found
    earlier = tmp_path / "aggregate-a_b_c"
    for part, text in (("commits", ""), ("offsets", 'v1\n{}\n{"v":1,"topics":{"a/b_c":{"p":{"0":[5,7]},"stride":1}}}')):
        (earlier / part).mkdir(parents=True)
        (earlier / part / "0").write_text(text)
    assert aggregate.checkpoint_of(tmp_path, Source("a/b_c", options)) == earlier, "it goes on where it was"
    assert aggregate.checkpoint_of(tmp_path, Source("a_b/c", options)) != earlier


# ---- credentials ----


def test_credentials_are_in_no_representation() -> None:
    from shardd.spark.options import parse
    from shardd.spark.reading import TaskSettings

    given = {"subscribe": "shop/orders", "username": "u", "password": "sesame-7"}
    settings = TaskSettings.of(parse(given, streaming=False), ("offset",))
    properties = {"warehouse": "file:///w", "token": "sesame-8", "s3.secret-access-key": "sesame-9"}
    target = Target.parse("iceberg:a.b", properties)
    for each in (settings, target, target.table(), archive.ArchiveJob(settings, None, target, "run")):  # type: ignore[arg-type]
        assert "sesame" not in repr(each) and "sesame" not in str(each)


@pytest.mark.slow
def test_credentials_are_in_no_file_of_a_query(topic: Topic, tmp_path: Path) -> None:
    """Sink, checkpoint, streaming progress, event log (history), output of the driver, an error of a task."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.spark.secrets_child", topic.server.address, topic.name, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "SHARDD_USERNAME": "", "SHARDD_PASSWORD": ""},
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT_S,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    said = json.loads(child.stdout.splitlines()[-1])
    assert said["rows"] == 6000 and said["errors"] == 2 and said["progress"] > 0
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    kinds = {each.relative_to(tmp_path).parts[0] for each in files}
    assert {"events", "table", "checkpoint", "warehouse", "logs"} <= kinds
    found = [str(each) for each in files if any(secret in each.read_bytes() for secret in (b"sesame-7", b"sesame-8"))]
    assert found == [] and "sesame" not in child.stdout + child.stderr
