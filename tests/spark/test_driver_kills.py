"""Lake sinks under kills of the driver before and after commits: each (partition, offset) once, to a reader that is not
Spark. The drivers are processes of their own, so these tests share no session with others."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.spark.lake_tables import KINDS, faults, table_of
from tests.spark.support import Topic

ROOT = Path(__file__).parents[2]
RUN_TIMEOUT_S = 280


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
