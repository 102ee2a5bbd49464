"""LEASE_FILES (0x5344_0012), an extension command: files of segments stay for a while for who reads them directly.
Sans-IO, both directions. Layout and what it promises: docs/extensions.md#lease-files."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.primitives import Identifier, Reader

LEASE_MAX_S: Final = 600  # of one request; a reader that goes on asks again
_TAIL: Final = struct.Struct("<IQI")


class LeaseFiles(msgspec.Struct, frozen=True):
    """Of a partition, from the segment on that has `offset`, for `seconds`; 0: the lease ends."""

    stream: Identifier
    topic: Identifier
    partition: int
    offset: int
    seconds: int

    @classmethod
    def read(cls, reader: Reader) -> LeaseFiles:
        stream, topic = reader.identifier(), reader.identifier()
        return cls(stream, topic, *_TAIL.unpack(reader.take(_TAIL.size)))

    def encode(self) -> bytes:
        address = wire.identifier(self.stream) + wire.identifier(self.topic)
        return address + _TAIL.pack(self.partition, self.offset, self.seconds)
