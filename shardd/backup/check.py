"""What backup.json may say: every number in its range, everything once and in order. Its digest protects against
damage, not against somebody who writes another one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from shardd.backup.format import (
    BACKUP_NAME,
    COPIED,
    LINKED,
    SHARED,
    Backup,
    BackupError,
    FileEntry,
    PartitionEntry,
    SegmentEntry,
    read_backup,
)
from shardd.log.directory_info import EARLIEST_VERSION, FORMAT_VERSION
from shardd.log.offsets_table import OFFSET_CONSUMER, OFFSET_GROUP, PLACES_MAX
from shardd.protocol import limits
from shardd.runtime.disk import FILE_BYTES_MAX

_U32: Final = 2**32
_U64: Final = 2**64
_INDEX_MAX: Final = 2**63
_RECORD_BYTES_MIN: Final = 64
_MANIFEST_BYTES_MAX: Final = 16 << 20


def read_checked(path: Path) -> Backup:
    """The backup in this directory, if what it says of itself can be. BackupError."""
    backup = read_backup(path)
    try:
        check_backup(backup)
    except BackupError as error:
        raise BackupError(f"{path / BACKUP_NAME}: {error}") from None
    return backup


def check_backup(backup: Backup) -> None:
    """BackupError with the first thing that no backup says."""
    if not EARLIEST_VERSION <= backup.data_format_version <= FORMAT_VERSION:
        raise BackupError(f"it is of a directory of format version {backup.data_format_version}, which is unknown")
    metadata = backup.metadata
    if not 0 <= metadata.index < _INDEX_MAX:
        raise BackupError(f"the metadata cannot end with record {metadata.index}")
    for entry in (metadata.log, metadata.snapshot):
        _check_file(entry, "the metadata", FILE_BYTES_MAX)
    seen = set()
    for partition in backup.partitions:
        name = f"partition {'/'.join(map(str, partition.ids))}"
        if partition.ids in seen:
            raise BackupError(f"{name} is there twice")
        seen.add(partition.ids)
        _check_partition(partition, name)


def _check_partition(partition: PartitionEntry, name: str) -> None:
    bits = (limits.STREAM_ID_BITS, limits.TOPIC_ID_BITS, limits.PARTITION_ID_BITS)
    if not all(0 <= number < 1 << width for number, width in zip(partition.ids, bits, strict=True)):
        raise BackupError(f"{name}: there is no such place")
    if not 0 < partition.incarnation < _INDEX_MAX:
        raise BackupError(f"{name}: no metadata record has the number {partition.incarnation}")
    if not 0 <= partition.start_offset <= partition.end_offset < _U64 or not 0 <= partition.imported_end < _U64:
        raise BackupError(f"{name}: its offsets are out of their range")
    stored = {(each.kind, each.id) for each in partition.offsets}
    if (
        len(stored) != len(partition.offsets)
        or len(stored) > PLACES_MAX
        or not all(
            each.kind in (OFFSET_CONSUMER, OFFSET_GROUP) and 0 <= each.id < _U32 and 0 <= each.value < _U64
            for each in partition.offsets
        )
    ):
        raise BackupError(f"{name}: its stored offsets are out of their range, or there twice")
    uses = partition.uses
    if not isinstance(uses, msgspec.UnsetType) and (
        len(uses) != len(partition.offsets) or not all(0 <= number < _U64 for use in uses for number in use)
    ):
        raise BackupError(f"{name}: what is known of the use of its stored offsets is out of its range")
    segments = partition.segments
    if not segments and partition.end_offset:
        raise BackupError(f"{name}: it has offsets and no segment")
    for number, segment in enumerate(segments):
        _check_segment(segment, f"{name}, segment {segment.start_offset}")
        following = segments[number + 1].start_offset if number + 1 < len(segments) else _U64
        if segment.start_offset >= following or segment.end_offset > following:
            raise BackupError(f"{name}, segment {segment.start_offset}: it does not end before the next one")
    if segments and (segments[0].start_offset, segments[-1].end_offset) != (
        partition.start_offset,
        partition.end_offset,
    ):
        raise BackupError(f"{name}: its segments are not those of its offsets")


def _check_segment(segment: SegmentEntry, name: str) -> None:
    if not 0 <= segment.start_offset <= segment.end_offset < _U64:
        raise BackupError(f"{name}: its offsets are out of their range")
    if segment.kept not in (LINKED, COPIED, SHARED):
        raise BackupError(f"{name}: what {segment.kept[:40]!r} means is not known")
    if not 0 <= segment.bytes < _U32:
        raise BackupError(f"{name}: a log cannot have {segment.bytes} bytes")
    if segment.sparse_end and not 0 <= segment.count < segment.end_offset - segment.start_offset:
        raise BackupError(f"{name}: it cannot have {segment.count} records")
    if segment.count * _RECORD_BYTES_MIN > segment.bytes:
        raise BackupError(f"{name}: {segment.bytes} bytes are too few for its records")
    _check_file(segment.manifest, name, _MANIFEST_BYTES_MAX)


def _check_file(entry: FileEntry | None, name: str, bytes_max: int) -> None:
    if entry is not None and not 0 <= entry.bytes <= bytes_max:
        raise BackupError(f"{name}: a file of it cannot have {entry.bytes} bytes")
