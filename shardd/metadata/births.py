"""Where the numbers of a metadata log begin. Two directories that one script sets up make the same records, so their
incarnations would be the same, too, and a checkpoint, an archive or a path of the one would be taken for one of the
other: each begins behind a record of its own that nobody made (docs/adr/0121-a-new-directory-begins-a-history.md), as a
restore does (docs/adr/0027-a-restore-begins-a-history.md).

The files of such a directory are those of one whose log was cut at that record: a snapshot of the empty state, and a
log without records behind it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Final

from shardd.metadata.errors import LogError
from shardd.metadata.log_file import (
    CUT_HEADER,
    CUT_HEADER_BYTES,
    FILE_HEADER,
    FILE_NAME,
    MAGIC,
    VERSION,
    VERSION_CUT,
    read_log,
)
from shardd.metadata.snapshot import SNAPSHOT_NAME, read_snapshot, write_snapshot
from shardd.metadata.state import State
from shardd.runtime.disk import Disk, OsDisk, write_all

_LOW_BITS: Final = 32
_LOW_MASK: Final = (1 << _LOW_BITS) - 1
_HIGH_MAX: Final = 2**31 - 1
_SHARE: Final = 16  # of the numbers that are left, one of the next sixteenth is drawn


def drawn_index(index: int) -> int | None:
    """A number above `index` with the same lower 32 bits, which files of stored offsets are named after; None: there
    is no number left."""
    high, low = divmod(index, 1 << _LOW_BITS)
    span = (_HIGH_MAX - high) // _SHARE
    return None if span < 1 else (high + 1 + secrets.randbelow(span)) << _LOW_BITS | low


def digest_of(kind: bytes, digest: bytes, index: int) -> bytes:
    """The digest of a record that nobody made."""
    return hashlib.sha256(kind + digest + index.to_bytes(8, "little")).digest()


def first_state() -> State:
    """The empty state in front of the first record of a new directory."""
    index = drawn_index(0)
    assert index is not None
    return born(index)


def born(index: int) -> State:
    """The empty state that a directory begins with, whose first record has the next number; 0: one of earlier
    programs."""
    return State(index=index, digest=digest_of(b"shardd-birth", b"", index)) if index else State()


def log_without_records(state: State) -> bytes:
    """The whole file `state.messages` behind the record of the state."""
    if not state.index:
        return FILE_HEADER.pack(MAGIC, VERSION, 0)
    header = CUT_HEADER.pack(MAGIC, VERSION_CUT, 0, state.index, state.digest)
    return header + hashlib.sha256(header).digest()


def begin_directory(data: Path, disk: Disk | None = None) -> None:
    """Gives a directory without metadata its first number, on the device when this returns. OSError. Streams must not
    be there: they belong to metadata that were lost, and nothing may be made that counts as newer than they are."""
    disk = disk or OsDisk()
    path = data / FILE_NAME
    if path.exists() or not _may_begin(data):
        return
    state = first_state()
    try:
        write_snapshot(data / SNAPSHOT_NAME, state, [], disk)
    except LogError as error:  # it cannot be read back
        raise OSError(str(error)) from error
    write_log(path, log_without_records(state), disk)
    disk.sync_directory(data)


def write_log(path: Path, content: bytes, disk: Disk) -> None:
    """The file whole or not at all. The caller syncs the directory. OSError."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(disk, descriptor, content, 0)
        disk.fdatasync(descriptor)
    finally:
        disk.close(descriptor)
    disk.rename(temporary, path)


def is_newborn(data: Path) -> bool:
    """Whether the log has the header of a new directory and no record behind it: there is no first user yet."""
    path = data / FILE_NAME
    try:
        if path.stat().st_size != CUT_HEADER_BYTES:
            return False
        return not read_log(path).base & _LOW_MASK
    except (OSError, LogError):
        return False


def _may_begin(data: Path) -> bool:
    """Also over the snapshot of a begin that was interrupted."""
    try:
        state = read_snapshot(data / SNAPSHOT_NAME).state
    except LogError:
        return False  # told by whoever reads it next
    return not state.users and not state.streams
