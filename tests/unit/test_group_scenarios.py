"""Scenarios of group assignment from Iggy's own tests, 57 to 83 (tests/README.md), on the two state machines."""

from __future__ import annotations

import pytest

from shardd.groups import GroupMachine, Membership

TIMEOUT_US = 3_000_000


class Group:
    """Shard 0 and the workers of all members, with every message delivered at once."""

    def __init__(self, partitions: int) -> None:
        self.machine = GroupMachine(partitions)
        self.workers: dict[str, Membership] = {}
        self.now_us = 0

    def join(self, *keys: str) -> None:
        for key in keys:
            self.workers.setdefault(key, Membership(1, 0, 0, 0))
            self.machine.join(key, self.now_us)
            self.deliver()

    def leave(self, key: str) -> bool:
        self.workers.pop(key, None)
        left = self.machine.leave(key, self.now_us)
        self.deliver()
        return left

    def resize(self, partitions: int) -> None:
        self.machine.resize(partitions, self.now_us)
        self.deliver()

    def poll(
        self, key: str, partition: int | None = None, *, messages: int = 1, auto_commit: bool = False
    ) -> int | None:
        """The polled partition; None when the answer is (0, 0, 0)."""
        worker = self.workers[key]
        chosen = worker.next_partition(self.machine.partitions_count) if partition is None else partition
        if chosen is None or not worker.owns(chosen):
            return None
        worker.begin_poll(chosen, auto_commit=auto_commit)
        worker.end_poll(messages, messages - 1)
        self.deliver()
        return chosen

    def commit(self, key: str, partition: int, offset: int) -> bool:
        """False: 3022."""
        worker = self.workers[key]
        if not worker.owns(partition):
            return False
        worker.begin_commit(partition)
        worker.end_commit(offset)
        self.deliver()
        return True

    def wait(self, seconds: float) -> None:
        self.now_us += int(seconds * 1_000_000)
        self.machine.expire(self.now_us, TIMEOUT_US)
        self.deliver()

    def deliver(self) -> None:
        while True:
            for member in self.machine.members():
                worker = self.workers[member.key]
                parts, pending = list(member.partitions), sorted(member.pending)
                worker.assign(member.version, member.id, member.place, parts, pending)
            released = [(key, each) for key, worker in self.workers.items() for each in worker.release_idle()]
            for key, partition in released:
                assert self.machine.complete(key, partition)
            if not released:
                return

    def lists(self) -> list[list[int]]:
        return [member.partitions for member in self.machine.members()]

    def sizes(self) -> list[int]:
        return [len(partitions) for partitions in self.lists()]

    def pending(self, key: str) -> list[int]:
        member = self.machine.get(key)
        assert member is not None
        return sorted(member.pending)

    def check(self) -> None:
        """No partition twice, none missing."""
        owned = sorted(partition for partitions in self.lists() for partition in partitions)
        assert owned == list(range(self.machine.partitions_count))


def group_of(partitions: int, *keys: str) -> Group:
    group = Group(partitions)
    group.join(*keys)
    return group


def busy_group(partitions: int = 3) -> Group:
    """Member a has polled one message of every partition and committed none; b joined after that."""
    group = group_of(partitions, "a")
    for _ in range(partitions):
        assert group.poll("a") is not None
    group.join("b")
    return group


def test_57_no_duplicate_assignment_after_stale_clients_are_gone() -> None:
    group = group_of(3, "a", "b", "c")
    for key in "abc":
        group.leave(key)
    assert len(group.machine) == 0
    group.join("d", "e", "f")
    assert group.sizes() == [1, 1, 1]
    group.check()


def test_58_no_reshuffle_when_a_member_joins() -> None:
    group = group_of(6, "a", "b")
    before = [list(partitions) for partitions in group.lists()]
    group.join("c")
    assert all(set(after) < set(old) for old, after in zip(before, group.lists(), strict=False))
    assert group.sizes() == [2, 2, 2]


def test_59_revoked_partitions_are_skipped_in_the_rotation() -> None:
    group = busy_group()
    assert group.pending("a") == [2]
    assert [group.poll("a") for _ in range(4)] == [0, 1, 0, 1]
    assert group.poll("a", 2) == 2  # by name it still works
    assert group.poll("b") is None


def drain(group: Group, log: dict[int, int], offsets: dict[int, int], keys: str, rounds: int) -> list[tuple[int, int]]:
    """Polls with auto-commit of all members in turn: what they got, as (partition, offset). `log`: messages of each
    partition; `offsets`: what the group has committed."""
    got: list[tuple[int, int]] = []
    for _ in range(rounds):
        for key in keys:
            worker = group.workers[key]
            partition = worker.next_partition(group.machine.partitions_count)
            if partition is None:
                continue
            worker.begin_poll(partition, auto_commit=True)
            following = offsets.get(partition, -1) + 1
            if following < log.get(partition, 0):
                offsets[partition] = following
                got.append((partition, following))
                worker.end_poll(1, following)
            else:
                worker.end_poll(0, 0)
            group.deliver()
    return got


def test_60_no_message_is_lost_with_concurrent_polls_while_partitions_are_added() -> None:
    """Messages of old and new partitions all arrive, whoever polls while the topic grows."""
    group, log, offsets = group_of(3, "a", "b", "c"), dict.fromkeys(range(3), 10), dict[int, int]()
    got = drain(group, log, offsets, "abc", 4)
    group.workers["a"].begin_poll(group.workers["a"].partitions[0], auto_commit=True)  # under way during the change
    group.resize(6)
    group.workers["a"].end_poll(0, 0)
    group.deliver()
    group.check()
    log |= dict.fromkeys(range(3, 6), 10)
    got += drain(group, log, offsets, "abc", 40)
    assert set(got) == {(partition, offset) for partition in range(6) for offset in range(10)}


def test_61_partition_add_disconnect_new_join() -> None:
    group = group_of(3, "a", "b", "c")
    group.resize(6)
    group.leave("b")
    group.join("d")
    assert group.sizes() == [2, 2, 2]
    group.check()


def test_62_partitions_are_deleted_while_members_poll() -> None:
    """The end of a poll on a deleted partition is no fault, and the rest is polled on."""
    group = group_of(6, "a", "b")
    lost = [group.workers[key].partitions[-1] for key in "ab"]
    for key, partition in zip("ab", lost, strict=True):
        group.workers[key].begin_poll(partition, auto_commit=False)
    group.resize(2)
    for key in "ab":
        group.workers[key].end_poll(5, 4)
    group.deliver()
    group.check()
    assert group.sizes() == [1, 1]
    assert {group.poll(key) for key in "ab"} == {0, 1}
    for key, partition in zip("ab", lost, strict=True):
        assert group.commit(key, partition, 4) == (partition in group.workers[key].partitions)


@pytest.mark.parametrize(("partitions", "members"), [(6, 3), (6, 6), (3, 3), (24, 8), (24, 7), (3, 5)])
def test_63_even_distribution_after_several_joins(partitions: int, members: int) -> None:
    group = group_of(partitions, *(f"m{number}" for number in range(members)))
    assert max(group.sizes()) - min(group.sizes()) <= 1
    assert min(group.sizes()) == partitions // members
    group.check()


def test_64_split_after_partitions_are_added() -> None:
    group = group_of(2, "a", "b")
    group.resize(6)
    assert group.sizes() == [3, 3]
    group.check()


def test_65_no_message_twice_when_partitions_are_added() -> None:
    """Adding partitions repeats nothing that was polled and committed."""
    group, log, offsets = group_of(3, "a", "b"), dict.fromkeys(range(3), 10), dict[int, int]()
    got = drain(group, log, offsets, "ab", 5)
    for partitions in (6, 9):
        log |= dict.fromkeys(range(partitions), 10)
        group.resize(partitions)
        got += drain(group, log, offsets, "ab", 5)
    got += drain(group, log, offsets, "ab", 60)
    assert sorted(got) == [(partition, offset) for partition in range(9) for offset in range(10)]


def test_66_deleted_partitions_with_uncommitted_work_are_gone() -> None:
    group = busy_group(4)
    group.resize(2)
    group.wait(3)
    assert group.sizes() == [1, 1]
    group.check()


def test_67_rapid_partition_changes() -> None:
    group = group_of(3, "a", "b", "c")
    for partitions in (6, 3, 9, 1, 4, 0, 6):
        group.resize(partitions)
        group.check()
    assert group.sizes() == [2, 2, 2]


def test_68_69_rebalance_after_adding_and_deleting_partitions() -> None:
    group = group_of(3, "a", "b", "c")
    group.resize(6)
    assert group.sizes() == [2, 2, 2]
    group.resize(3)
    assert group.sizes() == [1, 1, 1]
    group.resize(0)
    assert group.sizes() == [0, 0, 0]
    assert group.poll("a") is None


def test_70_partitions_added_while_a_revocation_is_pending() -> None:
    group = busy_group()
    group.resize(6)
    assert group.sizes() == [3, 3]
    assert group.pending("a") == [], "b has its share without it"
    group.check()


def test_71_revocation_timeout() -> None:
    group = busy_group()
    group.wait(2.9)
    assert group.pending("a") == [2]
    group.wait(0.2)
    assert group.lists() == [[0, 1], [2]]
    assert not group.commit("a", 2, 0), "the commit comes too late"
    assert group.poll("a", 2) is None


def test_72_73_no_duplicates_after_a_client_has_come_again() -> None:
    group = group_of(3, "a", "b", "c")
    for turn in range(10):
        group.join(f"b{turn}")
        group.leave("b" if turn == 0 else f"b{turn - 1}")
        assert group.sizes() == [1, 1, 1]
        group.check()


def test_74_a_partition_is_polled_by_one_member_at_a_time_during_a_rebalance() -> None:
    group = busy_group(6)
    for _ in range(12):
        polled = {key: group.poll(key, messages=0) for key in "ab"}
        assert polled["a"] != polled["b"] or polled["a"] is None


def test_75_revocation_completes_on_auto_commit() -> None:
    group = busy_group()
    group.poll("a", 2, auto_commit=True)
    assert group.lists() == [[0, 1], [2]]


def test_76_never_polled_partitions_move_at_once() -> None:
    group = group_of(6, "a")
    assert [group.poll("a") for _ in range(2)] == [0, 1]
    group.join("b")
    assert group.lists() == [[0, 1, 2], [3, 4, 5]]
    assert group.machine.pending_count == 0


def test_77_a_member_with_a_pending_revocation_leaves() -> None:
    group = busy_group()
    group.leave("a")
    assert group.lists() == [[0, 1, 2]]
    assert group.machine.pending_count == 0


def test_78_sequential_joins_produce_no_duplicates() -> None:
    group = Group(6)
    for number in range(10):
        group.join(f"m{number}")
        group.check()


def test_79_a_manual_commit_of_everything_polled_is_required() -> None:
    group = group_of(3, "a")
    for _ in range(3):
        group.poll("a", messages=5)  # offsets 0 to 4
    group.join("b")
    assert group.commit("a", 2, 3)
    assert group.pending("a") == [2]
    assert group.commit("a", 2, 4)
    assert group.lists() == [[0, 1], [2]]


def test_80_the_target_of_a_revocation_leaves() -> None:
    group = busy_group()
    group.leave("b")
    assert group.lists() == [[0, 1, 2]]
    assert group.pending("a") == []
    group.join("c")
    assert group.pending("a") == [2]
    group.commit("a", 2, 0)
    assert group.lists() == [[0, 1], [2]]


def test_81_concurrent_joins_give_one_each() -> None:
    group = Group(3)
    for key in "abc":  # no message between the joins
        group.workers[key] = Membership(1, 0, 0, 0)
        group.machine.join(key, 0)
    group.deliver()
    assert group.sizes() == [1, 1, 1]


def test_82_a_place_that_is_used_again_means_another_member() -> None:
    group = busy_group()
    group.leave("b")
    group.join("c")  # takes the place of b, the target of a hand-over
    member = group.machine.get("c")
    assert member is not None
    assert (member.place, member.id) == (1, 1)
    group.commit("a", 2, 0)
    assert group.workers["c"].partitions == [2]


def test_83_a_leave_does_not_complete_hand_overs_of_others() -> None:
    group = busy_group(6)
    pending = group.pending("a")
    assert pending == [3, 4, 5]
    group.join("c")
    group.leave("c")
    assert group.pending("a") == pending
    assert group.sizes() == [6, 0]
