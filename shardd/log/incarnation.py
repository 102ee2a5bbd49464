"""The marker that tells which creation of a partition a directory belongs to: ids are given out again after a delete,
incarnations never.

    offset size field
    0      8    magic "SHRDINC1"
    8      8    incarnation, u64 little-endian

The engine writes it before the first segment and syncs it with the first sync of the partition, so that messages which
are known to be on the device have a whole marker. Recovery and the sweep read it. A directory with messages whose
marker never came to the device is renamed `<partition>.unmarked[.n]` and left alone.
"""

from __future__ import annotations

import struct
from pathlib import Path

from shardd.log import layout
from shardd.log.marker import check_version
from shardd.runtime.regular_files import read_beginning

MAGIC = b"SHRDINC1"
_MARKER = struct.Struct("<8sQ")


class NewerIncarnationError(ValueError):
    """The directory was made by a later metadata record than the caller knows: it is not the caller's to touch."""


def read_incarnation(directory: Path) -> int | None:
    """Incarnation in the marker of a partition directory; None when there is no whole marker. UnknownMarkerError for
    that of a later version, OSError otherwise."""
    try:
        content = read_beginning(directory / layout.INCARNATION, _MARKER.size + 1)  # a longer one is not whole
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    check_version(directory / layout.INCARNATION, content, MAGIC)
    if len(content) != _MARKER.size:
        return None
    magic, incarnation = _MARKER.unpack(content)
    return int(incarnation) if magic == MAGIC else None


def is_of(directory: Path, incarnation: int) -> bool:
    """Whether the marker says so; False where it cannot be read, too."""
    try:
        return read_incarnation(directory) == incarnation
    except (OSError, ValueError):
        return False


def encode_incarnation(incarnation: int) -> bytes:
    """Content of the marker."""
    return _MARKER.pack(MAGIC, incarnation)


def write_incarnation(directory: Path, incarnation: int) -> None:
    """Writes the marker durably. OSError."""
    layout.write_durably(directory / layout.INCARNATION, encode_incarnation(incarnation))


def marker_was_never_synced(directory: Path) -> bool:
    """Whether the marker is as a power loss leaves a file that was not synced: missing, short or zeros. OSError."""
    try:
        content = read_beginning(directory / layout.INCARNATION, _MARKER.size + 1)
    except FileNotFoundError:
        return True
    return len(content) < _MARKER.size or content == bytes(_MARKER.size)


def move_aside(directory: Path) -> Path:
    """Renames a partition directory that belongs to nobody; returns its new path. OSError."""
    target = directory.with_name(f"{directory.name}.unmarked")
    number = 0
    while target.exists():
        number += 1
        target = directory.with_name(f"{directory.name}.unmarked.{number}")
    directory.rename(target)
    layout.sync_directory(directory.parent)
    return target
