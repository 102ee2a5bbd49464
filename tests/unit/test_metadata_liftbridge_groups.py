"""Consumer groups of Liftbridge: partitions go where its own algorithm gives them, whatever happened before."""

from __future__ import annotations

import random

import pytest

from shardd.metadata.liftbridge_groups import (
    assigned,
    share_out,
    with_member,
    with_partitions,
    without_member,
    without_streams,
)
from shardd.metadata.liftbridge_state import NO_LIFTBRIDGE, Liftbridge

Assigned = dict[str, dict[str, list[int]]]


def assignments(liftbridge: Liftbridge, name: str = "g") -> Assigned:
    """By member and stream, ascending as they come."""
    group = liftbridge.groups[name]
    result: Assigned = {consumer: {} for consumer in group.members}
    for stream, shared in group.streams.items():
        for consumer, partitions in assigned(shared):
            result[consumer].setdefault(stream, []).extend(partitions)
    return result


class OneByOne:
    """The algorithm as Liftbridge describes it: a partition at a time to whoever has the fewest."""

    def __init__(self) -> None:
        self.members: dict[str, set[str]] = {}
        self.has: dict[str, dict[str, list[int]]] = {}
        self.sizes: dict[str, int] = {}

    def rebalance(self, stream: str) -> None:
        for streams in self.has.values():
            streams.pop(stream, None)
        subscribers = [member for member, streams in self.members.items() if stream in streams]
        for partition in range(self.sizes[stream] if subscribers else 0):
            chosen = min(subscribers, key=lambda member: (sum(map(len, self.has[member].values())), member))
            self.has[chosen].setdefault(stream, []).append(partition)

    def join(self, member: str, streams: set[str]) -> None:
        self.members[member], self.has[member] = streams, {}
        for stream in sorted(streams):
            self.rebalance(stream)

    def leave(self, member: str) -> None:
        had = self.has.pop(member)
        for stream in sorted(self.members.pop(member)):
            if stream in had:
                self.rebalance(stream)

    def delete(self, stream: str) -> None:
        concerned = [member for member, streams in self.members.items() if stream in streams]
        for member in concerned:
            self.members[member].discard(stream)
            self.has[member].pop(stream, None)
        for other in sorted({other for member in concerned for other in self.members[member]}):
            self.rebalance(other)

    def resize(self, stream: str, partitions: int) -> None:
        self.sizes[stream] = partitions
        self.rebalance(stream)


def test_the_worked_example_of_the_reference() -> None:
    sizes = {"cg1": 5, "cg2": 2}.__getitem__
    state = with_member(NO_LIFTBRIDGE, 10, "g", "c2", ["cg1", "cg2"], sizes)
    assert assignments(state) == {"c2": {"cg1": [0, 1, 2, 3, 4], "cg2": [0, 1]}}
    assert state.groups["g"].epoch == 0, "the first join makes the group"
    state = with_member(state, 11, "g", "c1", ["cg1"], sizes)
    assert assignments(state) == {"c1": {"cg1": [0, 1, 2, 4]}, "c2": {"cg1": [3], "cg2": [0, 1]}}
    assert state.groups["g"].epoch == 11
    state = with_member(state, 12, "g", "c3", ["cg1"], sizes)
    assert assignments(state) == {"c1": {"cg1": [0, 2, 4]}, "c2": {"cg2": [0, 1]}, "c3": {"cg1": [1, 3]}}
    state = without_member(state, 13, "g", "c3")
    assert assignments(state) == {"c1": {"cg1": [0, 1, 2, 4]}, "c2": {"cg1": [3], "cg2": [0, 1]}}
    state = without_streams(state, 14, ["cg1"])
    assert assignments(state) == {"c1": {}, "c2": {"cg2": [0, 1]}}
    assert state.groups["g"].epoch == 14 and state.groups["g"].members["c1"] == ()
    state = without_member(without_member(state, 15, "g", "c1"), 16, "g", "c2")
    assert state == NO_LIFTBRIDGE, "the last leave deletes the group"


@pytest.mark.parametrize("seed", range(40))
def test_any_history_gives_what_giving_out_one_by_one_gives(seed: int) -> None:
    rng = random.Random(seed)
    reference, state = OneByOne(), NO_LIFTBRIDGE
    reference.sizes = {f"s{number}": rng.choice([0, 1, 2, 7, 30]) for number in range(6)}
    for index in range(1, 60):
        streams = sorted(reference.sizes)
        match rng.randrange(6):
            case 0 | 1 | 2 if streams:
                member = f"m{rng.randrange(12)}"
                if member not in reference.members:
                    chosen = set(rng.sample(streams, rng.randint(1, len(streams))))
                    reference.join(member, set(chosen))
                    state = with_member(state, index, "g", member, chosen, reference.sizes.__getitem__)
            case 3 if reference.members:
                member = rng.choice(sorted(reference.members))
                reference.leave(member)
                state = without_member(state, index, "g", member)
            case 4 if len(streams) > 1 and rng.random() < 0.3:
                stream = rng.choice(streams)
                reference.delete(stream)
                del reference.sizes[stream]
                state = without_streams(state, index, [stream])
            case _ if streams:
                stream, partitions = rng.choice(streams), rng.randrange(40)
                reference.resize(stream, partitions)
                state = with_partitions(state, index, stream, partitions)
        if not reference.members:
            assert not state.groups and state.groups_size == 0 and not state.groups_of
            continue
        group = state.groups["g"]
        expected = {
            member: {stream: partitions for stream, partitions in streams.items() if partitions}
            for member, streams in reference.has.items()
        }
        assert assignments(state) == expected
        loads = {member: sum(map(len, streams.values())) for member, streams in expected.items()}
        assert dict(group.loads) == loads
        assert state.groups_size == group.size == len(loads) + sum(map(len, reference.members.values()))
        assert {stream: ("g",) for streams in reference.members.values() for stream in streams} == dict(state.groups_of)


def test_sharing_out_costs_what_there_are_members_not_partitions() -> None:
    members = [(number % 7, f"m{number:04}") for number in range(1_024)]
    shares = share_out(members, 10**12)
    assert sum(share.count for share in shares) == 10**12
    totals = sorted(share.base + share.count for share in shares)
    assert totals[-1] - totals[0] <= 1
