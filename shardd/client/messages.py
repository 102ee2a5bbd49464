"""Messages: as producers give them and as polls bring them (docs/protocol/messages.md). The pure codec; `codec.py`
has the one that is used."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from shardd.client import wire
from shardd.client.errors import ProtocolError, SettingsError

Header = bytes | str | bool | int | float
PAYLOAD_BYTES_MAX: Final = 64_000_000
HEADERS_BYTES_MAX: Final = 100_000
RECORD_HEAD: Final = struct.Struct("<Q16sQQQIIQ")
INDEX_ENTRY: Final = struct.Struct("<IIQ")
POLLED_HEAD: Final = struct.Struct("<IQI")
_HISTORY_HEAD: Final = struct.Struct("<QQQII")
POSITION_HEAD_BYTES: Final = POLLED_HEAD.size + _HISTORY_HEAD.size
_SPARSE: Final = 1
_NO_ID: Final = bytes(16)
_KEY_HEAD: Final = struct.Struct("<BI")
_STRING: Final = 2
_RAW: Final = 1


class Message(NamedTuple):
    """A message of a poll. `headers`: encoded as the producer gave them, see `headers_of`."""

    partition: int
    offset: int
    timestamp_us: int
    payload: bytes
    headers: bytes
    id: int
    origin_timestamp_us: int
    checksum: int


class History(NamedTuple):
    """To which an offset of a partition belongs: a purge begins another one."""

    incarnation: int
    epoch: int = 0


class Polled(NamedTuple):
    """`current_offset`: the last one that polls may see, 0 when there is none. What follows `messages` is told by
    poll_position alone (docs/extensions.md#poll-position): `history` None: not told, incarnation 0: the member does not
    have the partition. `bytes_count`: of the answer."""

    partition: int
    current_offset: int
    messages: list[Message]
    history: History | None = None
    first_offset: int = 0
    is_sparse: bool = False
    epoch_from: int = 0
    bytes_count: int = 0


def with_history(answer: bytes, polled: Polled) -> Polled:
    """What the head of an answer of poll_position has behind that of a poll. ProtocolError."""
    if len(answer) < POSITION_HEAD_BYTES:
        raise ProtocolError("a poll's answer is cut")
    incarnation, first_offset, epoch_from, epoch, flags = _HISTORY_HEAD.unpack_from(answer, POLLED_HEAD.size)
    return polled._replace(
        history=History(incarnation, epoch),
        first_offset=first_offset,
        is_sparse=bool(flags & _SPARSE),
        epoch_from=epoch_from,
    )


class PayloadLines(NamedTuple):
    """The payloads of a poll, each with a line feed behind it. `size`: how many. `next_offset`: behind the last one;
    `last_checksum`: of that one; both 0 when there is none."""

    size: int
    next_offset: int
    last_checksum: int
    data: bytes


def encode_record(payload: bytes, headers: bytes = b"", origin_timestamp_us: int = 0, id_: bytes = _NO_ID) -> bytes:
    """The record; checksum, offset and timestamp are the server's."""
    return RECORD_HEAD.pack(0, id_, 0, 0, origin_timestamp_us, len(headers), len(payload), 0) + payload + headers


def encode_batch(head: bytes, records: list[bytes]) -> bytes:
    """The payload of SEND_MESSAGES. `head`: stream, topic and partitioning (`batch_head`)."""
    pack, end, index = INDEX_ENTRY.pack, 0, []
    for record in records:
        end += len(record)
        index.append(pack(0, end, 0))
    metadata = head + wire.u32(len(records))
    return b"".join((wire.u32(len(metadata)), metadata, *index, *records))


def batch_head(
    stream: wire.Identifier, topic: wire.Identifier, partition: int | None = None, key: bytes = b""
) -> bytes:
    """`key`: the server chooses by it; neither: the server takes the partitions in turn."""
    if key:
        if len(key) > 255:
            raise SettingsError("a key has more than 255 bytes")
        partitioning = b"\x03" + wire.u8(len(key)) + key
    else:
        partitioning = b"\x01\x00" if partition is None else b"\x02\x04" + wire.u32(partition)
    return wire.identifiers(stream, topic) + partitioning


def decode_polled(answer: bytes, head_size: int = POLLED_HEAD.size) -> Polled:
    """`head_size`: of what stands before the records. ProtocolError. Nothing is verified: the server has done that."""
    try:
        partition, current_offset, count = POLLED_HEAD.unpack_from(answer)
        messages, at, unpack = [], head_size, RECORD_HEAD.unpack_from
        for _ in range(count):
            checksum, id_, offset, timestamp_us, origin_us, headers_bytes, payload_bytes, _reserved = unpack(answer, at)
            begin = at + RECORD_HEAD.size
            middle = begin + payload_bytes
            at = middle + headers_bytes
            if at > len(answer):
                raise ProtocolError("a poll's answer is cut")
            messages.append(
                Message(
                    partition,
                    offset,
                    timestamp_us,
                    answer[begin:middle],
                    answer[middle:at],
                    int.from_bytes(id_, "little"),
                    origin_us,
                    checksum,
                )
            )
    except struct.error as error:
        raise ProtocolError("a poll's answer is cut") from error
    return Polled(partition, current_offset, messages)


def payload_lines(answer: bytes, head_size: int = POLLED_HEAD.size) -> PayloadLines:
    """Nothing else of a message is made. ProtocolError."""
    lines, next_offset, checksum, at = [], 0, 0, head_size
    try:
        _, _, count = POLLED_HEAD.unpack_from(answer)
        for _ in range(count):
            checksum, _, offset, _, _, headers_bytes, payload_bytes, _ = RECORD_HEAD.unpack_from(answer, at)
            begin = at + RECORD_HEAD.size
            end = begin + payload_bytes
            at = end + headers_bytes
            if at > len(answer):
                raise ProtocolError("a poll's answer is cut")
            next_offset = offset + 1
            lines.append(answer[begin:end])
    except struct.error as error:
        raise ProtocolError("a poll's answer is cut") from error
    lines.append(b"")
    return PayloadLines(count, next_offset, checksum, b"\n".join(lines))


def encode_headers(headers: Mapping[str, Header]) -> bytes:
    """As clients of Iggy 0.7 and 0.8 write them: keys are strings."""
    parts: list[bytes] = []
    for key, value in headers.items():
        kind, data = _header_value(value)
        name = key.encode()
        if not 0 < len(name) < 256 or not 0 < len(data) < 256:
            raise SettingsError(f"header {key!r}: key and value have 1 to 255 bytes")
        parts += (_KEY_HEAD.pack(_STRING, len(name)), name, _KEY_HEAD.pack(kind, len(data)), data)
    block = b"".join(parts)
    if len(block) > HEADERS_BYTES_MAX:
        raise SettingsError(f"headers have {len(block)} bytes, at most {HEADERS_BYTES_MAX} are allowed")
    return block


def _header_value(value: Header) -> tuple[int, bytes]:
    if isinstance(value, bytes):
        return _RAW, value
    if isinstance(value, str):
        return _STRING, value.encode()
    if isinstance(value, bool):
        return 3, wire.u8(value)
    if isinstance(value, float):
        return 15, struct.pack("<d", value)
    if not -(1 << 63) <= value < 1 << 63:
        raise SettingsError(f"header value {value} does not fit into 64 bits")
    return 7, struct.pack("<q", value)


_NUMBERS: Final = {4: "<b", 5: "<h", 6: "<i", 7: "<q", 9: "<B", 10: "<H", 11: "<I", 12: "<Q", 14: "<f", 15: "<d"}


def headers_of(block: bytes) -> dict[str, Header]:
    """The headers of a message. ProtocolError for what no client of 0.7 or 0.8 writes."""
    reader, found = wire.Reader(block), {}
    while reader:
        _kind, size = reader.unpack(_KEY_HEAD)
        key = reader.text(size)
        kind, size = reader.unpack(_KEY_HEAD)
        found[key] = _header(kind, reader.take(size))
    return found


def _header(kind: int, data: bytes) -> Header:
    try:
        if kind == _STRING:
            return data.decode()
        if kind == 3:
            return data != b"\x00"
        if kind in (8, 13):
            return int.from_bytes(data, "little", signed=kind == 8)
        if kind in _NUMBERS:
            number: int | float = struct.unpack(_NUMBERS[kind], data)[0]
            return number
    except (UnicodeDecodeError, struct.error) as error:
        raise ProtocolError("a header cannot be read") from error
    return data


def records_of(payloads: Iterable[bytes], headers: bytes = b"") -> list[bytes]:
    """Many messages without a key, quickly. SettingsError for one that is too large."""
    pack, size = RECORD_HEAD.pack, len(headers)
    records = [pack(0, _NO_ID, 0, 0, 0, size, len(payload), 0) + payload + headers for payload in payloads]
    if records and max(map(len, records)) > PAYLOAD_BYTES_MAX + RECORD_HEAD.size + size:
        raise SettingsError(f"a payload has more than {PAYLOAD_BYTES_MAX} bytes")
    return records
