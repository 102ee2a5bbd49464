"""The metadata snapshot `<data>/state.snapshot`: the whole state as it was right after one record. All integers
little-endian.

    offset size field
    0      8    magic "SHRDSNAP"
    8      4    version, u32: 5 when there is something of Liftbridge; 4 when a user has producers; 3 when access
                tokens of a user were revoked; 2 when a topic has settings of its own; else 1 (what earlier programs
                read)
    12     4    reserved, 0
    16     8    index of the last record that it covers
    24     32   digest of that record (records.py): ties the snapshot to the chain of the log
    56     8    length n of the image
    64     n    image: MessagePack of `Image` (snapshot_image.py)
    64+n   32   SHA-256 over bytes 0 .. 64+n

It is written as state.snapshot.tmp, synced, read back, renamed, and its directory synced. Only then may the log lose
the records that it covers, so at every moment snapshot and log together hold everything.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from shardd.metadata.errors import LogError
from shardd.metadata.liftbridge_state import NO_LIFTBRIDGE
from shardd.metadata.records import FIRST_DIGEST
from shardd.metadata.snapshot_image import decode_image, encode_image
from shardd.metadata.state import State
from shardd.metadata.whole_file import read_whole
from shardd.runtime.disk import Disk, OsDisk, check_size, close_quietly, read_all, remove_quietly, write_all

SNAPSHOT_NAME: Final = "state.snapshot"
MAGIC: Final = b"SHRDSNAP"
VERSION: Final = 5
VERSION_WITHOUT_LIFTBRIDGE: Final = 4
VERSION_WITHOUT_PRODUCERS: Final = 3
VERSION_WITHOUT_REVOKED: Final = 2
VERSION_WITHOUT_SETTINGS: Final = 1
HEADER: Final = struct.Struct("<8sIIQ32sQ")
_SHA_BYTES: Final = 32

Submission = tuple[int, int, int]  # its number, the index of its record, the id that it created


class Snapshot(msgspec.Struct, frozen=True):
    """`submissions`: the last ones whose repetition must be answered, oldest first. `size_bytes`: of the file."""

    state: State
    submissions: list[Submission]
    size_bytes: int = 0

    @property
    def index(self) -> int:
        return self.state.index


EMPTY: Final = Snapshot(State(), [])


def snapshot_path(log_path: Path) -> Path:
    """Beside the log."""
    return log_path.with_name(SNAPSHOT_NAME)


def read_snapshot(path: Path, disk: Disk | None = None) -> Snapshot:
    """A missing file is the empty state. Raises LogError for what is damaged or of an unknown version."""
    data = read_whole(path, disk or OsDisk())
    return EMPTY if data is None else decode_snapshot(path, data)


def encode_snapshot(state: State, submissions: Iterable[Submission]) -> bytes:
    """The whole file."""
    image = encode_image(state, submissions)
    version = _version_of(state)
    body = HEADER.pack(MAGIC, version, 0, state.index, state.digest, len(image)) + image
    return body + hashlib.sha256(body).digest()


def _version_of(state: State) -> int:
    """The lowest one that holds it."""
    if state.liftbridge != NO_LIFTBRIDGE:
        return VERSION
    if state.producer_owners:
        return VERSION_WITHOUT_LIFTBRIDGE
    if any(user.revoked or user.access_mark for user in state.users.values()):
        return VERSION_WITHOUT_PRODUCERS
    settings = any(topic.settings for stream in state.streams.values() for topic in stream.topics.values())
    return VERSION_WITHOUT_REVOKED if settings else VERSION_WITHOUT_SETTINGS


def decode_snapshot(path: Path, data: bytes) -> Snapshot:
    """`path` is for the sentences of LogError."""
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise LogError(f"{path} is not a metadata snapshot: it does not start with {MAGIC.decode()}")
    _, version, reserved, index, digest, length = HEADER.unpack_from(data)
    if not VERSION_WITHOUT_SETTINGS <= version <= VERSION or reserved != 0:
        raise LogError(
            f"{path} has format version {version}.{reserved}, which this program does not know; it knows versions up "
            f"to {VERSION}.0 and leaves the file untouched"
        )
    end = HEADER.size + length
    if len(data) != end + _SHA_BYTES:
        raise LogError(f"{path} is damaged: it has {len(data)} bytes instead of {end + _SHA_BYTES}")
    view = memoryview(data)
    if hashlib.sha256(view[:end]).digest() != view[end:]:
        raise LogError(f"{path} is damaged: its checksum does not match")
    try:
        state, submissions = decode_image(view[HEADER.size : end], index, digest)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LogError(f"{path} holds a state that this version does not know: {error}") from error
    if index == 0 or digest == FIRST_DIGEST:
        raise LogError(f"{path} is damaged: it covers no record")
    return Snapshot(state, submissions, len(data))


def write_snapshot(path: Path, state: State, submissions: Iterable[Submission], disk: Disk | None = None) -> int:
    """Stores the snapshot durably and verified; its size in bytes. OSError, or LogError when it cannot be read back:
    then the old snapshot is as it was."""
    disk = disk or OsDisk()
    data = encode_snapshot(state, submissions)
    check_size(len(data))
    temporary = path.with_name(path.name + ".tmp")
    try:
        descriptor = disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(disk, descriptor, data, 0)
            disk.fdatasync(descriptor)
            stored = read_all(disk, descriptor, disk.size(descriptor))
        finally:
            close_quietly(disk, descriptor)
        if decode_snapshot(temporary, stored).state != state:
            raise LogError(f"{temporary} does not hold the state that was written")
        disk.rename(temporary, path)
    except (OSError, LogError):
        remove_quietly(disk, temporary)  # it may hold room that is needed
        raise
    disk.sync_directory(path.parent)
    return len(data)
