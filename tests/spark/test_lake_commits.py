"""Commits of the lake sinks by real processes at the same time, rows that do not fit, memory that expires, a full disk.
No Spark: the classes are what its driver calls."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardd.spark.sinks.tables import CommitConflictError, SchemaMismatchError, Step
from tests.spark import lake
from tests.spark.lake import NUMBERS, numbers, rows_in, table_of, written

ROOT = Path(__file__).parents[2]
KINDS = ("delta", "iceberg", "parquet")
START_DELAY_S = 0.1
CHILD_TIMEOUT_S = 280.0


def in_two_processes(kind: str, directory: Path, work: str, given: tuple[int, int]) -> list[list[Any]]:
    """What became of each commit, of both."""
    table_of(kind, directory).version("q")  # the SQL catalog of pyiceberg makes its tables without a lock
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.spark.lake", kind, str(directory), work, str(each)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for each in given
    ]
    try:
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        start = f"{time.time() + START_DELAY_S}\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write(start)
            child.stdin.flush()
        said = [child.communicate(timeout=CHILD_TIMEOUT_S)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    assert [child.returncode for child in children] == [0, 0]
    return [json.loads(each) for each in said]


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow), "parquet"])
def test_a_batch_that_two_processes_commit_is_there_once(kind: str, tmp_path: Path) -> None:
    """Whole drivers of one query: for each batch exactly one wins."""
    table_of(kind, tmp_path)
    first, second = in_two_processes(kind, tmp_path, "repeat", (0, 1000))
    found = sorted(row["n"] for row in rows_in(kind, tmp_path))
    wanted = []
    for batch, (one, other) in enumerate(zip(first, second, strict=True)):
        assert [one, other].count(True) == 1, (batch, one, other)
        wanted += [(0 if one is True else 1000) + 3 * batch + n for n in range(3)]
        if kind == "parquet":
            assert "was committed by another driver" in str(other if one is True else one)
    assert found == sorted(wanted)
    assert table_of(kind, tmp_path).version("q") == lake.BATCHES - 1


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_overlapping_archive_runs_write_no_row_twice(kind: str, tmp_path: Path) -> None:
    """Both go on where the table stands, to different ends, at the same moments: who loses is told."""
    outcomes = in_two_processes(kind, tmp_path, "append", (3, 5))
    total = sum(count for count, each in zip((3, 5), outcomes, strict=True) for one in each if one is True)
    assert total and sorted(row["n"] for row in rows_in(kind, tmp_path)) == list(range(total))
    told = [one for each in outcomes for one in each if one is not True]
    assert all("another run has committed meanwhile" in str(one) for one in told), told


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_commit_proves_where_the_table_stands(kind: str, tmp_path: Path) -> None:
    """Several partitions in one transaction: all of them, or none."""
    table = table_of(kind, tmp_path)
    one, other = written(table, numbers(0, 3)), written(table, numbers(100, 3))
    steps = (Step("a", 3, None, proven=True), Step("b", 103, None, proven=True))
    assert table.commit(one + other, NUMBERS, steps)
    late = written(table, numbers(0, 5))
    for begin in (None, 2, 4):
        with pytest.raises(CommitConflictError, match="'a' stands at 3"):
            table.commit(late, NUMBERS, (Step("b", 108, 103, proven=True), Step("a", 5, begin, proven=True)))
    assert (table.version("a"), table.version("b")) == (3, 103) and len(rows_in(kind, tmp_path)) == 6
    assert table.commit(written(table, numbers(3, 2)), NUMBERS, (Step("a", 5, 3, proven=True),))
    assert sorted(row["n"] for row in rows_in(kind, tmp_path)) == [0, 1, 2, 3, 4, 100, 101, 102]


# ---- rows that do not fit ----

FITTING = pa.table({"n": pa.array([1, 2], pa.int64()), "text": ["a", "b"]})
MISFITS = {
    "extra column": (pa.table({"n": [3], "text": ["c"], "more": [1]}), "no column 'more'.*mergeSchema"),
    "changed type": (pa.table({"n": ["three"], "text": ["c"]}), "column 'n' is string, but long in the table"),
    "narrower type": (pa.table({"n": pa.array([3], pa.int32()), "text": ["c"]}), "column 'n' is integer, but long"),
    "other case": (pa.table({"N": [3], "text": ["c"]}), "column 'N', the table calls it 'n'"),
}


@pytest.mark.parametrize("name", MISFITS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_delta_refuses_rows_that_do_not_fit(name: str, overwrite: bool, tmp_path: Path) -> None:
    table, (rows, said) = table_of("delta", tmp_path), MISFITS[name]
    table.commit(written(table, FITTING), FITTING.schema, (Step("q", 0),))
    with pytest.raises(SchemaMismatchError, match=said):
        table.commit(written(table, rows), rows.schema, (Step("q", 1),), overwrite=overwrite)
    assert rows_in("delta", tmp_path) == FITTING.to_pylist() and table.version("q") == 0


def test_delta_leaves_a_column_null_that_the_rows_do_not_have(tmp_path: Path) -> None:
    table = table_of("delta", tmp_path)
    table.commit(written(table, FITTING), FITTING.schema, (Step("q", 0),))
    table.commit(written(table, numbers(3, 1)), NUMBERS, (Step("q", 1),))
    assert sorted(rows_in("delta", tmp_path), key=lambda row: row["n"])[2] == {"n": 3, "text": None}


def test_delta_adds_columns_with_merge_schema(tmp_path: Path) -> None:
    from shardd.spark.sinks.delta import DeltaLake

    table = DeltaLake(str(tmp_path / "table"), merge_schema=True)
    table.commit(written(table, FITTING), FITTING.schema, (Step("q", 0),))
    rows, _ = MISFITS["extra column"]
    assert table.commit(written(table, rows), rows.schema, (Step("q", 1),))
    assert not table.commit(written(table, rows), rows.schema, (Step("q", 1),)), "the batch is there"
    found = sorted(rows_in("delta", tmp_path), key=lambda row: row["n"])
    assert found == [{**row, "more": None} for row in FITTING.to_pylist()] + rows.to_pylist()
    changed, said = MISFITS["changed type"]
    with pytest.raises(SchemaMismatchError, match=said):
        table.commit(written(table, changed), changed.schema, (Step("q", 2),))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"partition_by": ["text"]}, "partitioned by text"),
        ({"configuration": {"delta.setTransactionRetentionDuration": "interval 1 day"}}, "forgets its transactions"),
        ({"constraint": {"small": "n < 10"}}, "CHECK constraints"),
        ({"not_null": True}, "column 'n' is NOT NULL"),
    ],
)
def test_delta_refuses_tables_that_ask_more_of_a_writer(made: dict[str, Any], said: str, tmp_path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    constraint, not_null = made.pop("constraint", None), made.pop("not_null", False)
    start = FITTING if not not_null else FITTING.cast(FITTING.schema.set(0, pa.field("n", pa.int64(), nullable=False)))
    write_deltalake(str(tmp_path / "table"), start, **made)
    if constraint:
        DeltaTable(str(tmp_path / "table")).alter.add_constraint(constraint)
    table = table_of("delta", tmp_path)
    with pytest.raises(SchemaMismatchError, match=said):
        table.commit(written(table, FITTING), FITTING.schema, (Step("q", 0),))
    assert len(rows_in("delta", tmp_path)) == 2


@pytest.mark.parametrize("name", ["extra column", "changed type"])
def test_iceberg_refuses_rows_that_do_not_fit(name: str, tmp_path: Path) -> None:
    table, rows = table_of("iceberg", tmp_path), MISFITS[name][0]
    table.commit(written(table, FITTING), FITTING.schema, (Step("q", 0),))
    with pytest.raises(SchemaMismatchError, match="the rows do not fit into the table"):
        table.commit(written(table, rows), rows.schema, (Step("q", 1),))
    assert rows_in("iceberg", tmp_path) == FITTING.to_pylist() and table.version("q") == 0


# ---- memory ----


def test_iceberg_remembers_its_commits_when_snapshots_expire(tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    table = table_of("iceberg", tmp_path)
    for batch in range(3):
        assert table.commit(written(table, numbers(3 * batch, 3)), NUMBERS, (Step("q", batch),))
    opened = load_catalog("default", **lake.catalog_of(tmp_path)).load_table("space.rows")
    opened.append(numbers(100, 1))  # another writer: the newest snapshot is none of ours
    opened.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
    opened.refresh()
    assert len(opened.snapshots()) == 1, "nothing is left but the newest"
    assert table.version("q") == 2
    assert not table.commit(written(table, numbers(6, 3)), NUMBERS, (Step("q", 2),)), "the batch is there"
    assert sorted(row["n"] for row in rows_in("iceberg", tmp_path)) == [*range(9), 100]


def test_iceberg_reads_what_earlier_versions_wrote_into_snapshots(tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    table = table_of("iceberg", tmp_path)
    assert table.commit(written(table, numbers(0, 3)), NUMBERS, (Step("other", 0),))
    opened = load_catalog("default", **lake.catalog_of(tmp_path)).load_table("space.rows")
    old = written(table, numbers(3, 3))
    opened.add_files([f"file://{old[0].path}"], snapshot_properties={"shardd.application": "q", "shardd.version": "7"})
    assert table.version("q") == 7
    assert not table.commit(written(table, numbers(3, 3)), NUMBERS, (Step("q", 7),))
    assert table.commit(written(table, numbers(6, 3)), NUMBERS, (Step("q", 8),)) and table.version("q") == 8
    assert len(rows_in("iceberg", tmp_path)) == 9


# ---- the parquet directory ----


def test_a_parquet_directory_belongs_to_the_first_of_two_queries(tmp_path: Path) -> None:
    table = table_of("parquet", tmp_path)
    table.commit(written(table, numbers(0, 3)), NUMBERS, (Step("first", 0),))
    with pytest.raises(Exception, match="belongs to the query first, this is second"):
        table.commit(written(table, numbers(0, 3)), NUMBERS, (Step("second", 0),))
    assert len(rows_in("parquet", tmp_path)) == 3


def test_a_batch_without_rows_is_there_once_too(tmp_path: Path) -> None:
    """An empty directory could be replaced by a rename."""
    one, other = table_of("parquet", tmp_path), table_of("parquet", tmp_path)
    assert one.commit([], NUMBERS, (Step("q", 0),))
    with pytest.raises(CommitConflictError):
        other.commit(written(other, numbers(0, 3)), NUMBERS, (Step("q", 0),))
    assert not table_of("parquet", tmp_path).commit([], NUMBERS, (Step("q", 0),)), "a repetition after a restart"
    assert rows_in("parquet", tmp_path) == []


# ---- full disk ----


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], check=False)
    if mounted.returncode:
        pytest.skip("needs root to mount a small file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_commits_nothing_and_loses_nothing(kind: str, small_disk: Path) -> None:
    table = table_of(kind, small_disk)
    assert table.commit(written(table, numbers(0, 3)), NUMBERS, (Step("q", 0),))
    noise = pa.table({"n": np.frombuffer(random.Random(1).randbytes(4 << 20), np.int64)})  # does not get smaller
    with pytest.raises(OSError, match="space"):
        written(table, noise)
    _, directory = table.place()
    left = [each for each in Path(directory).rglob("*.parquet") if each.parent.name != "batch=0"]
    assert len(left) == (0 if kind == "parquet" else 1), "nothing is left of the file that did not fit"
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="space"):
        for _ in range(1024):
            file.write(b"\0" * 4096)
    with pytest.raises(Exception):  # noqa: B017 - the libraries have their own types
        table.commit(written(table, numbers(3, 3)), NUMBERS, (Step("q", 1),))
    assert len(rows_in(kind, small_disk)) == 3
    filler.unlink()
    assert table.commit(written(table, numbers(3, 3)), NUMBERS, (Step("q", 1),)), "as a restarted query does"
    assert sorted(row["n"] for row in rows_in(kind, small_disk)) == list(range(6))
