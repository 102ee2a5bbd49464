"""Makes a data directory of a backup: complete, or none that a server would start on.

`info.json` says "shardd-restore" until everything is there and on the device; a server refuses a directory with that.
Everything that can be told without reading the logs is checked before anything is written, and every byte while it is
copied. Indexes are made from the records. The directory begins a history of its own (history.py).
"""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from shardd.backup.check import read_checked
from shardd.backup.format import Backup, BackupError, PartitionEntry, SegmentEntry, partition_path
from shardd.backup.history import encode_metadata, new_history
from shardd.backup.inside import opened_inside, read_entry
from shardd.backup.metadata import incarnations, read_metadata
from shardd.backup.verify import bytes_of, check_places, compare, known_manifest
from shardd.backup.writing import Writer, sync_file_system
from shardd.log import layout
from shardd.log.directory_info import MAGIC, DirectoryInfo, write_info
from shardd.log.imported import encode_imported
from shardd.log.incarnation import encode_incarnation
from shardd.log.manifest import encode_manifest
from shardd.log.offsets_table import OFFSET_CONSUMER, StoredOffset, encode_table
from shardd.log.segment_reader import opened
from shardd.log.single_pass import LogPass
from shardd.metadata.apply import ApplyError
from shardd.metadata.errors import LogError
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.snapshot import SNAPSHOT_NAME
from shardd.metadata.state import State
from shardd.runtime.throttle import Throttle

GUARD: Final = "shardd-restore"
_METADATA_MODE: Final = 0o600
_OFFSET: Final = struct.Struct("<Q")


def restore_backup(path: Path, data: Path, *, link: bool = False, bytes_per_second: int = 0) -> Backup:
    """The backup `path` as the data directory `data`, which must be empty or missing. `link`: sealed segments become
    second names of the backup's files (their content is checked, too). BackupError: nothing of it is left."""
    backup = read_checked(path)
    state = _check(path, backup)
    existed = data.exists()
    try:
        if existed and (not data.is_dir() or any(data.iterdir())):
            raise BackupError(f"{data} is not an empty directory; a backup is restored into an empty or a new one only")
        data.mkdir(parents=True, exist_ok=True)
        try:
            _restore(path, backup, new_history(state), data, link, Throttle(bytes_per_second))
        except BaseException:
            _remove_content(data)
            if not existed:
                data.rmdir()
            raise
    except OSError as error:
        raise BackupError(f"{data} cannot be made: {error}") from error
    return backup


def _check(path: Path, backup: Backup) -> State:
    """The metadata of the backup, when nothing is wrong that can be seen before the logs are read. BackupError."""
    state = check_places(path, backup)
    wanted = incarnations(state)
    if any(wanted.get(each.ids) != each.incarnation for each in backup.partitions):
        raise BackupError(f"{path}: partitions and metadata do not belong together")
    return state


def _restore(path: Path, backup: Backup, state: State, data: Path, link: bool, throttle: Throttle) -> None:
    write_info(data, DirectoryInfo(GUARD, backup.data_format_version, backup.data_created_at))
    for partition in backup.partitions:
        _restore_partition(path, partition, state.index, data, backup.data_format_version, link, throttle)
    for name, content in zip((SNAPSHOT_NAME, FILE_NAME), encode_metadata(state), strict=True):
        with Writer(data / name, _METADATA_MODE) as writer:
            writer.write(content)
    try:
        written = read_metadata(data)
    except (LogError, ApplyError) as error:
        raise BackupError(str(error)) from error
    if written != state:
        raise BackupError(f"{data}: the metadata is not what was written")
    with opened(data, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        sync_file_system(descriptor)
    write_info(data, DirectoryInfo(MAGIC, backup.data_format_version, backup.data_created_at))
    layout.sync_directory(data.parent)


def _restore_partition(
    path: Path,
    partition: PartitionEntry,
    incarnation: int,
    data: Path,
    data_version: int,
    link: bool,
    throttle: Throttle,
) -> None:
    if not partition.segments and not partition.offsets:
        return
    directory = layout.partition_directory(data, *partition.ids)
    directory.mkdir(parents=True)
    (directory / layout.INCARNATION).write_bytes(encode_incarnation(incarnation))
    if partition.imported_end:
        (directory / layout.IMPORTED).write_bytes(encode_imported(partition.imported_end))
    offsets = partition.stored_offsets
    if data_version > 1 and offsets:
        (directory / layout.CONSUMER_OFFSETS).write_bytes(encode_table(incarnation, offsets))
    elif offsets:
        _restore_offset_files(directory, offsets)
    for segment in partition.segments:
        active = segment is partition.segments[-1]  # the server goes on writing to it: never the backup's own file
        _restore_manifest(path, partition, segment, incarnation, directory)
        _restore_segment(path, partition, segment, directory, link and not active, throttle)


def _restore_offset_files(directory: Path, offsets: list[StoredOffset]) -> None:
    """As format version 1 has them."""
    for kind, number, value, *_use in offsets:
        holder = directory / layout.OFFSETS / (layout.CONSUMERS if kind == OFFSET_CONSUMER else layout.GROUPS)
        holder.mkdir(parents=True, exist_ok=True)
        (holder / str(number)).write_bytes(_OFFSET.pack(value))


def _restore_manifest(
    path: Path, partition: PartitionEntry, segment: SegmentEntry, incarnation: int, directory: Path
) -> None:
    """One that says nothing to this version stays as it is: a server scans the log, or keeps the partition closed.
    BackupError for a layout that is not known."""
    if segment.manifest is None:
        return
    kept = layout.segment_manifest(partition_path(path, partition.ids), segment.start_offset)
    content = read_entry(path, kept, segment.manifest)
    found = known_manifest(kept, content)
    if found is not None and (found.incarnation, found.start_offset) == (partition.incarnation, segment.start_offset):
        content = encode_manifest(replace(found, incarnation=incarnation))
    with Writer(layout.segment_manifest(directory, segment.start_offset)) as writer:
        writer.write(content)


def _restore_segment(
    path: Path, partition: PartitionEntry, segment: SegmentEntry, directory: Path, link: bool, throttle: Throttle
) -> None:
    start, imported_end = segment.start_offset, partition.imported_end
    kept = layout.segment_log(partition_path(path, partition.ids), start)
    log = layout.segment_log(directory, start)
    with opened_inside(path, kept) as descriptor, Writer(layout.segment_index(directory, start)) as index:
        if link and os.fstat(descriptor).st_size == segment.bytes:
            os.link(f"/proc/self/fd/{descriptor}", log, src_dir_fd=descriptor)  # what was opened, by any name
            pass_ = LogPass(descriptor, start, imported_end, throttle, index=index.write, sparse_end=segment.sparse_end)
            content = pass_.whole()
        else:
            with Writer(log) as copy:
                pass_ = LogPass(
                    descriptor, start, imported_end, throttle, copy.write, index.write, sparse_end=segment.sparse_end
                )
                content = pass_.whole(bytes_max=bytes_of(segment))
    for sentence in compare(kept, segment, content):
        raise BackupError(sentence)


def _remove_content(directory: Path) -> None:
    """What a failed restore has made; the guard goes last."""
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.suffix == ".json"):
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
