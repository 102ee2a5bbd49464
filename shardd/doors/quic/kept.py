"""What a connection of QUIC keeps of its client: requests that come, and answers that are not read."""

from __future__ import annotations

import asyncio

import msgspec

from shardd.runtime.crowds import Member, Room


class Request(msgspec.Struct, eq=False):
    """A stream. `came`: bytes that were told of; `end`: of its frame, 0 until the head is there; `reserved`: bytes that
    have room as `member`; `is_released`: its bytes are not kept any more; `begun`: its frame is whole, or refused."""

    stream_id: int
    came_at_s: float
    data: bytearray
    came: int = 0
    end: int = 0
    code: int = 0
    reserved: int = 0
    member: Member | None = None
    is_released: bool = False
    begun: bool = False
    waiting: asyncio.Task[None] | None = None


class Unread(msgspec.Struct, eq=False):
    """An answer that its client has not read. A refusal has no room."""

    size: int
    due_s: float
    room: Room
    member: Member | None
