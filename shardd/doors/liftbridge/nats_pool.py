"""What clients of NATS make the door keep: bytes and subscriptions of all. A user has at most as much of them as he
leaves to others.

A member of such a room is a connection, or a user. It counts what is there, and does not give way: a connection without
room is not read on, or is closed (nats_connection.py, nats_outbox.py, nats_audience.py). Each connection has some bytes
apart, which are not of the room: what others have does not touch it while it keeps to these. A stranger has no more."""

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
