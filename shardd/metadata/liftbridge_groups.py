"""Consumer groups of Liftbridge (Lb 1.8): who has which partitions. Pure, part of the state machine.

Liftbridge gives the partitions of a stream out one by one, each to the subscriber with the fewest of all streams, ties
to the smaller id. The result follows from what each had before, so it is calculated: for every level the subscribers at
or below it get one each, in the order of their ids. That costs as much as there are subscribers, however many
partitions there are."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from immutables import Map
from msgspec.structs import replace

from shardd.metadata.liftbridge_shares import charged, discharged
from shardd.metadata.liftbridge_state import NO_OWNER, Charge, Liftbridge, LiftbridgeGroup, Share, SharedStream

_NOBODY: Final = SharedStream(0, ())
Base = tuple[int, str]  # partitions of other streams, id of the member
Sizes = Callable[[str], int]
"""How many partitions a stream has now."""


def _stages(bases: Sequence[Base], partitions: int) -> Iterator[tuple[list[str], int, int]]:
    """(members by id, first partition, whole rounds): each gets one partition in a round; 0 rounds: what is left, to
    the first of them. `bases` in order."""
    active: list[str] = []
    level, given, at = bases[0][0] if bases else 0, 0, 0
    while given < partitions and bases:
        while at < len(bases) and bases[at][0] == level:
            insort(active, bases[at][1])
            at += 1
        rounds = (partitions - given) // len(active)
        if at < len(bases):
            rounds = min(rounds, bases[at][0] - level)
        yield active, given, rounds
        given += rounds * len(active) if rounds else len(active)
        level += rounds


def share_out(bases: Iterable[Base], partitions: int) -> tuple[Share, ...]:
    """By id of the member."""
    ordered = sorted(bases)
    counts = dict.fromkeys((consumer for _, consumer in ordered), 0)
    stages = _stages(ordered, partitions)
    level = ordered[0][0] if ordered else 0
    for active, given, rounds in stages:
        level += rounds
        if not rounds:
            for consumer in active[: partitions - given]:
                counts[consumer] = 1
    shares = (Share(consumer, base, counts[consumer] + max(level - base, 0)) for base, consumer in ordered)
    return tuple(sorted(shares, key=lambda share: share.consumer))


def assigned(shared: SharedStream) -> Iterator[tuple[str, range]]:
    """(member, partitions) of the stream, in ascending order for each member: what giving them out one by one leads
    to."""
    bases = sorted((share.base, share.consumer) for share in shared.shares)
    for active, given, rounds in _stages(bases, shared.partitions):
        count = len(active)
        end = given + rounds * count if rounds else shared.partitions
        for number, consumer in enumerate(active[: shared.partitions - given]):
            yield consumer, range(given + number, end, count)


def with_member(
    liftbridge: Liftbridge,
    index: int,
    name: str,
    consumer: str,
    streams: Iterable[str],
    sizes: Sizes,
    user_id: int = 0,
    owner: int = NO_OWNER,
) -> Liftbridge:
    """A member more, of this user. The first one makes the group, whose epoch is 0."""
    known = liftbridge.groups.get(name)
    group = LiftbridgeGroup(name, 0) if known is None else replace(known, epoch=index)
    ordered = tuple(sorted(set(streams)))
    charge = Charge(user_id, 1 + len(ordered), owner)
    group = replace(
        group,
        members=group.members.set(consumer, ordered),
        loads=group.loads.set(consumer, 0),
        charges=group.charges.set(consumer, charge),
        size=group.size + 1 + len(ordered),
    )
    for stream in ordered:
        subscribers = [share.consumer for share in group.streams.get(stream, _NOBODY).shares]
        group = _rebalanced(group, stream, (*subscribers, consumer), sizes(stream))
    return charged(_with_group(liftbridge, known, group), charge)


def without_member(liftbridge: Liftbridge, index: int, name: str, consumer: str) -> Liftbridge:
    """A member less; with the last one the group goes."""
    known = liftbridge.groups[name]
    streams = known.members[consumer]
    group = replace(known, epoch=index, members=known.members.delete(consumer), size=known.size - 1 - len(streams))
    for stream in streams:
        shared = group.streams[stream]
        kept = tuple(share for share in shared.shares if share.consumer != consumer)
        if not kept or any(share.count for share in shared.shares if share.consumer == consumer):
            group = _rebalanced(group, stream, [share.consumer for share in kept], shared.partitions)
        else:  # it had none, so the others have what they would have without it
            group = replace(group, streams=group.streams.set(stream, SharedStream(shared.partitions, kept)))
    charge = group.charges[consumer]
    group = replace(group, loads=group.loads.delete(consumer), charges=group.charges.delete(consumer))
    return discharged(_with_group(liftbridge, known, group), charge)


def without_streams(liftbridge: Liftbridge, index: int, gone: Iterable[str]) -> Liftbridge:
    """Streams that are not there any more: of every group that had subscribed to one, the other streams of those
    members are shared out again, in the order of their names."""
    gone = frozenset(gone)
    for name in sorted({group for stream in gone for group in liftbridge.groups_of.get(stream, ())}):
        known = group = liftbridge.groups[name]
        touched: set[str] = set()
        concerned = {share.consumer for stream in gone for share in known.streams.get(stream, _NOBODY).shares}
        for stream in sorted(gone):
            if stream in group.streams:
                group = _rebalanced(group, stream, (), 0)
        members, size = group.members, group.size
        for consumer in sorted(concerned):
            kept = tuple(stream for stream in members[consumer] if stream not in gone)
            size -= len(members[consumer]) - len(kept)
            members = members.set(consumer, kept)
            touched.update(kept)
        group = replace(group, epoch=index, members=members, size=size)
        for stream in sorted(touched):
            shared = group.streams[stream]
            group = _rebalanced(group, stream, [share.consumer for share in shared.shares], shared.partitions)
        liftbridge = _with_group(liftbridge, known, group)
    return liftbridge


def with_partitions(liftbridge: Liftbridge, index: int, stream: str, partitions: int) -> Liftbridge:
    """A stream has another number of partitions now."""
    for name in liftbridge.groups_of.get(stream, ()):
        known = liftbridge.groups[name]
        subscribers = [share.consumer for share in known.streams[stream].shares]
        group = _rebalanced(replace(known, epoch=index), stream, subscribers, partitions)
        liftbridge = _with_group(liftbridge, known, group)
    return liftbridge


def _rebalanced(group: LiftbridgeGroup, stream: str, subscribers: Iterable[str], partitions: int) -> LiftbridgeGroup:
    """Takes all partitions of the stream from everybody, and gives them out."""
    loads = dict[str, int]()
    for share in group.streams.get(stream, _NOBODY).shares:
        loads[share.consumer] = group.loads[share.consumer] - share.count
    bases = [(loads.get(consumer, group.loads[consumer]), consumer) for consumer in subscribers]
    shares = share_out(bases, partitions)
    for share in shares:
        loads[share.consumer] = share.base + share.count
    with group.loads.mutate() as changed:
        changed.update(loads)
        all_loads = changed.finish()
    streams = group.streams
    if shares:
        streams = streams.set(stream, SharedStream(partitions, shares))
    elif stream in streams:
        streams = streams.delete(stream)
    return replace(group, loads=all_loads, streams=streams)


def _with_group(liftbridge: Liftbridge, known: LiftbridgeGroup | None, group: LiftbridgeGroup) -> Liftbridge:
    """The group in the place of what was known of it, with what is known about groups of streams."""
    groups = liftbridge.groups.set(group.name, group) if group.members else liftbridge.groups.delete(group.name)
    before = Map[str, SharedStream]() if known is None else known.streams
    groups_of = liftbridge.groups_of
    for stream in set(before) - set(group.streams):
        left = tuple(name for name in groups_of[stream] if name != group.name)
        groups_of = groups_of.set(stream, left) if left else groups_of.delete(stream)
    for stream in set(group.streams) - set(before):
        groups_of = groups_of.set(stream, tuple(sorted((*groups_of.get(stream, ()), group.name))))
    size = liftbridge.groups_size - (0 if known is None else known.size) + group.size
    return replace(liftbridge, groups=groups, groups_of=groups_of, groups_size=size)
