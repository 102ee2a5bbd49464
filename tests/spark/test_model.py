"""The model of model/ in its short form, and planted faults that it has to find (`make spark-model`: the long form)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardd.log.incarnation import read_incarnation
from shardd.spark import admission, cold, live, planner, reading
from shardd.spark.loss import HistoryGoneError, Losses
from shardd.spark.proof import Proof
from shardd.spark.rollbacks import Rollbacks
from shardd.spark.sinks.topic import stored as topic_stored
from tests.spark.direct import batch
from tests.spark.model.run import Model, play
from tests.spark.model.world import STREAM, BrokenPromiseError, World
from tests.support.wide import wide

STEPS = 250
CANARY_STEPS = 500
ROUNDS_MIN, ROUNDS_MAX = 3, 9
SEEDS_MAX = 12  # four of them miss a fault about files once in 15 times


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.close()


def test_random_histories_are_read_as_they_were_planned(world: World) -> None:
    model = Model(world, seed=20260101, restores=False, restarts=False)
    model.run(STEPS)
    assert model.counts["rows"] > 1000 and model.counts["losses told"] > 0 and model.counts["batches"] > 5, model.counts


def test_and_through_kills_restarts_and_restores(world: World) -> None:
    model = Model(world, seed=20260102, restores=False, restarts=False)
    for change in (world.kill, world.backup, world.restart, world.restore):
        model.run(STEPS // 5)
        change()
    model.run(STEPS // 5)
    assert model.counts["rows"] > 100, model.counts


def test_and_through_directories_that_are_put_back_and_other_servers(tmp_path: Path) -> None:
    world = World(tmp_path)
    try:
        model = Model(world, seed=20260103, restores=False, restarts=False)
        for change in (model.roll_back, model.replace, model.roll_back):
            model.run(STEPS // 5)
            change()
        model.run(STEPS // 5)
        for _ in range(ROUNDS_MAX):
            if model.counts["files over a put back"]:
                break
            model.roll_back()
            model.run(STEPS // 5)
    finally:
        world.close()
    of_roll_backs = ("readings over a put back", "files over a put back")
    assert model.counts["rows"] > 100 and all(model.counts[each] for each in of_roll_backs), model.counts


# ---- planted faults ----


def _unproven(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Proof, "check", lambda *_: None)


def _any_directory(patch: pytest.MonkeyPatch) -> None:
    """A cold read takes the directory for whatever it is."""
    real = cold.read

    def read(decoder: Any, path: Path, **more: Any) -> Any:
        found = read_incarnation(path.parent)
        return real(decoder, path, **{**more, "incarnation": found or more["incarnation"]})

    patch.setattr(cold, "read", read)


def _to_the_end_of_the_partition(patch: pytest.MonkeyPatch) -> None:
    """A batch of a new incarnation does not end where it was planned."""
    real = planner.check_range

    def check_range(options: Any, name: Any, partition: Any, start: Any, end: Any, losses: Any) -> tuple[int, int]:
        low, high = real(options, name, partition, start, end, losses)
        return (low, high) if start.incarnation == partition.incarnation else (partition.first, partition.end)

    patch.setattr(planner, "check_range", check_range)


def _the_rest_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """Accepted losses take along what is kept."""
    real = live.read

    def read(*words: Any, **more: Any) -> Any:
        try:
            yield from real(*words, **more)
        except HistoryGoneError as error:
            raise HistoryGoneError(str(error), None) from error

    patch.setattr(live, "read", read)


def _the_first_rows_twice(patch: pytest.MonkeyPatch) -> None:
    real = reading._batches

    def batches(*words: Any) -> Any:
        for number, part in enumerate(real(*words)):
            yield from [part, part] if number == 0 else [part]

    patch.setattr(reading, "_batches", batches)


@pytest.mark.parametrize(
    "plant",
    [_unproven, _any_directory, _to_the_end_of_the_partition, wide(_the_rest_is_dropped), _the_first_rows_twice],
)
def test_a_planted_fault_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(BrokenPromiseError):
        for seed in range(4):  # the state of the server differs, too
            Model(world, seed, restores=False, restarts=False).run(CANARY_STEPS)


def _marks_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rollbacks, "checked", lambda _, offsets, bounds: offsets)


def _require_found(directory: Path, change: Callable[[Model], None], steps: int = 60) -> None:
    """The fault that is planted, by runs before and behind such a change."""
    world = World(directory)
    try:
        with pytest.raises(BrokenPromiseError):
            for seed in range(SEEDS_MAX):
                model = Model(world, seed, restores=False, restarts=False)
                model.run(steps)
                change(model)
                model.run(steps)
    finally:
        world.close()


def _tasks_compare_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Proof, "check_mark", lambda *_: None)


def _files_are_taken_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "_prove", lambda *_: None)


@pytest.mark.parametrize("plant", [_marks_are_not_compared, _tasks_compare_nothing, _files_are_taken_as_they_are])
def test_a_planted_fault_about_directories_that_are_put_back_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    _require_found(tmp_path, Model.roll_back)


def _another_server_is_the_same(patch: pytest.MonkeyPatch) -> None:
    """Offsets of a checkpoint are taken for those of whatever history there is."""
    real = planner.check_range

    def check_range(options: Any, name: Any, partition: Any, start: Any, end: Any, losses: Any) -> tuple[int, int]:
        start, end = (replace(each, incarnation=partition.incarnation) for each in (start, end))
        return real(options, name, partition, start, end, losses)

    patch.setattr(planner, "check_range", check_range)


def test_a_planted_fault_about_other_servers_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace_and_send(model: Model) -> None:
        model.replace()
        for topic, partition in list(model.world.now):
            model.world.send(topic, partition, 300)

    _another_server_is_the_same(monkeypatch)
    _require_found(tmp_path, replace_and_send)


# ---- gaps, times, two sources, retries ----


def test_and_through_gaps_times_two_sources_and_retries(tmp_path: Path) -> None:
    """Everything of this kind happens in the run, whatever the seed. What a round meets depends on what the server has
    removed by then."""
    of_rounds = (
        "thinned", "gaps passed", "isolated", "isolated passed", "isolated told", "batches of two sources", "retries",
        "retries refused behind retention",
    )  # fmt: skip
    world = World(tmp_path)
    try:
        model = Model(world, seed=20260104, restores=False, restarts=False)
        model.queries.two_sources = 0.7
        for number in range(ROUNDS_MAX):
            model.run(STEPS // 5)
            model.fill()
            for change in (model.thin, model.give_up, model.go_ahead, model.copy):
                change()
            model.read_all()
            if number >= ROUNDS_MIN - 1 and all(model.counts[each] for each in of_rounds):
                break
        model.world.recreate("rows")
        model.fill()
        for _ in range(3):
            model.go_ahead()
            model.queries.all.clear()
            model.follow(("0s", "200ms"), rounds=10)
    finally:
        world.close()
    happened = (*of_rounds, "ahead in time", "batches by time beside a partition ahead")
    assert all(model.counts[each] for each in happened), model.counts


def _the_row_behind_a_gap_is_dropped(patch: pytest.MonkeyPatch) -> None:
    real = reading._batches

    def batches(*words: Any) -> Any:
        for part in real(*words):
            offsets = part.column("offset").to_pylist()
            kept = [n for n, offset in enumerate(offsets) if n == 0 or offset == offsets[n - 1] + 1]
            yield part.take(pa.array(kept))

    patch.setattr(reading, "_batches", batches)


def _isolated_messages_are_passed_in_silence(patch: pytest.MonkeyPatch) -> None:
    real = Losses.add

    def add(self: Any, name: Any, partition: Any, lost: Any, what: str) -> None:
        if "lost the offsets" not in what:
            real(self, name, partition, lost, what)

    patch.setattr(Losses, "add", add)


@pytest.mark.parametrize("plant", [_the_row_behind_a_gap_is_dropped, _isolated_messages_are_passed_in_silence])
def test_a_planted_fault_about_gaps_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    def change(model: Model) -> None:
        model.fill()
        (model.thin if plant is _the_row_behind_a_gap_is_dropped else model.give_up)()
        model.read_all()

    plant(monkeypatch)
    _require_found(tmp_path, change, steps=0)


def _times_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "ends_by_time", lambda times, begin, offered, ends, **_: dict(offered))


def _the_future_is_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "SKEW_US", 10**12)


@pytest.mark.parametrize("plant", [_times_are_not_looked_at, _the_future_is_taken])
def test_a_planted_fault_about_partitions_ahead_in_time_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    def change(model: Model) -> None:
        model.fill()
        model.go_ahead()
        model.follow(("0s", "200ms"), rounds=20)

    plant(monkeypatch)
    _require_found(tmp_path, change, steps=0)


def _the_future_holds_others_back(patch: pytest.MonkeyPatch) -> None:
    """As if a batch waited for a partition whose times do not come."""
    real = admission.ends_by_time

    def ends_by_time(times: Any, begin: Any, offered: Any, ends: Any, **more: Any) -> Any:
        found = real(times, begin, offered, ends, **more)
        waits = any(found[place] == begin[place] < end for place, end in ends.items())
        return dict(begin) if waits else found

    patch.setattr(admission, "ends_by_time", ends_by_time)


def test_a_planted_wait_for_a_partition_ahead_in_time_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(model: Model) -> None:
        model.fill()
        model.go_ahead()
        model.follow(("200ms",), rounds=20)

    _the_future_holds_others_back(monkeypatch)
    _require_found(tmp_path, change, steps=0)


def _tasks_share_what_they_read(patch: pytest.MonkeyPatch) -> None:
    """A task that begins while another one is on its way gets what is left of that one."""
    real, left = reading._batches, []

    def batches(*words: Any) -> Any:
        left.append(real(*words))
        while left:
            part = next(left[0], None)
            if part is None:
                left.pop(0)
            else:
                yield part

    patch.setattr(reading, "_batches", batches)


def test_a_planted_fault_about_two_sources_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows only where two sources are read beside each other."""

    def change(model: Model) -> None:
        model.fill()
        model.queries.two_sources = 1.0
        for _ in range(20):
            model.queries.step(changes=False)

    _tasks_share_what_they_read(monkeypatch)
    _require_found(tmp_path, change, steps=0)


def test_a_planted_fault_about_retries_with_retention_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored at the positions of a batch is believed to be its rows."""

    def change(model: Model) -> None:
        for _ in range(6):
            model.copy()

    monkeypatch.setattr(topic_stored._Counted, "check", lambda *_: None)
    _require_found(tmp_path, change, steps=0)


@pytest.mark.parametrize("plant", [None, _any_directory])
def test_a_shorter_file_of_another_incarnation_is_a_loss_and_never_taken_for_damage(
    world: World, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None] | None
) -> None:
    model = Model(world, seed=1, restores=False, restarts=False)
    world.recreate("more")
    world.send("more", 0, 300)
    world.settle()
    sealed = batch(world.options(subscribe=f"`{STREAM}`/more", readMode="cold", path=str(world.server.data_dir)))
    (task,) = sealed.partitions()
    reading_on_its_way = model._reading(sealed, task, lenient=False)
    world.purge("more")
    world.send("more", 0, 20)
    if plant is None:
        model._finish(reading_on_its_way)
        assert model.counts["losses told"] == 1
    else:
        plant(monkeypatch)
        with pytest.raises(BrokenPromiseError):
            model._finish(reading_on_its_way)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(5))
def test_long_histories_with_restarts_and_restores(tmp_path: Path, seed: int) -> None:
    counts = play(tmp_path, seed, steps=1500)
    assert counts["restarts"] and counts["kills"] and counts["restores"], counts
    assert counts["batches of two sources"] and counts["gaps passed"] and counts["retries"], counts
