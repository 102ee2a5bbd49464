"""archive, audit and vacuum on a real session and a real server; results are read back without Spark. The other
pipelines: test_pipelines_more.py; the command line: test_pipeline_commands.py."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from shardd.log import layout
from shardd.spark import archive_files, session
from shardd.spark.pipelines import archive, audit, vacuum
from shardd.spark.pipelines.archive import Target
from shardd.spark.pipelines.common import PipelineError
from shardd.spark.sinks.tables import CommitConflictError
from tests.spark.support import Topic, delete_sealed, flip, segment_path, settle, source_of
from tests.support.wide import wide, wide_but

ROOT = Path(__file__).parents[2]
CHILD_TIMEOUT_S = 280.0
KINDS = ("parquet", "delta", "iceberg")


def target_of(kind: str, directory: Path) -> Target:
    if kind != "iceberg":
        return Target.parse(f"{kind}:{directory / kind}", {})
    catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}
    return Target.parse("iceberg:space.rows", catalog)


def stored(target: Target) -> pa.Table:
    """All that the archive holds, by a reader that knows nothing of Spark."""
    if target.kind == "parquet":
        return pa.concat_tables(pq.ParquetFile(each).read() for each in sorted(Path(target.place).rglob("*.parquet")))
    if target.kind == "delta":
        return pa.table(DeltaTable(target.place).to_pyarrow_table())
    from pyiceberg.catalog import load_catalog

    return load_catalog("default", **dict(target.properties)).load_table(target.place).scan().to_arrow()


def holds_exactly(target: Target, topic: Topic) -> None:
    table = stored(target)
    columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
    counted = Counter(zip(*columns, strict=True))
    assert [row for row, times in counted.items() if times > 1] == [], "doubled rows"
    assert set(counted) == topic.rows()


# ---- archive ----


@pytest.mark.parametrize("kind", wide_but(["parquet", "iceberg"], KINDS))
def test_archive_holds_every_row_once_and_a_second_run_adds_only_the_new(
    spark: SparkSession, topic: Topic, tmp_path: Path, kind: str
) -> None:
    source = source_of(topic, path=str(topic.server.data_dir), maxRecordsPerPartition="1300")
    target = target_of(kind, tmp_path)
    made = archive.archive(spark, source, target)
    assert made["rows"] == 6000 and made["files"] == 6
    holds_exactly(target, topic)
    assert archive.archive(spark, source, target)["rows"] == 0
    topic.send(0, 250)
    settle(topic)
    assert archive.archive(spark, source, target)["rows"] == 250
    holds_exactly(target, topic)


def test_archive_keeps_what_makes_a_record(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    target = target_of("parquet", tmp_path)
    archive.archive(spark, source_of(topic), target)
    first = stored(target).filter(pa.compute.field("offset") == 0).to_pylist()[0]
    polled = topic.connection.poll(topic.stream, "rows", partition=first["partition"], count=1).messages[0]
    assert first["headersRaw"] == polled.headers and first["checksum"] == struct.unpack("<q", polled.raw[:8])[0]
    assert first["id"] == polled.id[::-1] and first["value"] == polled.payload


@pytest.mark.parametrize("files", [wide(0), 3])
def test_archive_goes_on_after_a_kill(spark: SparkSession, topic: Topic, tmp_path: Path, files: int) -> None:
    target = target_of("parquet", tmp_path)
    arguments = (topic.server.address, topic.name, f"parquet:{target.place}", str(topic.server.data_dir), str(files))
    child = subprocess.run(
        [sys.executable, "-m", "tests.spark.archive_child", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT_S,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    root = Path(target.place)
    assert len(list(root.rglob("*.parquet"))) == files and len(list(root.rglob("*.tmp"))) == 1
    done = archive.archive(spark, source_of(topic, path=str(topic.server.data_dir)), target)["rows"]
    assert done < 6000 if files else done == 6000
    holds_exactly(target, topic)
    assert vacuum.vacuum("parquet", target.place, older_than_s=0, dry_run=False, properties={})["files"] == 1
    holds_exactly(target, topic)


@pytest.mark.parametrize("kind", [wide("delta"), "iceberg"])
def test_files_without_their_commit_are_written_again(
    spark: SparkSession, topic: Topic, tmp_path: Path, kind: str
) -> None:
    """A driver that died between the tasks and the commit, or between two commits."""
    source, target = source_of(topic, path=str(topic.server.data_dir)), target_of(kind, tmp_path)
    jobs, _ = archive.plan(source, target)
    results = [job.run() for job in jobs]
    archive.commit(target, [each for each in results if each["partition"] == 0])
    assert archive.archive(spark, source, target)["rows"] == 3000
    with pytest.raises(CommitConflictError, match="another run has committed meanwhile"):
        archive.commit(target, [each for each in results if each["partition"] == 0])  # the old driver, late
    holds_exactly(target, topic)
    properties = dict(target.properties)
    would = vacuum.vacuum(kind, target.place, older_than_s=0, dry_run=True, properties=properties)
    assert would["files"] == 1 and would["bytes"] > 0
    assert vacuum.vacuum(kind, target.place, older_than_s=3600, dry_run=False, properties=properties)["files"] == 0
    assert vacuum.vacuum(kind, target.place, older_than_s=0, dry_run=False, properties=properties)["files"] == 1
    holds_exactly(target, topic)


def test_archive_publishes_no_damaged_range(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    log = segment_path(topic, 1, 0)
    flip(log, -1)
    source, target = source_of(topic, path=str(topic.server.data_dir)), target_of("parquet", tmp_path)
    with pytest.raises(Exception, match="fails its checksum"):
        archive.archive(spark, source, target)
    assert not list(Path(target.place).rglob("1-*.parquet")), "a file with the damaged range has its name"


def test_deleted_history_stops_the_archive_unless_it_is_left_out(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    target = target_of("parquet", tmp_path)
    archive.archive(spark, source_of(topic), target)
    topic.send(0, 3000)
    settle(topic)
    delete_sealed(topic, 0)
    with pytest.raises(PipelineError, match=r"offsets 3000 to \d+ were deleted before they were archived"):
        archive.archive(spark, source_of(topic), target)
    first = topic.bounds()[0].first
    done = archive.archive(spark, source_of(topic, failOnDataLoss="false"), target)
    assert done["rows"] == 6000 - first


def test_auto_reads_archive_and_live_tail_as_one(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    target = target_of("parquet", tmp_path)
    archive.archive(spark, source_of(topic, path=str(topic.server.data_dir)), target)
    for partition in range(2):
        delete_sealed(topic, partition)
        assert 0 < topic.bounds()[partition].first < 3000
        topic.send(partition, 1200)
    settle(topic)
    options = {**source_of(topic).options, "archivePath": target.place, "path": str(topic.server.data_dir)}
    names = "partition,offset,value,headers,checksumOk"
    rows = session.read(spark, topic.name, columns=names, **options).collect()
    found = [(row.partition, row.offset, bytes(row.value)) for row in rows]
    assert len(found) == len(set(found)) and set(found) == topic.rows()
    assert all(row.checksumOk for row in rows)
    assert all(len(row.headers) == (row.offset % 10 == 0) for row in rows)


# ---- audit ----


def audited(spark: SparkSession, topic: Topic, archive_root: str | None = None) -> tuple[int, str]:
    """(number of faults, where and what as text)."""
    result = audit.audit(spark, source_of(topic, path=str(topic.server.data_dir)), archive_root)
    return result["faults"], json.dumps(result["damaged"])


def test_audit_of_healthy_data_is_clean(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    target = target_of("parquet", tmp_path)
    archive.archive(spark, source_of(topic), target)
    result = audit.audit(spark, source_of(topic, path=str(topic.server.data_dir)), target.place)
    assert result["faults"] == 0 and result["damaged"] == []
    assert result["rows"] == 2 * 6000, "all rows of the log and all of the archive"
    live = audit.audit(spark, source_of(topic), None)
    assert live["faults"] == 0 and live["rows"] == 6000


def plant_in_payload(log: Path) -> str:
    flip(log, -1)
    return "fails its checksum"


def plant_in_lengths(log: Path) -> str:
    flip(log, 55)  # the highest byte of the first record's payload length
    return "offset"


def plant_a_cut(log: Path) -> str:
    os.truncate(log, log.stat().st_size - 10)
    return "ends inside the message"


def plant_behind_the_end(log: Path) -> str:
    with log.open("ab") as file:
        file.write(b"more")
    return "4 bytes stand behind the last message"


def plant_in_index(log: Path) -> str:
    flip(layout.segment_index(log.parent, int(log.stem)), 16 * 5 + 4)
    return "index entry of message 5 of the segment contradicts the log"


def plant_a_short_index(log: Path) -> str:
    index = layout.segment_index(log.parent, int(log.stem))
    os.truncate(index, index.stat().st_size - 16)
    return "the index has"


PLANTED = (plant_in_payload, plant_in_lengths, plant_a_cut, plant_behind_the_end, plant_in_index, plant_a_short_index)


def test_audit_finds_planted_damage(spark: SparkSession, topic: Topic) -> None:
    """Each in a segment of its own; found all in one run, with the file's name."""
    for partition in range(2):
        topic.send(partition, 3000)  # three sealed segments each
    settle(topic)
    places = [segment_path(topic, n % 2, n // 2) for n in range(len(PLANTED))]
    texts = [plant(log) for plant, log in zip(PLANTED, places, strict=True)]
    faults, said = audited(spark, topic)
    damaged = {each["where"]: each for each in json.loads(said)}
    assert set(damaged) == {str(each) for each in places} and faults >= len(PLANTED)
    for log, text in zip(places, texts, strict=True):
        assert any(text in each for each in damaged[str(log)]["first_faults"]), (text, damaged[str(log)])


@pytest.mark.parametrize("columns", [("offset", "timestamp"), ("value",)])
def test_audit_finds_damage_in_the_archive(
    spark: SparkSession, topic: Topic, tmp_path: Path, columns: tuple[str, ...]
) -> None:
    target = target_of("parquet", tmp_path)
    archive.archive(spark, source_of(topic), target)
    file = next(Path(target.place).rglob("0-*.parquet"))
    metadata = pq.ParquetFile(file).metadata.row_group(0)
    for i in range(metadata.num_columns):
        column = metadata.column(i)
        if column.path_in_schema in columns:
            flip(file, column.data_page_offset + column.total_compressed_size // 2)
    faults, said = audited(spark, topic, target.place)
    assert faults and [each["where"] for each in json.loads(said)] == [str(file)]
    with pytest.raises(archive_files.DamagedArchiveError, match=file.name):
        list(
            archive_files.read(
                str(file), columns, stream=topic.stream, topic="rows", key_header=None, start=0, end=3000
            )
        )


def test_audit_finds_a_row_of_the_archive_that_is_not_what_was_sent(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """Written anew with another value: the pages are whole, the record is not."""
    target = target_of("parquet", tmp_path)
    archive.archive(spark, source_of(topic), target)
    file = next(Path(target.place).rglob("0-*.parquet"))
    table = pq.ParquetFile(file).read()
    values = table.column("value").to_pylist()
    values[17] += b"!"
    pq.write_table(table.set_column(table.schema.get_field_index("value"), "value", pa.array(values)), file)
    faults, said = audited(spark, topic, target.place)
    assert faults == 1 and "1 messages from offset 0 on fail their checksum" in said
