"""SEND_MESSAGES as a value (docs/protocol/messages.md#batch), for callers that are no connections: the native engine
parses what a connection sends."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Self

import msgspec

from shardd.protocol import limits
from shardd.protocol import primitives as wire
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier, Reader
from shardd.protocol.record_layout import INDEX_ENTRY, RECORD_HEAD

_ID_BYTES: Final = 16
_PARTITION_BYTES: Final = 4


class PartitioningKind(IntEnum):
    """docs/protocol/primitives.md#partitioning."""

    BALANCED = 1
    PARTITION = 2
    KEY = 3


_VALUE_BYTES: Final = {
    PartitioningKind.BALANCED: range(1),
    PartitioningKind.PARTITION: range(_PARTITION_BYTES, _PARTITION_BYTES + 1),
    PartitioningKind.KEY: range(1, limits.MESSAGES_KEY_BYTES_MAX + 1),
}


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

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """`ShardError` 3 for an unknown kind and for a value of another length than its kind has."""
        kind, value = reader.u8(), reader.take(reader.u8())
        if kind not in PartitioningKind._value2member_map_ or len(value) not in _VALUE_BYTES[PartitioningKind(kind)]:
            raise ShardError(Status.INVALID_COMMAND, f"partitioning {kind} with {len(value)} bytes")
        if kind == PartitioningKind.PARTITION:
            return cls(PartitioningKind.PARTITION, int.from_bytes(value, "little"))
        return cls(PartitioningKind(kind), key=value)


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

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """The whole payload; the service checks the batch. `ShardError` 3, and 6 for the names of stream and topic."""
        metadata = Reader(reader.take(reader.u32()))
        try:
            stream, topic = metadata.identifier(), metadata.identifier()
        except ShardError as error:
            raise ShardError(Status.INVALID_IDENTIFIER, str(error)) from error
        partitioning, count = Partitioning.read(metadata), metadata.u32()
        return cls(stream, topic, partitioning, count, bytes(reader.rest_view()))

    def encode(self) -> bytes:
        address = wire.identifier(self.stream) + wire.identifier(self.topic)
        metadata = address + self.partitioning.encode() + wire.u32(self.count)
        return wire.u32(len(metadata)) + metadata + self.batch
