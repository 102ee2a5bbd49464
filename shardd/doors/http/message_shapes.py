"""Messages as JSON: payloads and headers in base64, and what is between that and records."""

from __future__ import annotations

import base64
import struct
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from shardd.doors.http.shapes import U32, U64
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import PollingKind
from shardd.protocol.record_layout import RECORD_HEAD
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind

HeaderKind = Literal[
    "raw", "string", "bool", "int8", "int16", "int32", "int64", "int128", "uint8", "uint16", "uint32", "uint64",
    "uint128", "float32", "float64",
]  # fmt: skip
_KINDS: Final[tuple[HeaderKind, ...]] = HeaderKind.__args__  # type: ignore[attr-defined]  # from 1 on, as on the wire
_ENTRY: Final = struct.Struct("<BI")
_PART_BYTES_MAX: Final = 255
_ID_END: Final = 1 << 128
_PARTITION_BYTES: Final = 4


class HeaderPart(msgspec.Struct, frozen=True):
    """`value` as the header has it: numbers are little-endian."""

    kind: HeaderKind
    value: bytes


class HeaderEntry(msgspec.Struct, frozen=True):
    key: HeaderPart
    value: HeaderPart


class NewPartitioning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`value`: nothing, 4 bytes of a partition's id (little-endian), or the bytes of a key."""

    kind: Literal["balanced", "partition_id", "messages_key"]
    value: bytes


class SentMessage(msgspec.Struct, frozen=True):
    """`id`: a number, its digits or a UUID; 0 or none: the server makes one. `user_headers`: entries, or the encoded
    block in base64."""

    payload: bytes
    id: int | str | None = None
    user_headers: Sequence[HeaderEntry] | str | None = None


class SendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    partitioning: NewPartitioning
    messages: Sequence[SentMessage]


class PollQuery(msgspec.Struct, frozen=True):
    consumer_id: str = "1"
    partition_id: U32 | None = 0
    kind: Literal["offset", "timestamp", "first", "last", "next"] = "offset"
    value: U64 = 0
    count: U32 = 10
    auto_commit: bool = False


class MessageHeader(msgspec.Struct, frozen=True, gc=False):
    checksum: int
    id: int
    offset: int
    timestamp_us: int = msgspec.field(name="timestamp")
    origin_timestamp_us: int = msgspec.field(name="origin_timestamp")
    user_headers_length: int
    payload_length: int
    reserved: int = 0


class PolledMessage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Without headers there is no `user_headers`; a block that cannot be read is base64 of it."""

    header: MessageHeader
    payload: bytes
    user_headers: Sequence[HeaderEntry] | str | None = None


class Polled(msgspec.Struct, frozen=True):
    partition_id: int
    current_offset: int
    count: int
    messages: Sequence[PolledMessage]


POLLING: Final = {each.name.lower(): each for each in PollingKind}


def partitioning_of(said: NewPartitioning) -> Partitioning:
    """ShardError 3, 4028."""
    if said.kind == "balanced":
        return Partitioning(PartitioningKind.BALANCED)
    if not said.value:
        raise ShardError(Status.INVALID_KEY_VALUE_LENGTH)
    if said.kind == "messages_key":
        return Partitioning(PartitioningKind.KEY, key=said.value)
    if len(said.value) != _PARTITION_BYTES:
        raise ShardError(Status.INVALID_COMMAND, "a partition has 4 bytes")
    return Partitioning(PartitioningKind.PARTITION, int.from_bytes(said.value, "little"))


def new_message(said: SentMessage) -> NewMessage:
    """ShardError 4 for an id that is none, and for headers that are too long."""
    return NewMessage(said.payload, _encoded_headers(said.user_headers), _id_of(said.id))


def polled_messages(records: bytes, count: int) -> Iterator[PolledMessage]:
    """The records of a poll. In one loop: this is most of what a poll over HTTP costs. ShardError 3 for cut ones."""
    unpack, head_bytes, at = RECORD_HEAD.unpack_from, RECORD_HEAD.size, 0
    try:
        for _ in range(count):
            checksum, id_, offset, timestamp_us, origin_us, headers, payload, _ = unpack(records, at)
            at += head_bytes
            end = at + payload
            body = records[at:end]
            at = end + headers
            header = MessageHeader(
                checksum, int.from_bytes(id_, "little"), offset, timestamp_us, origin_us, headers, payload
            )
            yield PolledMessage(header, body, headers_of(records[end:at]) if headers else None)
    except struct.error:
        at = len(records) + 1
    if at > len(records):
        raise ShardError(Status.INVALID_COMMAND, "the records are cut")


def headers_of(block: bytes) -> Sequence[HeaderEntry] | str:
    """Base64 of a block that is not as clients of today write it."""
    entries, at = [], 0
    try:
        while at < len(block):
            key, at = _part_at(block, at)
            value, at = _part_at(block, at)
            entries.append(HeaderEntry(key, value))
    except (struct.error, ValueError):
        return base64.b64encode(block).decode()
    return entries


def _part_at(block: bytes, at: int) -> tuple[HeaderPart, int]:
    kind, length = _ENTRY.unpack_from(block, at)
    end = at + _ENTRY.size + length
    if not 1 <= kind <= len(_KINDS) or not 1 <= length <= _PART_BYTES_MAX or end > len(block):
        raise ValueError
    return HeaderPart(_KINDS[kind - 1], block[at + _ENTRY.size : end]), end


def _encoded_headers(said: Sequence[HeaderEntry] | str | None) -> bytes:
    if said is None:
        return b""
    if isinstance(said, str):
        try:
            return base64.b64decode(said, validate=True)
        except ValueError:
            raise ShardError(Status.INVALID_FORMAT, "user headers are no base64") from None
    return b"".join(_encoded_part(part) for entry in said for part in (entry.key, entry.value))


def _encoded_part(part: HeaderPart) -> bytes:
    if not 1 <= len(part.value) <= _PART_BYTES_MAX:
        raise ShardError(Status.INVALID_FORMAT, "a header has 1 to 255 bytes")
    return _ENTRY.pack(_KINDS.index(part.kind) + 1, len(part.value)) + part.value


_ID_DIGITS_MAX: Final = 39  # of 128 bits


def _id_of(said: Any) -> int:
    if said is None:
        return 0
    try:
        is_number = isinstance(said, int) or (said.isdecimal() and len(said) <= _ID_DIGITS_MAX)
        number = int(said) if is_number else uuid.UUID(said).int
    except ValueError:
        number = -1
    if not 0 <= number < _ID_END:
        raise ShardError(Status.INVALID_FORMAT, "no id of a message")
    return number
