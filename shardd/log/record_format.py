"""Sizes of records and index entries, and why a scan of records stops: what the native core says
(native/src/log/record.h; docs/formats.md#log)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from shardd.engine import _native

HEADER_BYTES: Final = _native.RECORD_HEADER_SIZE
_HEADERS_BYTES_MAX: Final = _native.USER_HEADERS_SIZE_MAX
_PAYLOAD_BYTES_MAX: Final = _native.PAYLOAD_SIZE_MAX
RECORD_BYTES_MAX: Final = HEADER_BYTES + _PAYLOAD_BYTES_MAX + _HEADERS_BYTES_MAX

INDEX_ENTRY: Final = struct.Struct("<IIQ")  # offset in the segment, end of the record in the log, timestamp
INDEX_ENTRY_BYTES: Final = _native.INDEX_ENTRY_SIZE


class RecordFault(IntEnum):
    """Why a scan stopped."""

    OK = _native.RECORD_OK
    TRUNCATED = _native.RECORD_TRUNCATED
    BAD_LENGTH = _native.RECORD_BAD_LENGTH
    BAD_OFFSET = _native.RECORD_BAD_OFFSET
    BAD_TIMESTAMP = _native.RECORD_BAD_TIMESTAMP
    BAD_CHECKSUM = _native.RECORD_BAD_CHECKSUM


def record_bytes(header: bytes | bytearray | memoryview) -> int:
    """Length of the record with this header; 0: no record has these lengths."""
    headers, payload = int.from_bytes(header[48:52], "little"), int.from_bytes(header[52:56], "little")
    if len(header) < HEADER_BYTES or headers > _HEADERS_BYTES_MAX or payload > _PAYLOAD_BYTES_MAX:
        return 0
    return HEADER_BYTES + headers + payload


def offset_in(header: bytes) -> int:
    """The offset that a record's header says."""
    return int.from_bytes(header[24:32], "little")


def timestamp_in(header: bytes) -> int:
    """The timestamp that a record's header says, microseconds."""
    return int.from_bytes(header[32:40], "little")
