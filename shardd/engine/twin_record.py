"""Record and index scans in plain Python, the readable twin of native/src/log/record.h. The layout: `twin.py`."""

from __future__ import annotations

import os
import struct
from typing import Final

import xxhash

from shardd.engine import _native
from shardd.engine.record_faults import RecordFault

HEADER_BYTES: Final = _native.RECORD_HEADER_SIZE
BODY_OFFSET: Final = 8  # the checksum covers everything behind itself
PAYLOAD_MAX: Final = _native.PAYLOAD_SIZE_MAX
USER_HEADERS_MAX: Final = _native.USER_HEADERS_SIZE_MAX
INDEX_ENTRY: Final = struct.Struct("<IIQ")
LENGTHS: Final = struct.Struct("<II")  # user headers, payload; at byte 48
_FIELDS: Final = struct.Struct("<Q16sQQQIIQ")
_U64_MAX: Final = 2**64 - 1
_U32_MAX: Final = (1 << 32) - 1


def _check(data: bytes, position: int, expected_offset: int, minimum_timestamp: int) -> tuple[RecordFault, int, int]:
    """(fault, size in bytes, timestamp) of the record at `position`; the order of the checks is part of the format."""
    left = len(data) - position
    if left < HEADER_BYTES:
        return RecordFault.TRUNCATED, 0, 0
    checksum, _, offset, timestamp, _, user_headers, payload, _ = _FIELDS.unpack_from(data, position)
    size = HEADER_BYTES + payload + user_headers
    if user_headers > USER_HEADERS_MAX or payload > PAYLOAD_MAX:
        return RecordFault.BAD_LENGTH, 0, timestamp
    if offset != expected_offset:
        return RecordFault.BAD_OFFSET, size, timestamp
    if timestamp < minimum_timestamp:
        return RecordFault.BAD_TIMESTAMP, size, timestamp
    if size > left:
        return RecordFault.TRUNCATED, size, timestamp
    if xxhash.xxh3_64_intdigest(data[position + BODY_OFFSET : position + size]) != checksum:
        return RecordFault.BAD_CHECKSUM, size, timestamp
    return RecordFault.OK, size, timestamp


def scan_buffer(
    data: bytes,
    expected_offset: int,
    minimum_timestamp: int,
    segment_start_offset: int,
    base_position: int,
    sparse_end: int = 0,
) -> _native.IndexedScan:
    """Verifies records back to back from the start of `data`; `entries` is the index of the good ones.

    With `sparse_end` offsets may skip up to there (exclusive).
    A record that no index entry could name (position or relative offset above 32 bits) counts as a bad length.
    """
    valid_bytes = first_timestamp = last_timestamp = 0
    next_offset, fault = expected_offset, RecordFault.OK
    index: list[bytes] = []
    while valid_bytes < len(data):
        expected = next_offset
        if len(data) - valid_bytes >= HEADER_BYTES:
            found = int.from_bytes(data[valid_bytes + 24 : valid_bytes + 32], "little")
            expected = found if next_offset <= found < sparse_end else next_offset
        fault, size, timestamp = _check(data, valid_bytes, expected, minimum_timestamp)
        if fault is not RecordFault.OK:
            break
        end, relative = base_position + valid_bytes + size, expected - segment_start_offset
        if end > _U32_MAX or not 0 <= relative <= _U32_MAX:
            fault = RecordFault.BAD_LENGTH
            break
        if not index:
            first_timestamp = timestamp
        minimum_timestamp = last_timestamp = timestamp
        index.append(INDEX_ENTRY.pack(relative, end, timestamp))
        next_offset = expected + 1
        valid_bytes += size
    numbers = valid_bytes, len(index), next_offset, first_timestamp, last_timestamp, int(fault)
    return _native.IndexedScan((*numbers, b"".join(index)))


def scan_file(
    log_fd: int,
    from_position: int,
    segment_start_offset: int,
    expected_offset: int,
    minimum_timestamp: int,
    index_fd: int,
) -> _native.Scan:
    """Scans an open .log file from a record border to its end; writes the index found (`index_fd` -1: not). OSError."""
    data = os.pread(log_fd, max(os.fstat(log_fd).st_size - from_position, 0), from_position)
    scan = scan_buffer(data, expected_offset, minimum_timestamp, segment_start_offset, from_position)
    if index_fd >= 0 and scan.entries:
        os.pwrite(index_fd, scan.entries, INDEX_ENTRY.size * (expected_offset - segment_start_offset))
    return _native.Scan(scan[:-1])


def find_later(
    log_fd: int,
    from_position: int,
    at_least_offset: int,
    minimum_timestamp: int = 0,
    at_most_offset: int = _U64_MAX,
    end_position: int = _U64_MAX,
) -> _native.FoundRecord | None:
    """The first valid record that starts at any byte from `from_position` on and before
    `end_position`: damage inside the history, not a torn tail.

    Only records count whose offset is at least `at_least_offset` and less than 2^32 above it, not above
    `at_most_offset`, whose id is not 0 and whose timestamp is not below `minimum_timestamp`.
    """
    data = os.pread(log_fd, max(os.fstat(log_fd).st_size - from_position, 0), from_position)
    for position in range(len(data) - HEADER_BYTES + 1):
        _, identity, offset, *_ = _FIELDS.unpack_from(data, position)
        if from_position + position >= end_position:
            break
        if identity == bytes(16) or not at_least_offset <= offset <= min(at_most_offset, at_least_offset + _U32_MAX):
            continue
        if _check(data, position, offset, minimum_timestamp)[0] is RecordFault.OK:
            return _native.FoundRecord((from_position + position, offset))
    return None
