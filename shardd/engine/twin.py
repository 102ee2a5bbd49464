"""The executable specification of the pure native functions, in plain Python: hashes, SEND_MESSAGES validation and
assignment. Record and index scans stand in `twin_record.py`. Same signatures as `_native.pyi`.

Correctness over speed: nothing but the differential tests (`tests/parity`) and readers should need it.

    record (native/src/log/record.h)                         index entry in a request
    offset size field            offset size field           offset size field
    0      8    checksum         40     8    origin_timestamp  0    4    offset, must be 0
    8      16   id               48     4    user headers len  4    4    position: end of the message, cumulative
    24     8    offset           52     4    payload length    8    8    timestamp, must be 0
    32     8    timestamp        56     8    reserved, 0
    64          payload, then user headers

The checksum is XXH3-64 over byte 8 to the end. Requests: docs/protocol/messages.md#batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import mmh3
import xxhash

from shardd.engine import _native
from shardd.engine.twin_record import BODY_OFFSET, HEADER_BYTES, INDEX_ENTRY, LENGTHS, PAYLOAD_MAX, USER_HEADERS_MAX

PARTITIONING_BALANCED: Final = 1
PARTITIONING_PARTITION_ID: Final = 2
PARTITIONING_MESSAGES_KEY: Final = 3

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_MASK64: Final = (1 << 64) - 1


def owner(namespace: int, shards: int) -> int:
    """The shard that owns a partition (docs/protocol/records.md#placement)."""
    return (mmh3.hash(_U64.pack(namespace), seed=0, signed=False) >> 16) % shards


def xxh32(data: bytes) -> int:
    """Seed 0: keys, consumer names, client ids (docs/protocol/primitives.md#hashes)."""
    return xxhash.xxh32_intdigest(data, 0)


# ---- validation of a SEND_MESSAGES payload ----


class _BatchRefusedError(Exception):
    """A batch that the engine refuses with this status."""

    def __init__(self, status: int) -> None:
        self.status = status


def _identifier(metadata: bytes) -> bytes:
    """The raw identifier at the start of `metadata`; 6 when it is malformed or cut."""
    if len(metadata) < 2 or len(metadata) - 2 < metadata[1]:
        raise _BatchRefusedError(_native.STATUS_INVALID_IDENTIFIER)
    kind, length = metadata[0], metadata[1]
    raw = metadata[: 2 + length]
    if kind == 1 and length == 4:
        return raw
    if kind != 2 or length == 0:
        raise _BatchRefusedError(_native.STATUS_INVALID_IDENTIFIER)
    try:
        raw[2:].decode("utf-8")
    except UnicodeDecodeError:
        raise _BatchRefusedError(_native.STATUS_INVALID_IDENTIFIER) from None
    return raw


def _partitioning(metadata: bytes) -> tuple[int, int, bytes, int]:
    """(kind, partition id, key, count). Bytes behind the count are ignored."""
    if len(metadata) < 2 or len(metadata) - 2 < metadata[1]:
        raise _BatchRefusedError(_native.STATUS_INVALID_COMMAND)
    kind, length = metadata[0], metadata[1]
    value, rest = metadata[2 : 2 + length], metadata[2 + length :]
    lengths = {PARTITIONING_BALANCED: (0,), PARTITIONING_PARTITION_ID: (4,), PARTITIONING_MESSAGES_KEY: range(256)}
    if length not in lengths.get(kind, ()) or len(rest) < 4:
        raise _BatchRefusedError(_native.STATUS_INVALID_COMMAND)
    partition = _U32.unpack(value)[0] if kind == PARTITIONING_PARTITION_ID else 0
    key = value if kind == PARTITIONING_MESSAGES_KEY else b""
    return kind, int(partition), key, int(_U32.unpack_from(rest)[0])


def send_request_parse(payload: bytes) -> tuple[int, _native.SendRequest | None]:
    """(status, parts or None) of a whole payload, in the order of docs/protocol/messages.md#batch-checks."""
    try:
        return 0, _parse(payload)
    except _BatchRefusedError as refused:
        return refused.status, None


def _parse(payload: bytes) -> _native.SendRequest:
    if len(payload) < 4:
        raise _BatchRefusedError(_native.STATUS_INVALID_COMMAND)
    metadata_length = _U32.unpack_from(payload)[0]
    if metadata_length > len(payload) - 4:
        raise _BatchRefusedError(_native.STATUS_INVALID_COMMAND)
    metadata = payload[4 : 4 + metadata_length]
    stream = _identifier(metadata)
    topic = _identifier(metadata[len(stream) :])
    kind, partition, key, count = _partitioning(metadata[len(stream) + len(topic) :])
    if count == 0:
        raise _BatchRefusedError(_native.STATUS_INVALID_MESSAGES_COUNT)
    if kind == PARTITIONING_MESSAGES_KEY and not key:
        raise _BatchRefusedError(_native.STATUS_INVALID_COMMAND)
    index_start = 4 + metadata_length
    messages_start = index_start + INDEX_ENTRY.size * count
    if messages_start > len(payload):
        raise _BatchRefusedError(_native.STATUS_INVALID_COMMAND)
    status = batch_validate(payload[index_start:messages_start], count, payload[messages_start:])
    if status != 0:
        raise _BatchRefusedError(status)
    return _native.SendRequest((stream, topic, kind, partition, key, count, messages_start))


def batch_validate(index: bytes, count: int, messages: bytes) -> int:
    """Status of `count` messages with their index (docs/protocol/messages.md#batch-checks, the part after the
    metadata)."""
    if count == 0 or not messages:
        return _native.STATUS_INVALID_MESSAGES_COUNT
    start = sizes = last_offset = reserved = 0
    for i in range(count):
        offset, position, timestamp = INDEX_ENTRY.unpack_from(index, i * INDEX_ENTRY.size)
        if offset != 0:
            return _native.STATUS_NON_ZERO_OFFSET
        if timestamp != 0:
            return _native.STATUS_NON_ZERO_TIMESTAMP
        end = len(messages) if i + 1 == count else position
        if end > len(messages) or end - start < HEADER_BYTES:
            return _native.STATUS_MISSING_INDEX
        status, size = _validate_header(messages, start, end, last_offset)
        if status != 0:
            return status
        if position < start:
            return _native.STATUS_CANNOT_READ_INDEX_POSITION
        last_offset = _U64.unpack_from(messages, start + 24)[0]
        reserved |= _U64.unpack_from(messages, start + 56)[0]
        sizes += size
        start = position
    if sizes != len(messages):
        return _native.STATUS_INVALID_MESSAGES_SIZE
    if start != len(messages):
        return _native.STATUS_MISSING_INDEX
    return _native.STATUS_INVALID_RESERVED_FIELD if reserved else 0


def _validate_header(messages: bytes, start: int, end: int, last_offset: int) -> tuple[int, int]:
    """(status, size in bytes) of the message in [start, end)."""
    user_headers, payload = LENGTHS.unpack_from(messages, start + 48)
    size = HEADER_BYTES + payload + user_headers
    if end - start < size:
        return _native.STATUS_MISSING_INDEX, size
    if payload > PAYLOAD_MAX:
        return _native.STATUS_TOO_BIG_MESSAGE_PAYLOAD, size
    if user_headers > USER_HEADERS_MAX:
        return _native.STATUS_TOO_BIG_USER_HEADERS, size
    if _U64.unpack_from(messages, start + 24)[0] < last_offset:
        return _native.STATUS_INVALID_OFFSET, size
    return 0, size


# ---- assignment ----


def _xoshiro256pp(seed: int) -> Iterator[int]:
    """xoshiro256++ whose four state words are the first outputs of splitmix64 (native/src/log/batch.c)."""
    state = []
    for _ in range(4):
        seed = (seed + 0x9E3779B97F4A7C15) & _MASK64
        z = ((seed ^ seed >> 30) * 0xBF58476D1CE4E5B9) & _MASK64
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK64
        state.append(z ^ z >> 31)
    while True:
        total = (state[0] + state[3]) & _MASK64
        yield (_rotate_left(total, 23) + state[0]) & _MASK64
        shifted = (state[1] << 17) & _MASK64
        state[2] ^= state[0]
        state[3] ^= state[1]
        state[1] ^= state[2]
        state[0] ^= state[3]
        state[2] ^= shifted
        state[3] = _rotate_left(state[3], 45)


def _rotate_left(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK64


def _new_id(numbers: Iterator[int]) -> bytes:
    """A UUIDv4 in RFC order (docs/protocol/messages.md#message): the marks in bytes 6 and 8 make it non-zero."""
    new = bytearray(_U64.pack(next(numbers)) + _U64.pack(next(numbers)))
    new[6] = new[6] & 0x0F | 0x40
    new[8] = new[8] & 0x3F | 0x80
    return bytes(new)


def batch_assign(
    messages: bytes, count: int, first_offset: int, timestamp: int, relative_offset: int, position: int, seed: int
) -> tuple[bytes, bytes]:
    """(records, index) as stored. `messages` must have passed `batch_validate`; positions in bytes, time in µs."""
    numbers = _xoshiro256pp(seed)
    records, index, start = [], [], 0
    for i in range(count):
        user_headers, payload = LENGTHS.unpack_from(messages, start + 48)
        end = start + HEADER_BYTES + payload + user_headers
        identity = messages[start + 8 : start + 24]
        if identity == bytes(16):
            identity = _new_id(numbers)
        body = identity + _U64.pack((first_offset + i) & _MASK64) + _U64.pack(timestamp) + messages[start + 40 : end]
        records.append(_U64.pack(xxhash.xxh3_64_intdigest(body)) + body)
        position += BODY_OFFSET + len(body)
        index.append(INDEX_ENTRY.pack(relative_offset + i, position, timestamp))
        start = end
    return b"".join(records), b"".join(index)
