"""Why a scan of records stops."""

from __future__ import annotations

from enum import IntEnum

from shardd.engine import _native


class RecordFault(IntEnum):
    """record.h: record_fault."""

    OK = _native.RECORD_OK
    TRUNCATED = _native.RECORD_TRUNCATED
    BAD_LENGTH = _native.RECORD_BAD_LENGTH
    BAD_OFFSET = _native.RECORD_BAD_OFFSET
    BAD_TIMESTAMP = _native.RECORD_BAD_TIMESTAMP
    BAD_CHECKSUM = _native.RECORD_BAD_CHECKSUM
