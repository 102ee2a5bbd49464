"""Whose the members of Liftbridge's consumer groups are (docs/adr/0138-shares-of-liftbridge-groups.md): part of the
state machine of `apply.py`, as pure. A member counts itself and its streams, until it leaves, for the user that made
it. A user may have as much as is left free, of all groups and of one. Members of users that are gone count for no user,
and their places count as free; those of root and of earlier versions count for no user either, but take places."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from immutables import Map
from msgspec.structs import replace

from shardd.metadata.commands import Ref
from shardd.metadata.liftbridge_state import (
    GROUP_SIZE_MAX,
    GROUPS_SIZE_MAX,
    MEMBERS_MAX,
    NO_OWNER,
    USER_SIZE_MAX,
    Charge,
    Liftbridge,
    LiftbridgeGroup,
)
from shardd.metadata.state import ROOT_USER_ID, State

_NO_GROUP: Final = LiftbridgeGroup("", 0)


def owner_of(state: State, user: Ref) -> int:
    found = state.users.get(user.id)
    there = found is not None and found.incarnation == user.incarnation
    return user.incarnation if there and user.id != ROOT_USER_ID else NO_OWNER


def charged(liftbridge: Liftbridge, charge: Charge) -> Liftbridge:
    """A member more. Its owner is there, or NO_OWNER."""
    owner, of = charge.owner, liftbridge.charged
    if owner != NO_OWNER:
        of = of.set(owner, of.get(owner, 0) + charge.size)
    return replace(liftbridge, charged=of, charged_all=liftbridge.charged_all + charge.size)


def discharged(liftbridge: Liftbridge, charge: Charge) -> Liftbridge:
    """A member less."""
    owner, of, gone = charge.owner, liftbridge.charged, liftbridge.charged_gone
    if owner in of:
        left = of[owner] - charge.size
        assert left >= 0
        of = of.set(owner, left) if left else of.delete(owner)
    elif owner != NO_OWNER:
        gone -= charge.size
    assert liftbridge.charged_all - charge.size >= gone >= 0
    return replace(liftbridge, charged=of, charged_gone=gone, charged_all=liftbridge.charged_all - charge.size)


def without_member_owner(liftbridge: Liftbridge, owner: int) -> Liftbridge:
    """The user is deleted: its members stay until they are silent."""
    size = liftbridge.charged.get(owner, 0)
    if not size:
        return liftbridge
    return replace(liftbridge, charged=liftbridge.charged.delete(owner), charged_gone=liftbridge.charged_gone + size)


def counted(liftbridge: Liftbridge, users: Collection[int]) -> Liftbridge:
    """Of a state that was read. `users`: incarnations of those that there are."""
    sizes = dict[int, int]()
    for group in liftbridge.groups.values():
        for charge in group.charges.values():
            sizes[charge.owner] = sizes.get(charge.owner, 0) + charge.size
    of = {owner: size for owner, size in sizes.items() if owner != NO_OWNER and owner in users}
    total = sum(sizes.values())
    gone = total - sum(of.values()) - sizes.get(NO_OWNER, 0)
    return replace(liftbridge, charged=Map(of), charged_all=total, charged_gone=gone)


def may_join(liftbridge: Liftbridge, name: str, owner: int, size: int) -> bool:
    """Whether a member that counts `size` has room, in its group and in the shares of its user."""
    group = liftbridge.groups.get(name, _NO_GROUP)
    if liftbridge.charged_all + size > GROUPS_SIZE_MAX:
        return False
    if len(group.members) >= MEMBERS_MAX or group.size + size > GROUP_SIZE_MAX:
        return False
    if owner == NO_OWNER:
        return True
    free = GROUPS_SIZE_MAX - (liftbridge.charged_all - liftbridge.charged_gone)
    if liftbridge.charged.get(owner, 0) + size > min(USER_SIZE_MAX, free):
        return False
    own, gone = _sizes(liftbridge, owner, group.charges.values())
    free_members = MEMBERS_MAX - (len(group.members) - len(gone))
    free_size = GROUP_SIZE_MAX - (group.size - sum(gone))
    return len(own) < free_members and sum(own) + size <= free_size


def _sizes(liftbridge: Liftbridge, owner: int, charges: Iterable[Charge]) -> tuple[list[int], list[int]]:
    """Of the members of the owner, and of those of users that are gone."""
    own, gone = list[int](), list[int]()
    for charge in charges:
        if charge.owner == owner:
            own.append(charge.size)
        elif charge.owner != NO_OWNER and charge.owner not in liftbridge.charged:
            gone.append(charge.size)
    return own, gone
