"""Sizes of records and index entries, and why a scan of records stops: what the native core says
(native/src/log/record.h; docs/formats.md#log)."""

from __future__ import annotations

from typing import Final

from shardd.engine import _native
from shardd.protocol.record_layout import LENGTHS, LENGTHS_AT, OFFSET_AT, TIMESTAMP_AT

HEADER_BYTES: Final = _native.RECORD_HEADER_SIZE
_HEADERS_BYTES_MAX: Final = _native.USER_HEADERS_SIZE_MAX
_PAYLOAD_BYTES_MAX: Final = _native.PAYLOAD_SIZE_MAX
RECORD_BYTES_MAX: Final = HEADER_BYTES + _PAYLOAD_BYTES_MAX + _HEADERS_BYTES_MAX

INDEX_ENTRY_BYTES: Final = _native.INDEX_ENTRY_SIZE


def record_bytes(header: bytes | bytearray | memoryview) -> int:
    """Length of the record with this header; 0: no record has these lengths."""
    if len(header) < HEADER_BYTES:
        return 0
    headers, payload = LENGTHS.unpack_from(header, LENGTHS_AT)
    if headers > _HEADERS_BYTES_MAX or payload > _PAYLOAD_BYTES_MAX:
        return 0
    return int(HEADER_BYTES + headers + payload)


def offset_in(header: bytes) -> int:
    """The offset that a record's header says."""
    return int.from_bytes(header[OFFSET_AT : OFFSET_AT + 8], "little")


def timestamp_in(header: bytes) -> int:
    """The timestamp that a record's header says, microseconds."""
    return int.from_bytes(header[TIMESTAMP_AT : TIMESTAMP_AT + 8], "little")
