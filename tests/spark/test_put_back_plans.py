"""A data directory that is put back as files between the plan of a query and its tasks, or under a task: no row of the
other life is taken for one of the plan. No Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from shardd.client.marks import Mark
from shardd.spark import live, planner
from shardd.spark.loss import DataLossError
from shardd.spark.piece import PieceOrigin
from shardd.spark.pipelines import archive
from shardd.spark.pipelines.archive import Target
from shardd.spark.pipelines.common import PipelineError
from shardd.spark.reading import SlicePartition
from shardd.spark.retry import ServerUnreachableError
from shardd.spark.server import Server
from tests.spark.direct import Row, Stream, batch, rows
from tests.spark.support import DELETE_SEGMENTS, source_of
from tests.spark.test_put_back_directories import COPIED, EARLIEST, OTHERS, READ, Kept, copied, kept
from tests.support import wire

__all__ = ["copied", "kept"]
SMALL_POLLS = {"poll.maxBytes": "8 KiB", "batchBytes": "8 KiB", "poll.pipelining": "1"}


@pytest.mark.parametrize("others", [OTHERS, READ, READ // 2])
def test_plan_of_before_a_roll_back_gives_no_row(kept: Kept, others: int) -> None:
    strict, lenient = batch(kept.topic.options()), batch(kept.topic.options(failOnDataLoss="false"))
    tasks = strict.partitions()
    kept.put_back(others)
    with pytest.raises(DataLossError, match="put back"):
        rows(strict, tasks)
    assert rows(lenient, tasks) == []


def test_task_under_a_roll_back_gives_no_row_of_the_other_life(kept: Kept) -> None:
    reader = batch(kept.topic.options(**SMALL_POLLS))
    wanted = kept.topic.rows()
    [task] = reader.partitions()
    found: list[Row] = []

    def read_on() -> None:
        for part in reader.read(task):
            columns = (part.column(name).to_pylist() for name in ("partition", "offset", "value"))
            found.extend(zip(*columns, strict=True))
            if len(found) == part.num_rows:
                kept.put_back(OTHERS)

    with pytest.raises(DataLossError, match="put back"):
        read_on()
    assert found and set(found) < wanted


@pytest.mark.parametrize("others", [OTHERS, READ // 2])
def test_files_of_before_a_roll_back_give_no_row_of_the_other_life(kept: Kept, others: int) -> None:
    """Segments begin at the same offsets in both lives, as far as the copy goes."""
    options = {"path": str(kept.topic.server.data_dir), "minBytesPerPartition": "0"}
    reader, wanted = batch(kept.topic.options(**options)), kept.topic.rows()
    lenient = batch(kept.topic.options(**options, failOnDataLoss="false"))
    tasks = reader.partitions()
    slices = [each for task in tasks if isinstance(task, SlicePartition) for each in task.slices]
    assert any(piece.place is PieceOrigin.SEGMENT for each in slices for piece in each.pieces)
    kept.put_back(others)
    with pytest.raises(DataLossError, match="put back"):
        rows(reader, tasks)
    assert rows(lenient, tasks) == []
    kept.restart()
    again = lenient.partitions()
    assert set(rows(lenient, again)) == kept.topic.rows() != wanted


def test_file_that_is_shorter_behind_a_roll_back_is_no_damage(kept: Kept) -> None:
    """The other life has nothing yet where the plan has messages."""
    options = {"path": str(kept.topic.server.data_dir), "maxRecordsPerPartition": "20", "minBytesPerPartition": "0"}
    strict = batch(kept.topic.options(**options))
    lenient = batch(kept.topic.options(**options, failOnDataLoss="false"))
    tasks = strict.partitions()
    kept.put_back(1)
    for task in tasks:
        assert rows(lenient, [task]) == []
        with pytest.raises(DataLossError, match="put back"):
            rows(strict, [task])


def test_files_are_proven_again_behind_a_restart_of_the_server(kept: Kept) -> None:
    """The connection for it is kept by the process, and broken then."""
    options = {"path": str(kept.topic.server.data_dir), "maxRecordsPerPartition": "100", "minBytesPerPartition": "0"}
    reader = batch(kept.topic.options(**options))
    first, *others = reader.partitions()
    found = rows(reader, [first])
    kept.restart()
    assert {*found, *rows(reader, others)} == kept.topic.rows()
    kept.put_back(OTHERS)
    with pytest.raises(DataLossError, match="put back"):
        rows(reader, [first])


def test_batch_of_a_stream_that_was_planned_before_a_roll_back_gives_no_row(kept: Kept) -> None:
    stream = Stream(kept.topic.options(**EARLIEST))
    tasks, _ = stream.plan()
    kept.put_back(OTHERS)
    with pytest.raises(DataLossError, match="put back"):
        rows(stream.reader, tasks)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_archive_job_of_before_a_roll_back_writes_no_file(kept: Kept, tmp_path: Path, kind: str) -> None:
    for number, lenient in enumerate(({}, {"failOnDataLoss": "false"})):
        target = Target.parse(f"{kind}:{tmp_path / f'archive{number}'}", {})
        [job] = archive.plan(source_of(kept.topic, **lenient), target)[0]
        if number == 0:
            first = job
    kept.put_back(OTHERS)
    for each in (first, job):
        with pytest.raises((DataLossError, PipelineError)):
            each.run()
    assert list(tmp_path.glob("archive*/**/*.parquet")) == []


def test_plan_during_which_the_directory_is_put_back_is_made_anew(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    change_once(monkeypatch, lambda: kept.put_back(OTHERS))
    reader = batch(kept.topic.options())
    tasks = reader.partitions()
    assert set(rows(reader, tasks)) == kept.topic.rows()


def test_archive_plan_during_which_the_directory_is_put_back_is_made_anew(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    change_once(monkeypatch, lambda: kept.put_back(OTHERS), function="readable_end")
    jobs, _ = archive.plan(source_of(kept.topic), Target.parse(f"parquet:{tmp_path / 'archive'}", {}))
    assert sum(job.run()["rows"] for job in jobs) == COPIED + OTHERS


def test_plan_whose_connection_breaks_each_time_is_told(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    real = planner.resolve

    def resolve(server: Any, *words: Any, **more: Any) -> Any:
        server.close()
        return real(server, *words, **more)

    monkeypatch.setattr(planner, "resolve", resolve)
    with pytest.raises(DataLossError, match="the connection broke in each of 5 plans"):
        batch(kept.topic.options()).partitions()


def change_once(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object], function: str = "resolve") -> None:
    """When the bounds of a plan are known."""
    real, done = getattr(planner, function), list[int]()

    def changed(*words: Any, **more: Any) -> Any:
        if not done:
            done.append(1)
            change()
        return real(*words, **more)

    monkeypatch.setattr(planner, function, changed)


def test_restart_between_plan_and_read_costs_no_row(kept: Kept) -> None:
    reader = batch(kept.topic.options())
    tasks = reader.partitions()
    kept.restart()
    kept.send("more", 10)
    assert set(rows(reader, tasks)) == {row for row in kept.topic.rows() if row[1] < COPIED + READ}


@pytest.mark.parametrize("files", [False, True])
def test_plan_whose_marked_record_retention_has_deleted_gives_the_rows_that_are_kept(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, files: bool
) -> None:
    """A batch of a stream keeps the marks of the one before where the server does not answer."""
    more = {"path": str(kept.topic.server.data_dir), "lease": "0s"} if files else {}
    stream = Stream(kept.topic.options(failOnDataLoss="false", **EARLIEST, **more))
    assert stream.run(ReadMaxRows(200))
    with monkeypatch.context() as broken:
        broken.setattr(Server, "marks_at", unreachable)
        tasks, _ = stream.plan()
    marks = {each.mark for task in tasks if isinstance(task, SlicePartition) for each in task.slices}
    address = wire.identifier("shop") + wire.identifier("rows")
    kept.topic.connection.request(DELETE_SEGMENTS, address + bytes(4) + (1).to_bytes(4, "little"))
    first = kept.topic.bounds()[0].first
    assert [mark.offset < first for mark in marks if mark is not None] == [True] and first < COPIED
    assert set(rows(stream.reader, tasks)) == {row for row in kept.topic.rows() if row[1] >= first}


def unreachable(*_: Any) -> Any:
    raise ServerUnreachableError("as the test wants")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Offsets of the records that tasks ask for to know their history."""
    found: list[int] = []
    real = live._Asked.ask_mark

    def ask_mark(self: Any, mark: Mark) -> None:
        found.append(mark.offset)
        real(self, mark)

    monkeypatch.setattr(live._Asked, "ask_mark", ask_mark)
    live._kept.clear()
    yield found


def test_connection_is_asked_once_for_each_plan_and_partition(kept: Kept, asked: list[int]) -> None:
    reader = batch(kept.topic.options(maxRecordsPerPartition="100", minBytesPerPartition="0"))
    tasks = reader.partitions()
    assert len(tasks) > 10
    assert set(rows(reader, tasks)) == kept.topic.rows()
    assert asked == [COPIED + READ - 1]
    kept.restart()
    assert set(rows(reader, tasks)) == kept.topic.rows()
    assert asked == [COPIED + READ - 1] * 2


def test_connection_that_has_compared_too_many_plans_compares_again(
    kept: Kept, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_COMPARED_MAX", 1)
    readers = [batch(kept.topic.options(endingOffsets=end)) for end in ('{"shop/rows": {"0": 100}}', "latest")]
    plans = [(reader, reader.partitions()) for reader in readers]
    for reader, tasks in [*plans, *plans]:
        assert rows(reader, tasks)
    assert asked == [99, COPIED + READ - 1] * 2
