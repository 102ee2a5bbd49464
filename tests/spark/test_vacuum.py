"""vacuum: what it may delete, what it must not, and what it refuses. No Spark."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.spark.archive_listing import escape, file_name
from shardd.spark.pipelines.common import PipelineError
from shardd.spark.pipelines.vacuum import vacuum
from shardd.spark.sinks.tables import Step
from tests.spark.lake import NAME, NUMBERS, archive_file, archived, numbers, rows_in, table_of, written

HEX = "0123456789abcdef" * 2


def vacuumed(kind: str, place: Path | str, older_than_s: float = 0, **more: Any) -> dict[str, Any]:
    return vacuum(kind, str(place), older_than_s=older_than_s, **{"dry_run": False, "properties": {}, **more})


def old(path: Path, age_s: float = 3600) -> Path:
    os.utime(path, (time.time() - age_s,) * 2, follow_symlinks=False)
    return path


def make(path: Path, age_s: float = 3600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"content")
    return old(path, age_s)


def test_vacuum_of_a_parquet_tree_leaves_foreign_files(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    archived_name = file_name(0, 5, 0, 10)
    mine = [
        make(root / "shop" / "orders" / f"{archived_name}.{HEX}.tmp"),
        make(root / "_staging" / f"part-3-00001-{HEX}.parquet"),
        make(root / "_staging" / f"part-x-00001-{HEX}.parquet"),
        make(root / "_staging" / f"batch=3.{HEX}" / f"part-3-00001-{HEX}.parquet"),
        make(root / "_staging" / f"batch=3.{HEX}" / "_commit"),
        make(root / "_staging" / "batch=4" / f"part-4-00001-{HEX}.parquet"),
        make(root / "_staging" / f"_application.{HEX}"),
    ]
    foreign = [
        make(root / "thesis.tmp"),
        make(root / "shop" / "notes.tmp"),
        make(root / "shop" / "orders" / "upload.tmp"),
        make(root / "shop" / "orders" / f"{archived_name}.tmp"),
        make(root / "shop" / "orders" / f"{archived_name}.{HEX}.tmp.keep"),
        make(root / "shop" / "orders" / "deeper" / f"{archived_name}.{HEX}.tmp"),
        make(root / f"{archived_name}.{HEX}.tmp"),
        make(root / "_staging" / "notes.parquet"),
        make(root / "_staging" / "mine" / f"part-3-00001-{HEX}.parquet"),
        make(root / "_staging" / f"batch=3.{HEX}" / "notes"),
        make(root / "batch=3" / f"part-3-00001-{HEX}.parquet"),
        make(root / "shop" / "orders" / archived_name),
        make(root / "shop" / "orders" / f"part-3-00001-{HEX}.parquet"),
    ]
    elsewhere = make(other / f"{archived_name}.{HEX}.tmp")
    (root / "shop" / "link").symlink_to(other, target_is_directory=True)
    (root / "linked").symlink_to(tmp_path / "far", target_is_directory=True)
    far = make(tmp_path / "far" / "topic" / f"{archived_name}.{HEX}.tmp")
    link = root / "shop" / "orders" / f"{file_name(1, 5, 0, 10)}.{HEX}.tmp"
    link.symlink_to(elsewhere)
    old(link)
    would = vacuumed("parquet", root, dry_run=True)
    assert would["files"] == len(mine) and all(each.exists() for each in mine)
    assert vacuumed("parquet", root)["files"] == len(mine)
    assert not any(each.exists() for each in mine)
    assert all(each.exists() for each in (*foreign, elsewhere, far)) and link.is_symlink()


def test_vacuum_leaves_what_a_writer_may_still_be_at(tmp_path: Path) -> None:
    young = make(tmp_path / "_staging" / f"part-3-00001-{HEX}.parquet", age_s=1800)
    ancient = make(tmp_path / "_staging" / f"part-3-00002-{HEX}.parquet", age_s=7200)
    assert vacuumed("parquet", tmp_path, older_than_s=3600)["files"] == 1
    assert young.exists() and not ancient.exists()


DAY_S = 86_400


def test_vacuum_behind_a_clock_that_jumped_leaves_what_was_just_written(tmp_path: Path) -> None:
    """All of it is eight days old by the clock that has jumped; a commit had begun 90 seconds before."""
    make(tmp_path / "_application", age_s=8 * DAY_S)
    running = make(tmp_path / "_staging" / f"part-3-00001-{HEX}.parquet", age_s=8 * DAY_S + 90)
    left = make(tmp_path / "_staging" / f"part-2-00001-{HEX}.parquet", age_s=11 * DAY_S)
    assert vacuumed("parquet", tmp_path, older_than_s=DAY_S)["files"] == 1
    assert running.exists() and not left.exists()
    assert vacuumed("parquet", tmp_path)["files"] == 1  # nobody writes
    assert not running.exists()


def test_vacuum_goes_by_the_clock_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network: the clock of this machine may be another one."""
    young = make(tmp_path / "_staging" / f"part-3-00001-{HEX}.parquet", age_s=60)
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 8 * DAY_S)
    assert vacuumed("parquet", tmp_path, older_than_s=DAY_S)["files"] == 0
    assert [each.name for each in tmp_path.iterdir()] == ["_staging"] and young.exists()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_vacuum_of_a_table_behind_a_clock_that_jumped_leaves_a_running_commit(kind: str, tmp_path: Path) -> None:
    from tests.spark.lake import catalog_of

    table = table_of(kind, tmp_path)
    table.commit(written(table, numbers(0, 3)), NUMBERS, (Step("q", 0),))
    (running,) = written(table, numbers(3, 3))  # not committed yet
    for each in tmp_path.rglob("*"):
        if each.is_file():
            old(each, 8 * DAY_S)
    old(Path(running.path), 8 * DAY_S + 90)
    place = tmp_path / "table" if kind == "delta" else "space.rows"
    properties = catalog_of(tmp_path) if kind == "iceberg" else {}
    assert vacuumed(kind, place, older_than_s=DAY_S, properties=properties)["files"] == 0
    table.commit([running], NUMBERS, (Step("q", 1),))
    assert len(rows_in(kind, tmp_path)) == 6


def test_vacuum_leaves_the_archive_of_a_stream_with_a_name_of_the_sink(tmp_path: Path) -> None:
    for stream, topic in (("_staging", "batch=3"), ("_staging", f"part-3-00001-{HEX}.parquet")):
        make(tmp_path / escape(stream) / escape(topic) / file_name(0, 5, 0, 10))
    assert vacuumed("parquet", tmp_path)["files"] == 0


def test_vacuum_removes_covered_files_only_when_the_longer_one_is_whole(tmp_path: Path) -> None:
    covered = old(archive_file(tmp_path, 100, 50))
    whole = old(archive_file(tmp_path, 100, 100))
    lost = old(archive_file(tmp_path, 300, 50))
    old(archive_file(tmp_path, 300, 100, rows=archived(300, 60)))  # half of what its name says
    fresh = old(archive_file(tmp_path, 500, 50))
    archive_file(tmp_path, 500, 100)  # a reader may have planned before it came
    other = old(archive_file(tmp_path, 110, 20, incarnation=6))
    assert vacuumed("parquet", tmp_path, older_than_s=600)["files"] == 1
    assert not covered.exists() and all(each.exists() for each in (whole, lost, fresh, other))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_vacuum_of_a_table_leaves_foreign_and_living_files(kind: str, tmp_path: Path) -> None:
    from tests.spark.lake import catalog_of

    table = table_of(kind, tmp_path)
    for batch in range(3):
        table.commit(written(table, numbers(3 * batch, 3)), NUMBERS, (Step("q", batch),), overwrite=batch == 2)
    (orphan,) = written(table, numbers(9, 3))
    directory = Path(table.place()[1])
    foreign = [make(directory / name) for name in ("notes.parquet", "part-00000-4711-c000.snappy.parquet", "x.tmp")]
    (directory / f"part-9-00000-{HEX}.parquet").symlink_to(foreign[0])
    place = tmp_path / "table" if kind == "delta" else "space.rows"
    properties = catalog_of(tmp_path) if kind == "iceberg" else {}
    assert vacuumed(kind, place, older_than_s=-0.0, properties=properties, dry_run=True)["files"] == 1
    time.sleep(0.01)
    assert vacuumed(kind, place, properties=properties)["files"] == 1
    assert not Path(orphan.path).exists() and all(each.exists() for each in foreign)
    assert len(rows_in(kind, tmp_path)) == 3
    if kind == "delta":
        from deltalake import DeltaTable

        assert len(DeltaTable(str(place), version=1).to_pyarrow_table()) == 6, "time travel"


def test_vacuum_deletes_nothing_when_a_version_cannot_be_read(tmp_path: Path) -> None:
    table = table_of("delta", tmp_path)
    for batch in range(3):
        table.commit(written(table, numbers(3 * batch, 3)), NUMBERS, (Step("q", batch),), overwrite=True)
    log = tmp_path / "table" / "_delta_log" / f"{1:020}.json"
    content = log.read_bytes()
    log.write_bytes(b"{")
    before = sorted((tmp_path / "table").glob("*.parquet"))
    with pytest.raises(Exception):  # noqa: B017 - the library finds it first, in its own words
        vacuumed("delta", tmp_path / "table")
    assert sorted((tmp_path / "table").glob("*.parquet")) == before
    log.write_bytes(content)
    assert vacuumed("delta", tmp_path / "table")["files"] == 0


@pytest.mark.parametrize("hours", [-5.0, -0.001, float("nan"), float("inf"), float("-inf")])
def test_vacuum_refuses_an_age_that_is_none(tmp_path: Path, hours: float) -> None:
    make(tmp_path / "_staging" / f"part-3-00001-{HEX}.parquet")
    with pytest.raises(PipelineError, match="--older-than is"):
        vacuumed("parquet", tmp_path, older_than_s=hours * 3600)
    assert list(tmp_path.rglob("*.parquet"))


def test_vacuum_says_what_is_wrong_and_fails(tmp_path: Path) -> None:
    file = make(tmp_path / "file")
    for words, said in (
        ((f"parquet:{tmp_path}/nothing",), "nothing is no directory"),
        ((f"delta:{tmp_path}/nothing",), "nothing is no directory"),
        ((f"parquet:{file}",), "file is no directory"),
        (("parquet:",), "is no local directory"),
        (("parquet:s3://bucket/x",), "is no local directory"),
        ((f"delta:{tmp_path}",), "is no Delta table"),
        (("iceberg:a.b",), "--catalog warehouse="),
        ((f"parquet:{tmp_path}", "--older-than", "-5"), "--older-than is -5"),
        ((f"parquet:{tmp_path}", "--older-than=nan"), "--older-than is nan"),
    ):
        result = CliRunner().invoke(app, ["pipeline", "vacuum", *words])
        assert result.exit_code == 1 and said in result.stderr, (words, result.output)
        assert "Traceback" not in result.output
    assert str(NAME) == "shop/orders"
