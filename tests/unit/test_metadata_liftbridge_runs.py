"""Marks of partitions as runs are what marking one by one makes."""

from __future__ import annotations

import random

import pytest

from shardd.metadata.liftbridge_runs import differing, is_on, marked, on_ranges, partitions_in, ranges_of
from shardd.metadata.liftbridge_state import Run
from shardd.worker.partition_marks import MarkedPartitions


@pytest.mark.parametrize("seed", range(20))
def test_marks_are_what_marking_one_by_one_makes(seed: int) -> None:
    rng = random.Random(seed)
    runs: tuple[Run, ...] = ()
    reference = dict[int, tuple[bool, int, int]]()
    for now in range(1, 30):
        chosen, on = rng.sample(range(40), rng.randint(1, 20)), rng.random() < 0.5
        runs = marked(runs, ranges_of(chosen), on, now)
        for partition in chosen:
            reference[partition] = on, reference.get(partition, (on, now, now))[1], now
        seen = {
            partition: (each.on, each.first_ns, each.latest_ns)
            for each in runs
            for partition in range(each.first, each.end)
        }
        assert seen == reference
        assert partitions_in(on_ranges(runs)) == tuple(sorted(p for p, (on, _, _) in reference.items() if on))
        assert all(is_on(runs, p) == reference.get(p, (False,))[0] for p in range(41))


@pytest.mark.parametrize("seed", range(20))
def test_what_has_changed_between_two_sets_of_marks(seed: int) -> None:
    rng = random.Random(seed)
    old, new = (set(rng.sample(range(30), rng.randint(0, 30))) for _ in range(2))
    found = {
        partition: now
        for (first, end), now in differing(ranges_of(old), ranges_of(new))
        for partition in range(first, end)
    }
    assert found == {partition: partition in new for partition in old ^ new}
    marks = MarkedPartitions(ranges_of(old))
    assert [partition for partition in range(-1, 32) if partition in marks] == sorted(old)
