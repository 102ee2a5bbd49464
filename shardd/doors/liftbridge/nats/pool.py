"""The shared rooms for bytes and subscriptions of all NATS clients. A user has at most as much of a room as the user
leaves to others.

A member of such a room is a connection, or a user. A member does not give way: a connection without room is not read
on, or is closed (connection.py, outbox.py, audience.py). Each connection has some bytes of its own outside the room,
which other connections cannot take. A connection without a login has only these."""

from __future__ import annotations

from typing import Final

from shardd.runtime.crowds import Member, Room

USER_SHARE: Final = 2
NOBODY: Final = -1  # the user of a connection that has not said who it is


def charge(room: Room, member: Member, size: int) -> bool:
    """The member has so much from now on, if that is not more, or its user may have it; else it has what it had."""
    more = size - member.size
    if more > 0 and (member.owner == NOBODY or not room.has_room(member.owner, member.address, more)):
        return False
    room.count(member, size)
    return True


def member_of(user_id: int) -> Member:
    return Member(user_id, "", _stays, at_work=True)


def _stays() -> None:
    raise AssertionError("what has come does not give way")
