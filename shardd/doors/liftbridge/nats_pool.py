"""What clients of NATS make the door keep: bytes of all, at most half of them of one user, and subscriptions.

A member of such a room is a connection, or a user. It counts what has come already, and does not give way: a connection
without room is not read on, or is closed (nats_connection.py, nats_outbox.py, nats_audience.py)."""

from __future__ import annotations

from typing import Final

from shardd.runtime.crowds import Member

USER_SHARE: Final = 2


def member_of(user_id: int) -> Member:
    return Member(user_id, "", _stays, at_work=True)


def _stays() -> None:
    raise AssertionError("what has come does not give way")
