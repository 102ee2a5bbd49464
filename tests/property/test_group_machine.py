"""Random histories of one consumer group: the decisions of shard 0 and what the workers know, against a plain model.

The model knows who polled what and what was committed, and checks after every step: one owner for each partition, none
without, fair shares, no move without need, hand-overs that end in time, and none of uncommitted work before that.
Faults planted in the machines must be found, or the model is worth nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shardd.groups import GroupMachine, Member, Membership, Move

TIMEOUT_US = 1000
PARTITIONS_MAX = 12


class World(RuleBasedStateMachine):
    """Shard 0 (`group`) and one worker for each member (`workers`)."""

    machine: type[GroupMachine] = GroupMachine
    membership: type[Membership] = Membership

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 0
        self.joined = 0
        self.offset = 0
        self.workers: dict[str, Membership] = {}
        self.told: dict[str, int] = {}
        self.uncommitted: dict[tuple[str, int], int] = {}  # highest offset polled and not covered by a commit

    @initialize(partitions=st.integers(0, PARTITIONS_MAX))
    def create(self, partitions: int) -> None:
        self.group = self.machine(partitions)

    # ---- what members do ----

    @rule()
    def join(self) -> None:
        if len(self.workers) >= 8:
            return
        key = f"client-{self.joined}"
        self.joined += 1
        before = self.owners()
        self.workers[key] = self.membership(group=1, stream_id=0, topic_id=0, group_id=0)
        self.group.join(key, self.now_us)
        assert all(self.owners()[partition] == owner for partition, owner in before.items()), "a join takes nothing"
        self.tell()

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 7))
    def leave(self, number: int) -> None:
        key = self.pick(number)
        before = self.owners()
        del self.workers[key]
        self.told.pop(key, None)
        self.uncommitted = {place: offset for place, offset in self.uncommitted.items() if place[0] != key}
        assert self.group.leave(key, self.now_us)
        after = self.owners()
        assert all(after.get(each) == owner for each, owner in before.items() if owner != key), "others keep theirs"
        self.tell()

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 7), messages=st.integers(0, 3), auto_commit=st.booleans())
    def poll(self, number: int, messages: int, auto_commit: bool) -> None:
        key = self.pick(number)
        self.poll_as(key, messages, auto_commit)

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 7))
    def poll_everything(self, number: int) -> None:
        key = self.pick(number)
        for _ in self.workers[key].partitions:
            self.poll_as(key, 1, False)

    def poll_as(self, key: str, messages: int, auto_commit: bool) -> None:
        worker = self.workers[key]
        partition = worker.next_partition(self.group.partitions_count)
        if partition is None:
            return
        assert partition not in worker.pending
        self.offset += messages
        worker.begin_poll(partition, auto_commit=auto_commit)
        self.tell()  # an assignment may come while the poll is under way
        worker.end_poll(messages, self.offset)
        if messages and worker.owns(partition):
            if auto_commit:
                self.uncommitted.pop((key, partition), None)
            else:
                self.uncommitted[key, partition] = self.offset
        self.report(key)

    @precondition(lambda self: self.uncommitted)
    @rule(number=st.integers(0, 30), back=st.integers(0, 2))
    def commit(self, number: int, back: int) -> None:
        key, partition = sorted(self.uncommitted)[number % len(self.uncommitted)]
        worker = self.workers[key]
        if not worker.owns(partition):  # lost to the timeout
            del self.uncommitted[key, partition]
            return
        offset = self.uncommitted[key, partition] - back
        worker.begin_commit(partition)
        worker.end_commit(offset)
        if back == 0:
            del self.uncommitted[key, partition]
        self.report(key)
        if back == 0:
            member = self.group.get(key)
            assert member is not None
            assert partition not in member.pending, "a commit ends the hand-over"

    # ---- what happens around ----

    @rule(partitions=st.integers(0, PARTITIONS_MAX))
    def resize(self, partitions: int) -> None:
        self.group.resize(partitions, self.now_us)
        self.uncommitted = {place: offset for place, offset in self.uncommitted.items() if place[1] < partitions}
        self.tell()

    @rule(passed_us=st.integers(0, 1500))
    def pass_time(self, passed_us: int) -> None:
        self.now_us += passed_us
        overdue = {
            partition
            for member in self.group.members()
            for partition, move in member.pending.items()
            if self.now_us - move.since_us >= TIMEOUT_US
        }
        assert self.group.expire(self.now_us, TIMEOUT_US) == len(overdue)
        self.tell()

    @precondition(lambda self: self.workers)
    @rule()
    def restart_of_shard_0(self) -> None:
        """A new machine gets what the workers know, the latest word first; nothing moves that nobody released."""
        before = self.owners()
        successor = self.machine(self.group.partitions_count)
        for key, worker in sorted(self.workers.items(), key=lambda each: -each[1].generation):
            successor.restore(key, worker.member_id, worker.place, worker.partitions, worker.generation)
        self.group = successor
        self.group.rebalance(self.now_us)
        assert self.owners() == before
        self.told.clear()
        self.tell()

    # ---- between shard 0 and the workers ----

    def pick(self, number: int) -> str:
        return sorted(self.workers)[number % len(self.workers)]

    def owners(self) -> dict[int, str]:
        return {partition: member.key for member in self.group.members() for partition in member.partitions}

    def tell(self) -> None:
        """As the hub does: until every worker knows, and what they let go of has moved."""
        while news := [each for each in self.group.members() if each.version > self.told.get(each.key, -1)]:
            for member in news:
                self.told[member.key] = member.version
                worker = self.workers[member.key]
                parts, pending = list(member.partitions), sorted(member.pending)
                assert worker.assign(member.version, member.id, member.place, parts, pending)
            for member in news:
                self.report(member.key, tell=False)

    def report(self, key: str, *, tell: bool = True) -> None:
        released = self.workers[key].release_idle()
        for partition in released:
            assert (key, partition) not in self.uncommitted, "work that is not committed was given away"
            assert self.group.complete(key, partition)
        if tell:
            self.tell()

    # ---- what always holds ----

    @invariant()
    def every_partition_has_one_owner(self) -> None:
        members = self.group.members()
        owned = [partition for member in members for partition in member.partitions]
        assert len(owned) == len(set(owned)), "two owners"
        assert sorted(owned) == (list(range(self.group.partitions_count)) if members else [])

    @invariant()
    def workers_know_their_assignment(self) -> None:
        for member in self.group.members():
            assert sorted(self.workers[member.key].partitions) == sorted(member.partitions)
        held = [partition for worker in self.workers.values() for partition in worker.partitions]
        assert len(held) == len(set(held))

    @invariant()
    def shares_are_fair(self) -> None:
        members = self.group.members()
        arriving = [move.target for member in members for move in member.pending.values()]
        shares = [len(each.partitions) - len(each.pending) + arriving.count(each.key) for each in members]
        assert not shares or max(shares) - min(shares) <= 1, "unfair when settled"

    @invariant()
    def nothing_moves_without_need(self) -> None:
        members = {member.key: member for member in self.group.members()}
        for member in members.values():
            for partition, move in member.pending.items():
                target = members[move.target]
                assert not target.pending, "who gives does not get"
                assert len(member.partitions) - len(target.partitions) >= 2
                assert partition in member.partitions

    @invariant()
    def hand_overs_end_in_time(self) -> None:
        for member in self.group.members():
            assert all(self.now_us - move.since_us < TIMEOUT_US for move in member.pending.values())

    @invariant()
    def pending_means_uncommitted(self) -> None:
        """Only who may still be at work keeps a partition back."""
        for member in self.group.members():
            for partition in member.pending:
                assert (member.key, partition) in self.uncommitted, "kept back without a reason"


def run(world: type[World], examples: int, steps: int, *, shrink: bool = True) -> None:
    run_state_machine_as_test(
        world,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            report_multiple_bugs=False,
        ),
    )


def test_random_histories_keep_the_rules() -> None:
    run(World, examples=60, steps=40)


@pytest.mark.slow
def test_long_random_histories_keep_the_rules() -> None:
    run(World, examples=300, steps=100)


# ---- planted faults ----


class TwoOwners(GroupMachine):
    def complete(self, key: str, partition: int) -> bool:
        done = super().complete(key, partition)
        if done and self._members[key].partitions:
            self._members[key].partitions.append(partition)
        return done


class OneMoveForEachJoin(GroupMachine):
    """As the reference: a joining member gets at most one partition."""

    def _plan_moves(
        self,
        members: Sequence[Member],
        partitions: Sequence[list[int]],
        pending: Sequence[dict[int, Move]],
        planned: dict[int, Move],
        now_us: int,
    ) -> Iterator[None]:
        yield from super()._plan_moves(members, partitions, pending, planned, now_us)
        targets: set[str] = set()
        for moves in pending:
            for partition, move in list(moves.items()):
                if move.target in targets:
                    del moves[partition]
                targets.add(move.target)


class LeaverKeepsPartitions(GroupMachine):
    def _give_out_free(self, partitions: list[list[int]]) -> Iterator[None]:
        if len(partitions) != 2:
            yield from super()._give_out_free(partitions)


class NeverExpires(GroupMachine):
    def expire(self, now_us: int, timeout_us: int) -> int:
        return sum(
            now_us - move.since_us >= timeout_us for member in self.members() for move in member.pending.values()
        )


class LostCommit(Membership):
    def end_commit(self, offset: int | None) -> None:
        super().end_commit(None)


class GivesAwayTooEarly(Membership):
    def end_poll(self, count: int, last_offset: int) -> None:
        super().end_poll(0, last_offset)


@pytest.mark.parametrize("fault", [TwoOwners, OneMoveForEachJoin, LeaverKeepsPartitions, NeverExpires])
def test_a_fault_on_shard_0_is_found(fault: type[GroupMachine]) -> None:
    world = type("Faulty", (World,), {"machine": fault})
    with pytest.raises(AssertionError):
        run(world, examples=3000, steps=40, shrink=False)


@pytest.mark.parametrize("fault", [LostCommit, GivesAwayTooEarly])
def test_a_fault_of_a_worker_is_found(fault: type[Membership]) -> None:
    world = type("Faulty", (World,), {"membership": fault})
    with pytest.raises(AssertionError):
        run(world, examples=3000, steps=40, shrink=False)
