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

from shardd.engine import _native
from shardd.log import layout
from shardd.log.blocks import HEAD_BYTES, Blocks, Pread, plain_bytes_in
from shardd.log.manifest import DamagedManifestError, Stored, read_layout, read_manifest
from shardd.log.record_format import INDEX_ENTRY_BYTES
from shardd.log.segment_layout import COMPRESSED, PLAIN, SegmentLayout
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
    """That of the segment which starts there, as its manifest says; where that is lost, or the file of that layout is
    not there, the one whose file is. A crash beside the change of a layout leaves both files. UnknownLayoutError,
    OSError."""
    try:
        said = read_layout(directory, start_offset)
    except DamagedManifestError:
        said = PLAIN
    other = COMPRESSED if said is PLAIN else PLAIN
    if _file(directory, start_offset, said).exists() or not _file(directory, start_offset, other).exists():
        return said
    return other


def _file(directory: Path, start_offset: int, kept: SegmentLayout) -> Path:
    return layout.segment_file(directory, start_offset, kept.suffix)


def left_over(directory: Path, start_offset: int) -> Path:
    """Where a crash beside the change of a layout leaves the file that is not needed. UnknownLayoutError, OSError."""
    kept = layout_of(directory, start_offset)
    return _file(directory, start_offset, COMPRESSED if kept is PLAIN else PLAIN)


def log_path(directory: Path, start_offset: int) -> Path:
    """The file that has the records. UnknownLayoutError, OSError."""
    return _file(directory, start_offset, layout_of(directory, start_offset))


def open_log(directory: Path, start_offset: int, flags: int = os.O_RDONLY) -> int:
    """Descriptor from which the plain log is read; the caller closes it. Of a compressed one it is unpacked first, into
    a file without a name: for what has to see the whole log. UnknownLayoutError, OSError."""
    kept = layout_of(directory, start_offset)
    descriptor = open_regular(_file(directory, start_offset, kept), flags if kept is PLAIN else os.O_RDONLY)
    if kept is PLAIN:
        return descriptor
    try:
        return unpacked(directory, Blocks(descriptor, plain_bytes(directory, start_offset, descriptor)))
    finally:
        os.close(descriptor)


def open_blocks(directory: Path, start_offset: int, read: Pread) -> tuple[int, Blocks] | None:
    """Descriptor and reader of a compressed log, for those who go over it in slices; None: it is plain. The caller
    closes it. UnknownLayoutError, OSError."""
    if layout_of(directory, start_offset) is PLAIN:
        return None
    descriptor = open_regular(_file(directory, start_offset, COMPRESSED))
    try:
        return descriptor, Blocks(descriptor, plain_bytes(directory, start_offset, descriptor), read)
    except OSError:
        os.close(descriptor)
        raise


def stored_file(directory: Path, start_offset: int) -> Stored:
    """Length and digest of the file of blocks that a segment has. OSError."""
    with opened(_file(directory, start_offset, COMPRESSED), os.O_RDONLY) as blocks:
        size = os.fstat(blocks).st_size
        return Stored(size, _native.digest_file(blocks, size))


def plain_bytes(directory: Path, start_offset: int, blocks: int) -> int:
    """How long the log is that an open file of blocks has: its manifest says it; without one the head of the file, or
    the last entry of the index. OSError."""
    try:
        manifest = read_manifest(directory, start_offset)
    except DamagedManifestError:
        manifest = None
    if manifest is not None and manifest.sealed is not None:
        return manifest.sealed.log_bytes
    size = plain_bytes_in(os.pread(blocks, HEAD_BYTES, 0))
    if size is not None:
        return size
    with opened_index(directory, start_offset) as index:
        last = os.pread(
            index, INDEX_ENTRY_BYTES, (os.fstat(index).st_size // INDEX_ENTRY_BYTES - 1) * INDEX_ENTRY_BYTES
        )
    return int.from_bytes(last[4:8], "little")


def unnamed_file(directory: Path) -> int:
    """Descriptor of an empty file on the file system of the directory, in memory where that makes none."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # a directory that may only be read, or a file system without such files
        return os.memfd_create("unnamed", os.MFD_CLOEXEC)


def unpacked(directory: Path, blocks: Blocks) -> int:
    """Descriptor of a file without a name that has the plain log; the caller closes it. OSError."""
    target = unnamed_file(directory)
    try:
        blocks.unpack(target)
    except OSError:
        os.close(target)
        raise
    return target


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
        if kind in (PLAIN.suffix, COMPRESSED.suffix):
            logs.add(start)
        elif kind == "manifest" and path.is_file() and not path.is_symlink():
            manifests.add(start)
    for start in sorted(manifests - logs):
        layout_of(directory, start)  # of a plain one the log is still to be made, or lost
    return sorted(logs)
