"""The marker that tells which creation of a partition a directory belongs to: ids are given out again after a delete,
incarnations never.

    offset size field
    0      8    magic "SHRDINC1"
    8      8    incarnation, u64 little-endian

The engine writes it before the first segment (native/src/partition.h); recovery and the sweep read it.
"""

from __future__ import annotations

import struct
from pathlib import Path

from shardd.log import layout
from shardd.log.marker import check_version

MAGIC = b"SHRDINC1"
_MARKER = struct.Struct("<8sQ")


class NewerIncarnationError(ValueError):
    """The directory was made by a later metadata record than the caller knows: it is not the caller's to touch."""


def read_incarnation(directory: Path) -> int | None:
    """Incarnation in the marker of a partition directory; None when there is no whole marker. UnknownMarkerError for
    that of a later version, OSError otherwise."""
    try:
        content = (directory / layout.INCARNATION).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    check_version(directory / layout.INCARNATION, content, MAGIC)
    if len(content) != _MARKER.size:
        return None
    magic, incarnation = _MARKER.unpack(content)
    return int(incarnation) if magic == MAGIC else None


def encode_incarnation(incarnation: int) -> bytes:
    """Content of the marker."""
    return _MARKER.pack(MAGIC, incarnation)


def write_incarnation(directory: Path, incarnation: int) -> None:
    """Writes the marker durably. OSError."""
    layout.write_durably(directory / layout.INCARNATION, encode_incarnation(incarnation))
