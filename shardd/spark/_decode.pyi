"""Contract of the native decoder and encoder (native/binding/decode_module.c, encode_call.c)."""

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

def encode(
    columns: tuple[bytes | memoryview | None, ...],
    rows: int,
    from_row: int,
    head: bytes,
    partitions: bytes | memoryview | None,
    partition: int,
    bytes_max: int,
    seed: bytes | None,
    position: int,
    once: bytes | None = None,
    /,
) -> tuple[bytes | None, int]:
    """(frame of SEND_MESSAGES, or with `once`, 20 bytes, of SEND_ONCE_DIGEST; the row behind the last one looked at);
    no frame when no row is left.

    The rows of `partition` by `partitions` (int32s; None: all rows), from `from_row` on, up to `bytes_max` of records,
    one at least. `head`: stream, topic and partitioning. `seed`: 16 bytes, from which and from `position` + row the
    ids are made. `columns`, all in Arrow's layout, None for what is not there:

    value offsets, values, raw header offsets, raw headers, key offsets, keys, name of the user header that the key
    becomes, offsets into the header entries, their key offsets, keys, value offsets, values, id offsets, ids (16 bytes
    each, most significant first), origin timestamps (int64s)

    ValueError for a row that cannot be a message, with its number, and for arguments out of range.
    """

def ids_of(seed: bytes, position: int, rows: int, /) -> bytes:
    """The ids that `encode` makes of rows from `position` on: 16 bytes each, most significant first. ValueError."""

def digests_of(columns: tuple[bytes | memoryview | None, ...], rows: int, /) -> bytes:
    """int64s: a digest of the value and the user headers of each row. `columns`: those of `encode`. ValueError."""

def partitions_of(
    offsets: bytes | memoryview, keys: bytes | memoryview, rows: int, partitions: int, otherwise: int, /
) -> bytes:
    """int32s: the partition of each key, `otherwise` for an empty one. ValueError."""
