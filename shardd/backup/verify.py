"""Checks a backup: every file, every record, and that metadata and partitions fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shardd.backup.backups_directory import MARKER_NAME
from shardd.backup.check import read_checked
from shardd.backup.format import (
    BACKUP_NAME,
    COPIED,
    Backup,
    BackupError,
    FileEntry,
    PartitionEntry,
    SegmentEntry,
    file_digest,
    partition_path,
)
from shardd.backup.inside import check_size, everything_below, is_there, opened_inside, read_entry
from shardd.backup.metadata import incarnations, read_metadata
from shardd.log import layout
from shardd.log.manifest import (
    DamagedManifestError,
    Manifest,
    UnknownLayoutError,
    UnknownManifestError,
    decode_manifest,
)
from shardd.log.single_pass import LogPass, PassResult
from shardd.metadata.apply import ApplyError
from shardd.metadata.errors import LogError
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.snapshot import SNAPSHOT_NAME
from shardd.metadata.state import State
from shardd.runtime.throttle import Throttle


class Verified(msgspec.Struct, frozen=True):
    """`damage`: what is wrong with the backup, a sentence each; a backup without is as it was made. What was already
    wrong with the server's files then is in `backup.left_out` and `backup.warnings`."""

    backup: Backup
    damage: list[str] = msgspec.field(default_factory=list)


def verify_backup(path: Path, bytes_per_second: int = 0) -> Verified:
    """Reads all of it. BackupError when `path` is not a complete backup, or says of itself what no backup says."""
    verified = Verified(read_checked(path))
    throttle = Throttle(bytes_per_second)
    verified.damage.extend(_check_metadata(path, verified.backup))
    known: set[Path] = {path / BACKUP_NAME, path / FILE_NAME, path / SNAPSHOT_NAME, path / MARKER_NAME}
    for partition in verified.backup.partitions:
        verified.damage.extend(_check_partition(path, partition, throttle))
        directory = partition_path(path, partition.ids)
        for segment in partition.segments:
            known.add(layout.segment_log(directory, segment.start_offset))
            if segment.manifest is not None:
                known.add(layout.segment_manifest(directory, segment.start_offset))
    try:
        foreign = [each for each in everything_below(path) if each not in known]
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error}") from error
    verified.damage.extend(f"{each}: {BACKUP_NAME} does not know this file" for each in foreign)
    return verified


def check_places(path: Path, backup: Backup) -> State:
    """What can be told without reading the logs: every file is there, regular and of its length, the metadata is what
    it was, and the partitions are those of the metadata, which is returned. BackupError with the first that is not
    so."""
    for partition in backup.partitions:
        directory = partition_path(path, partition.ids)
        for segment in partition.segments:
            log = layout.segment_log(directory, segment.start_offset)
            check_size(path, log, segment.bytes, may_be_longer=segment.kept != COPIED)
            if segment.manifest is not None:
                read_entry(path, layout.segment_manifest(directory, segment.start_offset), segment.manifest)
    for sentence in _check_metadata(path, backup):
        raise BackupError(sentence)
    try:
        return read_metadata(path)
    except (LogError, ApplyError) as error:  # it was readable a moment ago
        raise BackupError(str(error)) from error


def _check_metadata(path: Path, backup: Backup) -> Iterator[str]:
    damage = [*check_file(path, path / FILE_NAME, backup.metadata.log)]
    damage += check_file(path, path / SNAPSHOT_NAME, backup.metadata.snapshot)
    if damage:
        yield from damage
        return
    try:
        state = read_metadata(path)
    except (LogError, ApplyError) as error:
        yield str(error)
        return
    if state.index != backup.metadata.index:
        yield f"{path}: the metadata ends with record {state.index}, not {backup.metadata.index}"
    wanted = incarnations(state)
    found = {partition.ids: partition.incarnation for partition in backup.partitions}
    for ids in sorted(found.keys() - wanted.keys()):
        yield f"{path}: partition {'/'.join(map(str, ids))} is unknown to the metadata"
    missing = sorted(ids for ids, incarnation in wanted.items() if found.get(ids) != incarnation)
    if len(missing) != len(backup.left_out):
        yield f"{path}: {len(missing)} partitions of the metadata are missing, but {len(backup.left_out)} were left out"


def _check_partition(path: Path, partition: PartitionEntry, throttle: Throttle) -> Iterator[str]:
    directory = partition_path(path, partition.ids)
    expected = partition.start_offset
    for number, segment in enumerate(partition.segments):
        if segment.start_offset != expected:
            yield f"{directory}: the segment at offset {expected} is missing, {segment.start_offset} follows"
        last = number + 1 == len(partition.segments)
        following = None if last else partition.segments[number + 1].start_offset
        expected = segment.end_offset if following is None or not segment.damage else following
        yield from _check_segment(path, directory, segment, partition.imported_end, throttle)
    if expected != partition.end_offset:
        yield f"{directory}: it ends at offset {expected}, not {partition.end_offset}"


def _check_segment(
    path: Path, directory: Path, segment: SegmentEntry, imported_end: int, throttle: Throttle
) -> Iterator[str]:
    manifest = layout.segment_manifest(directory, segment.start_offset)
    problems = list(check_file(path, manifest, segment.manifest))
    yield from problems
    if segment.manifest is not None and not problems:
        try:
            known_manifest(manifest, read_entry(path, manifest, segment.manifest))
        except BackupError as error:  # how its log has to be read is not known
            yield str(error)
            return
    log = layout.segment_log(directory, segment.start_offset)
    try:
        with opened_inside(path, log) as descriptor:
            size = os.fstat(descriptor).st_size
            if size < segment.bytes or (size > segment.bytes and segment.kept == COPIED):
                yield f"{log}: it has {size} bytes instead of {segment.bytes}"
                return
            log_pass = LogPass(descriptor, segment.start_offset, imported_end, throttle, sparse_end=segment.sparse_end)
            content = log_pass.whole(bytes_max=bytes_of(segment))
    except BackupError as error:
        yield str(error)
        return
    except OSError as error:
        yield f"{log}: {error.strerror}"
        return
    yield from compare(log, segment, content)


def known_manifest(path: Path, content: bytes) -> Manifest | None:
    """None when it says nothing to this version. BackupError for a layout that this version does not know."""
    try:
        return decode_manifest(content)
    except UnknownLayoutError as error:
        raise BackupError(f"{path}: {error}") from error
    except (DamagedManifestError, UnknownManifestError):
        return None


def bytes_of(segment: SegmentEntry) -> int | None:
    """How much of the file is the segment; None: all. A linked one may have grown: when the segments behind it were
    removed by hand, the server goes on writing to it."""
    return None if segment.kept == COPIED else segment.bytes


def compare(log: Path, segment: SegmentEntry, content: PassResult) -> Iterator[str]:
    """What differs between a log and what backup.json says of it."""
    if content.bytes != segment.bytes:
        yield f"{log}: it has {content.bytes} bytes instead of {segment.bytes}"
    elif file_digest(content.digest.digest()) != segment.digest:
        where = f" ({content.damage})" if content.damage else ""
        yield f"{log}: its digest does not match{where}"
    elif content.count != segment.count and segment.sparse_end:
        yield f"{log}: it has {content.count} records instead of {segment.count}"
    elif content.count != segment.count:
        yield f"{log}: its records end before offset {segment.start_offset + content.count}, not {segment.end_offset}"


def check_file(backup: Path, path: Path, entry: FileEntry | None) -> Iterator[str]:
    """A small file against its entry."""
    if entry is None:
        if is_there(path):
            yield f"{path} was not part of the backup"
        return
    try:
        read_entry(backup, path, entry)
    except BackupError as error:
        yield str(error)
