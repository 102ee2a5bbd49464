"""Contract of the native decoder (native/binding/decode_module.c)."""

import mmap
from typing import Final

# Why a batch ended, and what is done about checksums (native/src/log/decode.h).
OK: Final[int]
TRUNCATED: Final[int]
BAD_LENGTH: Final[int]
GAP: Final[int]
BAD_CHECKSUM: Final[int]
VERIFY_NO: Final[int]
VERIFY_STOP: Final[int]
VERIFY_REPORT: Final[int]

class DecodedRows(tuple[int, int, int, int, int, int, tuple[tuple[bytes, ...], ...]]):
    """A struct sequence. `position`: behind the rows; `columns`: buffers of each one."""

    rows: Final[int]
    position: Final[int]
    next_offset: Final[int]
    fault: Final[int]
    fault_offset: Final[int]
    bad_checksums: Final[int]
    columns: Final[tuple[tuple[bytes, ...], ...]]

def decode(
    data: bytes | bytearray | memoryview | mmap.mmap,
    position: int,
    from_offset: int,
    to_offset: int,
    rows_max: int,
    bytes_max: int,
    verify: int,
    columns: bytes,
    key_header: bytes | None,
    gaps: bool = False,
    /,
) -> DecodedRows:
    """One batch.

    `data` may be an mmap. Records below `from_offset` are passed over, the batch ends before `to_offset`, after
    `rows_max`
    rows or before `bytes_max` bytes of payload and user headers (one row at least). `verify`: 0 no, 1 stop at a wrong
    checksum, 2 go on and report. `gaps`: offsets may skip.
    Faults: native/src/log/decode.h. Letters of `columns` and their buffers, in Arrow's
    layout:

    c checksum, o offset, t timestamp, g origin timestamp, p byte position in `data`: (int64s)
    i id, v value, r raw user headers: (int32 offsets, bytes)
    k value of the user header `key_header`: (validity bitmap, int32 offsets, bytes)
    h user headers: (list offsets, key offsets, key bytes, value offsets, value bytes)
    b checksum is right: (bitmap)

    ValueError for arguments out of range.
    """
