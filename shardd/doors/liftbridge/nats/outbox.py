"""The bytes on their way to a NATS client: bounded, and written once in a turn of the loop."""

from __future__ import annotations

import asyncio
from typing import Final

from shardd.doors.liftbridge.nats.pool import charge, member_of
from shardd.runtime.crowds import Room

UNSENT_BYTES_MAX: Final = 1 << 20  # of one connection: what another message may come behind
UNSENT_ALWAYS_BYTES: Final = 64 << 10  # what a connection has apart, however much others have


class Outbox:
    """Loop thread only. `pool`: of all connections; `user_id`: whose share of it this is. What is beyond
    `UNSENT_ALWAYS_BYTES` is of the pool, and counts before it is there."""

    def __init__(self, transport: asyncio.Transport, pool: Room, user_id: int) -> None:
        self._transport = transport
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._unsent_bytes = 0
        self._member = member_of(user_id)
        self._is_open = True
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def put(self, data: bytes) -> bool:
        """False: the client takes too little."""
        before, size = self._unsent_bytes, len(data)
        if before > UNSENT_BYTES_MAX:
            return False
        if not charge(self._pool, self._member, _beyond(before + size)):
            return False
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._parts_bytes += size
        self.charge()
        return True

    def flush(self) -> None:
        if self._parts and self._is_open:
            parts, self._parts, self._parts_bytes = self._parts, [], 0
            self._transport.write(b"".join(parts))
            self.charge()

    def charge(self) -> None:
        """Looks how much of it is not sent yet."""
        unsent = self._parts_bytes + self._transport.get_write_buffer_size() if self._is_open else 0
        self._unsent_bytes = unsent
        self._pool.count(self._member, _beyond(unsent))

    def move_to(self, user_id: int) -> None:
        """It is somebody else's from now on."""
        self._pool.count(self._member, 0)
        self._member = member_of(user_id)
        self.charge()

    def close(self, last: bytes = b"") -> None:
        """Sends what the system takes at once, and `last`; the rest is thrown away."""
        if not self._is_open:
            return
        self._parts.append(last)
        self.flush()
        self._is_open = False
        self.charge()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._transport.abort()


def _beyond(unsent_bytes: int) -> int:
    return max(0, unsent_bytes - UNSENT_ALWAYS_BYTES)
