"""The model of model/ about lives of a directory of which older copies are put back: a stream that has read nothing of
one of them, and an archive of one before, of which the server has no message any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardd.client.marks import Verdict
from shardd.spark import rollbacks
from shardd.spark.rollbacks import Rollbacks
from tests.spark.direct import batch
from tests.spark.model.run import Model
from tests.spark.model.world import STREAM, BrokenPromiseError, World
from tests.support.wide import wide

KEPT = 20  # messages of the first copy
LOST = 20  # messages behind it, and behind the second one


def _begin_behind_a_missed_life(directory: Path, *, reads_what_is_lost: bool) -> int:
    """Where a stream goes on, as the model has judged it. The second copy has all that the first one got."""
    world = World(directory)
    try:
        model = Model(world, seed=1, restores=False, restarts=False)
        options = world.options(subscribe=f"`{STREAM}`/rows", startingOffsets="earliest", failOnDataLoss="false")
        model.queries.begin((options, True))
        [[side]] = model.queries.all
        world.send("rows", 0, KEPT)
        world.settle()
        if not reads_what_is_lost:
            assert model.queries._planned_and_read([side], changes=False)
        for number, others in enumerate((10 * KEPT, 1)):
            path, counts = world.copy()
            world.send("rows", 0, LOST)
            world.settle()
            if reads_what_is_lost and number == 0:
                assert model.queries._planned_and_read([side], changes=False)
            world.put_back(path, counts)
            world.send("rows", 0, others)
            world.settle()
        assert model.queries._planned_and_read([side], changes=False)
        return side.seen["rows", 0, world.now["rows", 0], 2][0]
    finally:
        world.close()


def test_a_stream_behind_a_missed_life_goes_on_in_the_messages_it_has_read(tmp_path: Path) -> None:
    assert _begin_behind_a_missed_life(tmp_path, reads_what_is_lost=False) == KEPT


def test_a_stream_behind_a_missed_life_reads_other_messages_from_the_first(tmp_path: Path) -> None:
    assert _begin_behind_a_missed_life(tmp_path, reads_what_is_lost=True) == 0


def _all_marks_are_of_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rollbacks, "verdicts", lambda _, marks: dict.fromkeys(marks, Verdict.OTHER))


def _no_marks_are_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rollbacks, "checked", lambda _, offsets, bounds: offsets)


@pytest.mark.parametrize(
    ("plant", "reads_what_is_lost"), [wide(_all_marks_are_of_others, False), (_no_marks_are_compared, True)]
)
def test_a_planted_fault_about_a_missed_life_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    *,
    reads_what_is_lost: bool,
) -> None:
    plant(monkeypatch)
    with pytest.raises(BrokenPromiseError, match="a stream goes on at"):
        _begin_behind_a_missed_life(tmp_path, reads_what_is_lost=reads_what_is_lost)


def _read_with_an_archive_of_an_earlier_life(directory: Path, *, deletes: bool) -> None:
    """A run archives messages that the server loses when a copy is put back. All rows of the server are read beside
    that archive, also when the server has deleted the offsets of it."""
    world = World(directory)
    try:
        model = Model(world, seed=1, restores=False, restarts=False)
        world.send("rows", 0, KEPT)
        path, counts = world.copy()
        world.send("rows", 0, LOST)
        world.settle()
        world.archive("rows", path=False)
        assert list(world.archive_root.rglob("*.parquet"))
        world.put_back(path, counts)
        world.send("rows", 0, 20 * KEPT)
        world.settle()
        if deletes:
            world.delete_segments("rows", 0, 2)
        first = world.history("rows", 0).floor
        assert first > KEPT + LOST if deletes else first == 0
        more = {"archivePath": str(world.archive_root), "failOnDataLoss": "false"}
        reader = batch(world.options(subscribe=f"`{STREAM}`/rows", **more))
        for task in reader.partitions():
            model._finish(model._reading(reader, task, lenient=True))
        assert model.counts["rows"] == KEPT + 20 * KEPT - first
    finally:
        world.close()


def test_an_archive_of_an_earlier_life_is_not_read(tmp_path: Path) -> None:
    _read_with_an_archive_of_an_earlier_life(tmp_path, deletes=False)


def test_an_archive_of_an_earlier_life_that_retention_passes_is_given_up_by_the_model(tmp_path: Path) -> None:
    """Nothing of it can be compared any more (docs/spark.md), so an operator has to name another place."""
    _read_with_an_archive_of_an_earlier_life(tmp_path, deletes=True)


def test_a_planted_fault_about_archives_of_an_earlier_life_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollbacks, "foreign_archives", lambda *_, **__: frozenset())
    with pytest.raises(BrokenPromiseError, match="offset 20 is b'rows:0:20:"):
        _read_with_an_archive_of_an_earlier_life(tmp_path, deletes=False)
