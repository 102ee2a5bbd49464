"""Rules of the two state machines of consumer groups that are no scenario of upstream: shares, late words, cost."""

from __future__ import annotations

import time

from shardd.groups import GroupMachine, Membership
from tests.unit.test_group_scenarios import group_of


def test_a_joining_member_gets_its_whole_share() -> None:
    """Iggy 0.8.0: 17, 1, 1, 1, 1, 1, 1, 1."""
    group = group_of(24, *"abcdefgh")
    assert group.sizes() == [3] * 8
    group.leave("a")
    group.leave("e")
    assert group.sizes() == [4] * 6


def test_a_late_assignment_is_ignored() -> None:
    worker = Membership(1, 0, 0, 0)
    assert worker.assign(5, 0, 0, [1, 2], [])
    assert not worker.assign(4, 0, 0, [1], [])
    assert worker.partitions == [1, 2]


def test_a_commit_without_a_partition_goes_to_the_one_polled_last() -> None:
    group = group_of(3, "a")
    assert group.workers["a"].current_partition() == 0
    polled = [group.poll("a") for _ in range(4)]
    assert polled == [0, 1, 2, 0]
    assert group.workers["a"].current_partition() == 0


def test_a_partition_is_not_released_while_a_request_on_it_is_under_way() -> None:
    worker = Membership(1, 0, 0, 0)
    worker.assign(1, 0, 0, [0, 1], [])
    worker.begin_poll(1, auto_commit=True)
    worker.assign(2, 0, 0, [0, 1], [1])
    assert worker.release_idle() == []
    worker.end_poll(0, 0)
    assert worker.release_idle() == [1]


def test_1000_partitions_over_100_members_take_less_than_100_ms_of_shard_0() -> None:
    group = GroupMachine(1000)
    for number in range(99):
        group.join(f"m{number}", 0)
        for member in group.members():
            for partition in list(member.pending):
                group.complete(member.key, partition)
    durations = []
    for change in (lambda: group.join("last", 0), lambda: group.leave("m0", 0), lambda: group.resize(2000, 0)):
        started = time.perf_counter()
        change()
        durations.append(time.perf_counter() - started)
    assert max(durations) < 0.1


def test_whoever_gives_up_a_rebalance_has_changed_nothing() -> None:
    """It is computed in steps, beside others; only the last one has an effect."""
    machine = GroupMachine(1000)
    machine.join("a", 0)
    before = [(list(each.partitions), dict(each.pending), each.version) for each in machine.members()]
    machine.enter("b")
    steps = machine.rebalancing(1)
    for _ in range(3):
        next(steps)
    again = machine.members()
    assert [(list(each.partitions), dict(each.pending), each.version) for each in again[:1]] == before
    assert again[1].partitions == []
    machine.rebalance(1)
    assert len(machine.members()[0].pending) == 500
