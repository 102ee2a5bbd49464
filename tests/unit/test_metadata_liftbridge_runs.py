"""Marks of partitions as runs are what marking one by one makes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from shardd.metadata.liftbridge_runs import differing, is_on, marked, on_ranges, partitions_in, ranges_of
from shardd.metadata.liftbridge_state import RUNS_MAX, LiftbridgeStream, Run
from shardd.metadata.state import Topic
from shardd.worker.partition_marks import MarkedPartitions, paused_partitions, readonly_partitions


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
    marks = MarkedPartitions(marked((), ranges_of(old), True, 1))
    assert marks.ranges == ranges_of(old)
    assert [partition for partition in range(-1, 32) if partition in marks] == sorted(old)


def test_asking_about_a_partition_costs_the_same_however_many_marks_a_topic_has() -> None:
    """Whoever opens 100,000 partitions asks of each of them."""

    def lines(count: int) -> int:
        runs = tuple(Run(3 * each, 3 * each + 1, True, each, each) for each in range(count))
        known = LiftbridgeStream("a", "a", "", paused=runs, readonly=runs)
        fields: dict[str, Any] = dict.fromkeys(Topic.__struct_fields__)
        topic = Topic(**{**fields, "liftbridge": known})
        seen = 0

        def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
            nonlocal seen
            seen += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            asked = [partition in of(topic) for of in (readonly_partitions, paused_partitions) for partition in (3, 4)]
        finally:
            sys.settrace(before)
        assert asked == [True, False] * 2
        return seen

    assert lines(RUNS_MAX) < lines(8) + 300
