"""CHANGE_TOPIC (0x5344_0023), an extension command: UPDATE_TOPIC of some of the values. Sans-IO, both directions.
Layout: docs/extensions.md#change-topic."""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier, Reader

NAME: Final = 1
COMPRESSION: Final = 2
MESSAGE_EXPIRY: Final = 4
MAX_TOPIC_SIZE: Final = 8
REPLICATION_FACTOR: Final = 16
_KNOWN: Final = 31


class ChangeTopic(msgspec.Struct, frozen=True):
    """None: the value of the topic stays."""

    stream: Identifier
    topic: Identifier
    name: str | None = None
    compression: int | None = None
    message_expiry_us: int | None = None
    max_topic_size_bytes: int | None = None
    replication_factor: int | None = None

    @classmethod
    def read(cls, reader: Reader) -> ChangeTopic:
        stream, topic, present = reader.identifier(), reader.identifier(), reader.u8()
        if not 0 < present <= _KNOWN:
            raise ShardError(Status.INVALID_FORMAT, f"presence bits {present}")
        return cls(
            stream,
            topic,
            reader.name() if present & NAME else None,
            reader.u8() if present & COMPRESSION else None,
            reader.u64() if present & MESSAGE_EXPIRY else None,
            reader.u64() if present & MAX_TOPIC_SIZE else None,
            reader.u8() if present & REPLICATION_FACTOR else None,
        )

    def encode(self) -> bytes:
        said = (
            (NAME, None if self.name is None else wire.text8(self.name)),
            (COMPRESSION, None if self.compression is None else wire.u8(self.compression)),
            (MESSAGE_EXPIRY, None if self.message_expiry_us is None else wire.u64(self.message_expiry_us)),
            (MAX_TOPIC_SIZE, None if self.max_topic_size_bytes is None else wire.u64(self.max_topic_size_bytes)),
            (REPLICATION_FACTOR, None if self.replication_factor is None else wire.u8(self.replication_factor)),
        )
        present = sum(bit for bit, value in said if value is not None)
        head = wire.identifier(self.stream) + wire.identifier(self.topic) + wire.u8(present)
        return head + b"".join(value for _, value in said if value is not None)
