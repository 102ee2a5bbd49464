"""How the records of a segment are kept: one description of each layout, and the only way to open a log for reading.

A manifest tells the layout of its segment in bits (docs/adr/0028-format-version-2.md). Whoever reads a log in Python
asks here which segments a directory has, and gets descriptors from which plain records and index entries are read,
whatever the layout is; the slices are verified by verified_slices.py and single_pass.py. Every tool refuses a layout
that this version does not know with the same error, before it has read or changed anything of that segment. For the
polls of a server native/src/log/segment_reader.h is the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardd.log import layout
from shardd.log.manifest import DamagedManifestError, read_layout
from shardd.log.segment_layout import PLAIN, SegmentLayout
from shardd.runtime.regular_files import open_regular


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Descriptor of a regular file, or with O_DIRECTORY of a directory, for a `with` block. OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC) if flags & os.O_DIRECTORY else open_regular(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def layout_of(directory: Path, start_offset: int) -> SegmentLayout:
    """That of the segment which starts there; plain without a manifest, or with one whose head is damaged.
    UnknownLayoutError, OSError."""
    try:
        return read_layout(directory, start_offset)
    except DamagedManifestError:
        return PLAIN


def log_path(directory: Path, start_offset: int) -> Path:
    """The file that has the records. UnknownLayoutError, OSError."""
    return layout.segment_file(directory, start_offset, layout_of(directory, start_offset).suffix)


def open_log(directory: Path, start_offset: int, flags: int = os.O_RDONLY) -> int:
    """Descriptor from which the plain log is read; the caller closes it. UnknownLayoutError, OSError."""
    return open_regular(log_path(directory, start_offset), flags)


@contextmanager
def opened_log(directory: Path, start_offset: int, flags: int = os.O_RDONLY) -> Iterator[int]:
    """The same for a `with` block."""
    descriptor = open_log(directory, start_offset, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_index(directory: Path, start_offset: int, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Descriptor of the index, whose positions are those of the plain log, for a `with` block. OSError."""
    with opened(layout.segment_index(directory, start_offset), flags) as descriptor:
        yield descriptor


def segment_starts(directory: Path) -> list[int]:
    """Start offsets of the segments, ascending. UnknownLayoutError when one is kept in a way that this version does
    not know: without it the others would be told as all there is. OSError."""
    logs, manifests = set(), set()
    for path in directory.iterdir():
        start, kind = layout.parse_segment_name(path.name) or (0, "")
        if kind == PLAIN.suffix:
            logs.add(start)
        elif kind == "manifest" and path.is_file() and not path.is_symlink():
            manifests.add(start)
    for start in sorted(manifests - logs):
        layout_of(directory, start)  # of a plain one the log is still to be made, or lost
    return sorted(logs)
