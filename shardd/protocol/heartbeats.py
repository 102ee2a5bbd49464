"""ANNOUNCE_HEARTBEAT (0x5344_0002), an extension command: a connection that promises signs of life. Sans-IO, both
directions. Layout and what follows from it: docs/extensions.md#announce-heartbeat."""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.primitives import Reader

TIMEOUT_MIN_MS: Final = 1_000  # a shorter one would take each pause of a busy machine for an end
TIMEOUT_MAX_MS: Final = 3_600_000


class HeartbeatTimeout(msgspec.Struct, frozen=True):
    """Of the request: the longest silence that the client announces. Of the answer: the one that the server allows."""

    timeout_ms: int

    @classmethod
    def read(cls, reader: Reader) -> HeartbeatTimeout:
        return cls(reader.u32())

    def encode(self) -> bytes:
        return wire.u32(self.timeout_ms)
