"""Whose the consumer groups of a server are (docs/adr/0130-shares-of-stored-things.md): part of the state machine of
`apply.py`, as pure. A user may have as many as are left free. Groups of users that are gone count for no user, and
their places count as free; those of root and of earlier versions count for no user either, but take places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from shardd.metadata.liftbridge_shares import without_member_owner
from shardd.metadata.state import GroupShares, State, Stream, Topic, User
from shardd.protocol.errors import Status

GROUPS_MAX: Final = 65_536  # of the server


def counted_groups(streams: Mapping[int, Stream], users: Mapping[int, User]) -> GroupShares:
    """Of a state that was read."""
    there = {user.incarnation for user in users.values()}
    owners = Counter(
        group.owner
        for stream in streams.values()
        for topic in stream.topics.values()
        for group in topic.groups.values()
    )
    shares = GroupShares(total=owners.total())
    for owner, count in owners.items():
        if owner in there and owner:
            shares = replace(shares, of=shares.of.set(owner, count))
        elif owner:
            shares = replace(shares, gone=shares.gone + count)
    return shares


def with_group(state: State, owner: int) -> State:
    """`owner`: 0, or the incarnation of a user that there is."""
    shares = state.groups
    of = shares.of.set(owner, shares.of.get(owner, 0) + 1) if owner else shares.of
    return replace(state, groups=replace(shares, total=shares.total + 1, of=of))


def without_groups(state: State, topics: Iterable[Topic]) -> State:
    """All of these topics are gone."""
    owners = Counter(group.owner for topic in topics for group in topic.groups.values())
    return _without(state, owners) if owners else state


def without_group(state: State, owner: int) -> State:
    return _without(state, {owner: 1})


def _without(state: State, owners: Mapping[int, int]) -> State:
    total, gone, of = state.groups.total, state.groups.gone, state.groups.of
    for owner, count in owners.items():
        total -= count
        has = of.get(owner, 0)
        if has > count:
            of = of.set(owner, has - count)
        elif has:
            of = of.delete(owner)
        elif owner:
            gone -= count
    assert total >= gone >= 0
    return replace(state, groups=GroupShares(total, gone, of))


def without_owner(state: State, user: User) -> State:
    """Its groups, and its members of Liftbridge's, stay and count for no user."""
    state = replace(state, liftbridge=without_member_owner(state.liftbridge, user.incarnation))
    has = state.groups.of.get(user.incarnation, 0)
    if not has:
        return state
    shares = replace(state.groups, gone=state.groups.gone + has, of=state.groups.of.delete(user.incarnation))
    return replace(state, groups=shares)


def may_create(state: State, owner: int) -> Status:
    """5 when there are too many, or too many of this user. Where only groups of users that are gone are in the way, one
    of them is deleted before (`shardd.service.group_room`)."""
    if not has_share(state, owner) or state.groups.total >= GROUPS_MAX:
        return Status.FEATURE_UNAVAILABLE
    return Status.OK


def has_share(state: State, owner: int) -> bool:
    free = GROUPS_MAX - (state.groups.total - state.groups.gone)
    return state.groups.of.get(owner, 0) < free
