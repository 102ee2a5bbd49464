"""Where the fields of records and index entries lie, on the wire and on disk (docs/protocol/records.md,
docs/formats.md). The core says it in C (native/src/log/record.h), `shardd.engine.twin` once more: a specification is a
second opinion."""

from __future__ import annotations

import struct
from typing import Final

# checksum, id, offset, timestamp, origin timestamp, bytes of user headers, bytes of payload, reserved
RECORD_HEAD: Final = struct.Struct("<Q16sQQQIIQ")
OFFSET_AT: Final = 24
TIMESTAMP_AT: Final = 32
LENGTHS_AT: Final = 48
LENGTHS: Final = struct.Struct("<II")  # of user headers and payload

# offset in the segment, end of the record in the log, timestamp; in a request: 0, end in the batch, 0
INDEX_ENTRY: Final = struct.Struct("<IIQ")

# Layouts of a segment's log, in its manifest and in GET_PARTITION_BOUNDS.
LAYOUT_PLAIN: Final = 0
LAYOUT_COMPRESSED: Final = 1  # its log is in a file of blocks (shardd/log/blocks.py)
LAYOUT_SPARSE: Final = 8  # some of its offsets have no record
