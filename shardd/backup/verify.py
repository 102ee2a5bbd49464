"""Checks a backup: every file, every record, and that metadata and partitions fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shardd.backup.format import (
    BACKUP_NAME,
    COPIED,
    Backup,
    FileEntry,
    PartitionEntry,
    SegmentEntry,
    file_digest,
    partition_path,
    read_backup,
)
from shardd.backup.metadata import file_entry, incarnations, read_metadata
from shardd.backup.place import MARKER_NAME
from shardd.log import layout
from shardd.log.reading import Content, Log, Throttle
from shardd.log.segments import opened
from shardd.metadata.apply import ApplyError
from shardd.metadata.errors import LogError
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.snapshot import SNAPSHOT_NAME


@dataclass(frozen=True, slots=True)
class Verified:
    """`damage`: what is wrong with the backup, a sentence each; a backup without is as it was made. What was already
    wrong with the server's files then is in `backup.left_out` and `backup.warnings`."""

    backup: Backup
    damage: list[str] = field(default_factory=list)


def verify_backup(path: Path, bytes_per_second: int = 0) -> Verified:
    """Reads all of it. BackupError when `path` is no complete backup."""
    verified = Verified(read_backup(path))
    throttle = Throttle(bytes_per_second)
    verified.damage.extend(_check_metadata(path, verified.backup))
    known: set[Path] = {path / BACKUP_NAME, path / FILE_NAME, path / SNAPSHOT_NAME, path / MARKER_NAME}
    for partition in verified.backup.partitions:
        verified.damage.extend(_check_partition(path, partition, throttle))
        directory = partition_path(path, partition.place)
        for segment in partition.segments:
            known.add(layout.segment_log(directory, segment.start_offset))
            if segment.manifest is not None:
                known.add(layout.segment_manifest(directory, segment.start_offset))
    foreign = sorted(each for each in path.rglob("*") if not each.is_dir() and each not in known)
    verified.damage.extend(f"{each}: {BACKUP_NAME} does not know this file" for each in foreign)
    return verified


def _check_metadata(path: Path, backup: Backup) -> Iterator[str]:
    yield from check_file(path / FILE_NAME, backup.metadata.log)
    yield from check_file(path / SNAPSHOT_NAME, backup.metadata.snapshot)
    try:
        state = read_metadata(path)
    except (LogError, ApplyError) as error:
        yield str(error)
        return
    if state.index != backup.metadata.index:
        yield f"{path}: the metadata ends with record {state.index}, not {backup.metadata.index}"
    wanted = incarnations(state)
    found = {partition.place: partition.incarnation for partition in backup.partitions}
    for place in sorted(found.keys() - wanted.keys()):
        yield f"{path}: partition {'/'.join(map(str, place))} is unknown to the metadata"
    missing = sorted(place for place, incarnation in wanted.items() if found.get(place) != incarnation)
    if len(missing) != len(backup.left_out):
        yield f"{path}: {len(missing)} partitions of the metadata are missing, but {len(backup.left_out)} were left out"


def _check_partition(path: Path, partition: PartitionEntry, throttle: Throttle) -> Iterator[str]:
    directory = partition_path(path, partition.place)
    expected = partition.start_offset
    for number, segment in enumerate(partition.segments):
        if segment.start_offset != expected:
            yield f"{directory}: the segment at offset {expected} is missing, {segment.start_offset} follows"
        last = number + 1 == len(partition.segments)
        following = None if last else partition.segments[number + 1].start_offset
        expected = segment.end_offset if following is None or not segment.damage else following
        yield from _check_segment(directory, segment, partition.imported_end, throttle)
    if expected != partition.end_offset:
        yield f"{directory}: it ends at offset {expected}, not {partition.end_offset}"


def _check_segment(directory: Path, segment: SegmentEntry, imported_end: int, throttle: Throttle) -> Iterator[str]:
    yield from check_file(layout.segment_manifest(directory, segment.start_offset), segment.manifest)
    log = layout.segment_log(directory, segment.start_offset)
    try:
        with opened(log, os.O_RDONLY) as descriptor:
            content = Log(descriptor, segment.start_offset, imported_end, throttle).whole(bytes_max=bytes_of(segment))
    except OSError as error:
        yield f"{log}: {error.strerror}"
        return
    yield from compare(log, segment, content)


def bytes_of(segment: SegmentEntry) -> int | None:
    """How much of the file is the segment; None: all. A linked one may have grown: when the segments behind it were
    removed by hand, the server goes on writing to it."""
    return None if segment.kept == COPIED else segment.bytes


def compare(log: Path, segment: SegmentEntry, content: Content) -> Iterator[str]:
    """What differs between a log and what backup.json says of it."""
    if content.bytes != segment.bytes:
        yield f"{log}: it has {content.bytes} bytes instead of {segment.bytes}"
    elif file_digest(content.digest.digest()) != segment.digest:
        where = f" ({content.damage})" if content.damage else ""
        yield f"{log}: its digest does not match{where}"
    elif segment.start_offset + content.count != segment.end_offset:
        yield f"{log}: its records end before offset {segment.start_offset + content.count}, not {segment.end_offset}"


def check_file(path: Path, entry: FileEntry | None) -> Iterator[str]:
    """A small file against its entry."""
    try:
        found = file_entry(path)
    except OSError as error:
        yield f"{path}: {error.strerror}"
        return
    if found == entry:
        return
    if found is None:
        yield f"{path} is missing"
    elif entry is None:
        yield f"{path} was not part of the backup"
    elif found.bytes != entry.bytes:
        yield f"{path}: it has {found.bytes} bytes instead of {entry.bytes}"
    else:
        yield f"{path}: its digest does not match"
