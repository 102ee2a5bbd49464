"""Primitive types of the classic protocol (docs/protocol/primitives.md): reader, identifiers, names, little encoders.
Sans-IO.

All integers are little-endian. `Reader` raises `ShardError`: 3 for cut payloads, bad UTF-8 and unknown discriminants,
4 for broken structural rules (docs/protocol/framing.md#bad-input). Bytes behind a well-formed payload are never looked
at.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import msgspec

from shardd.protocol import limits
from shardd.protocol.errors import ShardError, Status

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_OPTIONAL_PARTITION: Final = struct.Struct("<BI")
_STRATEGY: Final = struct.Struct("<BQ")


class ConsumerKind(IntEnum):
    """docs/protocol/primitives.md#consumer."""

    CONSUMER = 1
    GROUP = 2


class PollingKind(IntEnum):
    """docs/protocol/primitives.md#polling-strategy."""

    OFFSET = 1
    TIMESTAMP = 2
    FIRST = 3
    LAST = 4
    NEXT = 5


class Compression(IntEnum):
    """docs/protocol/primitives.md#topic-values."""

    NONE = 1
    GZIP = 2


Identifier = int | str
"""A numeric id (u32) or a name; a name is never converted to a number (docs/protocol/primitives.md#identifier)."""

Payload = bytes | memoryview


class Consumer(msgspec.Struct, frozen=True):
    """docs/protocol/primitives.md#consumer. `consumer_id` needs a hash for names, so it is computed by
    `shardd.engine`."""

    kind: ConsumerKind
    identifier: Identifier


class Reader:
    """Sequential reader over one payload. Every method advances or raises `ShardError`."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: Payload) -> None:
        self._data = data
        self._position = 0

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._position

    def take(self, size: int) -> bytes:
        """The next `size` bytes; 3 when the payload is cut."""
        end = self._position + size
        if end > len(self._data):
            raise ShardError(Status.INVALID_COMMAND, "payload is cut")
        piece = self._data[self._position : end]
        self._position = end
        return piece if isinstance(piece, bytes) else bytes(piece)

    def rest_view(self) -> memoryview:
        """What is not read yet, as a view: nothing is copied."""
        view = memoryview(self._data)[self._position :]
        self._position = len(self._data)
        return view

    def u8(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def flag(self) -> bool:
        """A value boolean: any non-zero is true (docs/protocol/primitives.md#small-types)."""
        return self.u8() != 0

    def text(self, size: int) -> str:
        """UTF-8 text of `size` bytes; 3 when it is not UTF-8."""
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ShardError(Status.INVALID_COMMAND, "text is not UTF-8") from error

    def text8(self) -> str:
        """`str8`, also empty (passwords)."""
        return self.text(self.u8())

    def text32(self) -> str:
        """`str32`, also empty."""
        return self.text(self.u32())

    def name(self) -> str:
        """A name of 1..255 bytes; 4 when it is empty (docs/protocol/primitives.md#small-types)."""
        size = self.u8()
        if size == 0:
            raise ShardError(Status.INVALID_FORMAT, "name is empty")
        return self.text(size)

    def identifier(self) -> Identifier:
        """Identifier (docs/protocol/primitives.md#identifier): 3 unknown kind or cut, 4 length 0 or a number that is
        not 4 bytes."""
        kind = self.u8()
        size = self.u8()
        if kind not in (1, 2):
            raise ShardError(Status.INVALID_COMMAND, "unknown kind of identifier")
        if size == 0 or (kind == 1 and size != limits.NUMERIC_IDENTIFIER_BYTES):
            raise ShardError(Status.INVALID_FORMAT, "bad length of an identifier")
        return self.u32() if kind == 1 else self.text(size)

    def consumer(self) -> Consumer:
        """Consumer (docs/protocol/primitives.md#consumer): 3 for an unknown kind."""
        kind = self.u8()
        if kind not in (ConsumerKind.CONSUMER, ConsumerKind.GROUP):
            raise ShardError(Status.INVALID_COMMAND, "unknown kind of consumer")
        return Consumer(ConsumerKind(kind), self.identifier())

    def optional_partition(self) -> int | None:
        """Optional partition id (docs/protocol/primitives.md#small-types): present only when the flag is exactly 1."""
        present, partition = _OPTIONAL_PARTITION.unpack(self.take(_OPTIONAL_PARTITION.size))
        return int(partition) if present == 1 else None

    def polling_strategy(self) -> tuple[PollingKind, int]:
        """(kind, value) (docs/protocol/primitives.md#polling-strategy): 3 for an unknown kind."""
        kind, value = _STRATEGY.unpack(self.take(_STRATEGY.size))
        if not PollingKind.OFFSET <= kind <= PollingKind.NEXT:
            raise ShardError(Status.INVALID_COMMAND, "unknown kind of polling strategy")
        return PollingKind(kind), int(value)


def u8(value: int) -> bytes:
    return bytes((value,))


def u32(value: int) -> bytes:
    return _U32.pack(value)


def u64(value: int) -> bytes:
    return _U64.pack(value)


def text8(value: str) -> bytes:
    """`str8`; ValueError above 255 bytes of UTF-8."""
    data = value.encode("utf-8")
    return u8(len(data)) + data


def text32(value: str) -> bytes:
    data = value.encode("utf-8")
    return u32(len(data)) + data


def identifier(value: Identifier) -> bytes:
    """Encodes an identifier (docs/protocol/primitives.md#identifier)."""
    if isinstance(value, int):
        return b"\x01\x04" + u32(value)
    return b"\x02" + text8(value)


def optional_partition(value: int | None) -> bytes:
    """Encodes an optional partition id (docs/protocol/primitives.md#small-types)."""
    if value is None:
        return _OPTIONAL_PARTITION.pack(0, limits.PARTITION_ID_ABSENT)
    return _OPTIONAL_PARTITION.pack(1, value)


def consumer(value: Consumer) -> bytes:
    """Encodes a consumer (docs/protocol/primitives.md#consumer)."""
    return u8(value.kind) + identifier(value.identifier)
