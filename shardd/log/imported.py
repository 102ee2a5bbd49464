"""The marker of a partition that another server wrote (Apache Iggy): its clock was not kept from going back.

    offset size field
    0      8    magic "SHRDIMP1"
    8      8    end, u64 little-endian: timestamps of messages below this offset may fall; 2^64-1 until the first open

Made by the import (shardd/migration), closed by the first recovery that finds the partition whole. What this server
appends behind it never falls, as everywhere.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from shardd.log import layout
from shardd.log.marker import UnknownMarkerError, check_version
from shardd.runtime.disk_errors import Trouble, trouble_of
from shardd.runtime.regular_files import read_regular

MAGIC: Final = b"SHRDIMP1"
OPEN_END: Final = (1 << 64) - 1
_MARKER: Final = struct.Struct("<8sQ")


def encode_imported(end: int) -> bytes:
    """Content of the marker."""
    return _MARKER.pack(MAGIC, end)


def read_imported(directory: Path) -> int:
    """Offset below which timestamps may fall; 0 when the partition is this server's own. ValueError for a damaged
    marker (UnknownMarkerError: of a later version): without it whole messages would look damaged. OSError."""
    path = directory / layout.IMPORTED
    try:
        content = read_regular(path)
    except FileNotFoundError:
        return 0
    check_version(path, content, MAGIC)
    if len(content) != _MARKER.size or not content.startswith(MAGIC):
        raise ValueError(f"{path} is damaged")
    return int(_MARKER.unpack(content)[1])


def end_of_import(directory: Path, notes: list[str] | None = None) -> int:
    """The same for who reads the log, which a damaged or unreadable marker never keeps from being read: then timestamps
    may fall everywhere (`OPEN_END`), and the notes say so. UnknownMarkerError; OSError, of what passes by itself or is
    no regular file."""
    try:
        return read_imported(directory)
    except UnknownMarkerError:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and trouble_of(error) is not Trouble.DEVICE:
            raise
        if notes is not None:
            notes.append(f"{error}: timestamps may fall everywhere in this log")
        return OPEN_END


def write_imported(directory: Path, end: int) -> None:
    """Writes the marker durably. OSError."""
    layout.write_durably(directory / layout.IMPORTED, encode_imported(end))
