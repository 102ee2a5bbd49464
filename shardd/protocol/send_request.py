"""SEND_MESSAGES as a value (docs/protocol/messages.md#batch), for callers that are no connections: the native engine
parses what a connection sends."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Self

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.primitives import Identifier
from shardd.protocol.record_layout import INDEX_ENTRY, RECORD_HEAD

_ID_BYTES: Final = 16


class PartitioningKind(IntEnum):
    """docs/protocol/primitives.md#partitioning."""

    BALANCED = 1
    PARTITION = 2
    KEY = 3


class Partitioning(msgspec.Struct, frozen=True):
    """Which partition a batch goes to: `partition` and `key` for the kinds of these names."""

    kind: PartitioningKind
    partition: int = 0
    key: bytes = b""

    def encode(self) -> bytes:
        value = self.key if self.kind is PartitioningKind.KEY else b""
        if self.kind is PartitioningKind.PARTITION:
            value = wire.u32(self.partition)
        return wire.u8(self.kind) + wire.u8(len(value)) + value


class NewMessage(msgspec.Struct, frozen=True):
    """A message as a producer gives it. `id` 0: the server makes one; `user_headers`: encoded."""

    payload: bytes
    user_headers: bytes = b""
    id: int = 0
    origin_timestamp_us: int = 0

    def encode(self) -> bytes:
        """The record; checksum, offset and timestamp are the server's."""
        identifier = self.id.to_bytes(_ID_BYTES, "little")
        lengths = len(self.user_headers), len(self.payload)
        head = RECORD_HEAD.pack(0, identifier, 0, 0, self.origin_timestamp_us, *lengths, 0)
        return head + self.payload + self.user_headers


class SendMessages(msgspec.Struct, frozen=True):
    """`batch`: `count` index entries, then the records."""

    stream: Identifier
    topic: Identifier
    partitioning: Partitioning
    count: int
    batch: bytes

    @classmethod
    def of(
        cls, stream: Identifier, topic: Identifier, partitioning: Partitioning, messages: Iterable[NewMessage]
    ) -> Self:
        records = [message.encode() for message in messages]
        index, end = [], 0
        for record in records:
            end += len(record)
            index.append(INDEX_ENTRY.pack(0, end, 0))
        return cls(stream, topic, partitioning, len(records), b"".join((*index, *records)))

    def encode(self) -> bytes:
        address = wire.identifier(self.stream) + wire.identifier(self.topic)
        metadata = address + self.partitioning.encode() + wire.u32(self.count)
        return wire.u32(len(metadata)) + metadata + self.batch
