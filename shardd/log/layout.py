"""Where the files of a partition lie (docs/formats.md#directory) and how they are called.

<data>/streams/<stream>/topics/<topic>/partitions/<partition>/
    incarnation                        marker, see incarnation.py
    imported                           marker, see imported.py
    <start offset, 20 digits>.log      records (docs/formats.md#log)
    <start offset, 20 digits>.blocks   the same, compressed, see blocks.py
    <start offset, 20 digits>.index    16 bytes for each record (docs/formats.md#index)
    <start offset, 20 digits>.manifest what is known about the log, see manifest.py
    <start offset, 20 digits>.torn[.n] bytes that recovery has cut off a log
    consumer-offsets                   stored offsets of consumers and groups, see offsets_table.py
    producers                          idempotent producers, see native/src/log/producers.h
    producers.unreadable               one that could not be read; kept, never read again
    offsets/consumers/<consumer id>    in format version 1: 8 bytes, little-endian: last processed offset
    offsets/groups/<group id>
    offsets.imported/                  what of that could not be taken over; never read again
<data>/trash/<unique name>             what is deleted and not yet unlinked
<data>/archive/                        what waits for its archive, see spool.py
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

from shardd.runtime.regular_files import SMALL_BYTES_MAX

STREAMS = "streams"
TOPICS = "topics"
PARTITIONS = "partitions"
TRASH = "trash"
ARCHIVE = "archive"  # what has left its log and is to be archived (spool.py)
INCARNATION = "incarnation"
IMPORTED = "imported"
CONSUMER_OFFSETS = "consumer-offsets"
PRODUCERS = "producers"
PRODUCERS_UNREADABLE = "producers.unreadable"  # could not be read when the log went on without it
OFFSETS = "offsets"
OFFSETS_KEPT = "offsets.imported"
CONSUMERS = "consumers"
GROUPS = "groups"
TEMPORARY_SUFFIX = ".tmp"  # a file being born: renamed when its content is whole

START_OFFSET_DIGITS = 20

_SEGMENT_NAME = re.compile(r"([0-9]{20})\.(log|blocks|index|manifest|torn)(?:\.[0-9]+)?")
_ID_NAME = re.compile(r"0|[1-9][0-9]{0,9}")
_U32_MAX = 2**32 - 1
_U64_MAX = 2**64 - 1

PartitionIds = tuple[int, int, int]  # stream, topic, partition


def stream_directory(data: Path, stream: int) -> Path:
    """Directory of a stream below the data directory."""
    return data / STREAMS / str(stream)


def topic_directory(data: Path, stream: int, topic: int) -> Path:
    """Directory of a topic below the data directory."""
    return stream_directory(data, stream) / TOPICS / str(topic)


def partition_directory(data: Path, stream: int, topic: int, partition: int) -> Path:
    """Directory of a partition below the data directory."""
    return topic_directory(data, stream, topic) / PARTITIONS / str(partition)


def incoming_directory(data: Path) -> Path:
    """Where segments go that leave their log for their archive (spool.py)."""
    return data / ARCHIVE / "incoming"


def trash_directory(data: Path) -> Path:
    """Directory that takes what is deleted: on the file system of the log, so that a rename is enough."""
    return data / TRASH


def trash_of_partition(directory: Path) -> Path:
    """The trash of the data directory that a partition directory belongs to."""
    return trash_directory(directory.parents[5])


def segment_file(directory: Path, start_offset: int, suffix: str) -> Path:
    """Path of a file of the segment that starts at this offset."""
    return directory / f"{start_offset:0{START_OFFSET_DIGITS}d}.{suffix}"


def segment_log(directory: Path, start_offset: int) -> Path:
    """Path of the .log file of the segment that starts at this offset: of the active one, and of every plain one."""
    return segment_file(directory, start_offset, "log")


def segment_index(directory: Path, start_offset: int) -> Path:
    """Path of the .index file of the segment that starts at this offset."""
    return segment_file(directory, start_offset, "index")


def segment_manifest(directory: Path, start_offset: int) -> Path:
    """Path of the .manifest file of the segment that starts at this offset."""
    return segment_file(directory, start_offset, "manifest")


def segment_torn(directory: Path, start_offset: int, number: int) -> Path:
    """Path of the `number`-th file with bytes cut off this segment (0 has no number in its name)."""
    suffix = f".{number}" if number else ""
    return segment_file(directory, start_offset, f"torn{suffix}")


def parse_segment_name(name: str) -> tuple[int, str] | None:
    """(start offset, "log" | "blocks" | "index" | "manifest" | "torn") of a segment's file name; None for others."""
    match = _SEGMENT_NAME.fullmatch(name)
    if match is None or int(match[1]) > _U64_MAX:
        return None
    if match[2] != "torn" and not name.endswith(match[2]):
        return None
    return int(match[1]), match[2]


def parse_id(name: str) -> int | None:
    """The u32 that a directory or offset file is named after; None for any other name (`01`, `x`, 2^32)."""
    if _ID_NAME.fullmatch(name) is None or int(name) > _U32_MAX:
        return None
    return int(name)


class SyncFailedError(OSError):
    """A log or a directory could not be synced: what of it is on the device is not known any more, and later syncs
    that succeed do not say so."""


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable. OSError as open raises it, SyncFailedError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise SyncFailedError(*error.args) from error
    finally:
        os.close(descriptor)


def make_incoming(data: Path) -> Path:
    """The incoming directory, on the device before any segment moves there (docs/adr/0074). OSError."""
    incoming = incoming_directory(data)
    if not incoming.exists():
        incoming.mkdir(parents=True, exist_ok=True)  # several shards may come here at once
        sync_directory(incoming.parent)
        sync_directory(data)
    return incoming


def write_durably(target: Path, content: bytes, bytes_max: int = SMALL_BYTES_MAX) -> None:
    """Writes a small file whole (new file, fsync, rename, fsync of the directory). `bytes_max` is the bound of its
    readers, the same as that of `read_regular`. OSError, with EFBIG for a longer content."""
    _write(target, content, bytes_max, synced=True)
    sync_directory(target.parent)


def write_whole(target: Path, content: bytes, bytes_max: int = SMALL_BYTES_MAX) -> None:
    """As above without any sync: a power loss may damage it. OSError."""
    _write(target, content, bytes_max, synced=False)


def _write(target: Path, content: bytes, bytes_max: int, *, synced: bool) -> None:
    if len(content) > bytes_max:
        sentence = f"{len(content)} bytes are to be written, and its readers take {bytes_max}"
        raise OSError(errno.EFBIG, sentence, str(target))
    fresh = target.with_name(target.name + TEMPORARY_SUFFIX)
    try:
        with open(fresh, "wb", buffering=0, opener=_never_through_a_link) as file:
            rest = memoryview(content)
            while rest:
                rest = rest[file.write(rest) :]
            if synced:
                os.fsync(file.fileno())
        fresh.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()  # what there is of it takes room that is missing
        raise


def _never_through_a_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
