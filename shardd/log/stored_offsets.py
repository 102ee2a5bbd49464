"""Reads the stored consumer offsets of a partition (docs/formats.md#consumer-offsets): a file of 8 bytes for each
consumer or group."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shardd.engine import StoredOffset, _native
from shardd.log import layout
from shardd.runtime.regular_files import read_regular

OFFSET_CONSUMER: Final = _native.OFFSET_CONSUMER
OFFSET_GROUP: Final = _native.OFFSET_GROUP
OFFSET_SIZE: Final = 8

_KINDS = ((OFFSET_CONSUMER, layout.CONSUMERS), (OFFSET_GROUP, layout.GROUPS))


def read_offsets(directory: Path) -> tuple[list[StoredOffset], list[str]]:
    """(offsets, notes) of a partition directory; files that are not offsets are told in the notes and
    ignored, one bad file never takes the others with it. Values are clamped by the engine. OSError."""
    offsets: list[StoredOffset] = []
    notes: list[str] = []
    for kind, name in _KINDS:
        for path in _files(directory / layout.OFFSETS / name):
            if path.suffix == layout.TEMPORARY_SUFFIX and layout.parse_id(path.stem) is not None:
                continue  # its birth was cut short, nothing was acknowledged; the next birth writes over it
            identifier = layout.parse_id(path.name)
            if identifier is None or path.is_symlink() or not path.is_file():
                notes.append(f"{path}: not a stored offset, ignored")
                continue
            size = path.stat().st_size
            content = read_regular(path) if size == OFFSET_SIZE else b""
            if len(content) != OFFSET_SIZE:
                notes.append(f"{path}: {size} bytes instead of {OFFSET_SIZE}, this stored offset is ignored")
                continue
            offsets.append(StoredOffset((kind, identifier, int.from_bytes(content, "little"))))
    return offsets, notes


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
