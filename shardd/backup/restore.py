"""Makes a data directory of a backup: complete, or none that a server would start on.

`info.json` says "shardd-restore" until everything is there and on the device; a server refuses a directory with that.
Every byte is checked while it is copied. Indexes are made from the records.
"""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Final

from shardd.backup.format import (
    Backup,
    BackupError,
    PartitionEntry,
    SegmentEntry,
    partition_path,
    read_backup,
)
from shardd.backup.metadata import file_entry, incarnations, read_metadata
from shardd.backup.verify import bytes_of, compare
from shardd.backup.writing import Writer, sync_file_system
from shardd.log import layout
from shardd.log.directory_info import MAGIC, DirectoryInfo, write_info
from shardd.log.imported import encode_imported
from shardd.log.incarnation import encode_incarnation
from shardd.log.reading import Log, Throttle
from shardd.log.segments import opened
from shardd.log.stored_offsets import OFFSET_CONSUMER
from shardd.metadata.apply import ApplyError
from shardd.metadata.errors import LogError
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.snapshot import SNAPSHOT_NAME

GUARD: Final = "shardd-restore"
_METADATA_MODE: Final = 0o600
_OFFSET: Final = struct.Struct("<Q")


def restore_backup(path: Path, data: Path, *, link: bool = False, bytes_per_second: int = 0) -> Backup:
    """The backup `path` as the data directory `data`, which must be empty or missing. `link`: sealed segments become
    second names of the backup's files (their content is checked, too). BackupError: nothing of it is left."""
    backup = read_backup(path)
    existed = data.exists()
    try:
        if existed and (not data.is_dir() or any(data.iterdir())):
            raise BackupError(f"{data} is not an empty directory; a backup is restored into an empty or a new one only")
        data.mkdir(parents=True, exist_ok=True)
        try:
            _restore(path, backup, data, link, Throttle(bytes_per_second))
        except BaseException:
            _remove_content(data)
            if not existed:
                data.rmdir()
            raise
    except OSError as error:
        raise BackupError(f"{data} cannot be made: {error}") from error
    return backup


def _restore(path: Path, backup: Backup, data: Path, link: bool, throttle: Throttle) -> None:
    write_info(data, DirectoryInfo(GUARD, backup.data_format_version, backup.data_created_at))
    for partition in backup.partitions:
        _restore_partition(path, partition, data, link, throttle)
    for name, entry in ((SNAPSHOT_NAME, backup.metadata.snapshot), (FILE_NAME, backup.metadata.log)):
        if entry is not None:
            _copy_small(path / name, data / name, _METADATA_MODE)
            if file_entry(data / name) != entry:
                raise BackupError(f"{path / name}: it is not what the backup was made with")
    try:
        state = read_metadata(data)
    except (LogError, ApplyError) as error:
        raise BackupError(str(error)) from error
    wanted = incarnations(state)
    if any(wanted.get(each.place) != each.incarnation for each in backup.partitions):
        raise BackupError(f"{path}: partitions and metadata do not belong together")
    with opened(data, os.O_RDONLY) as descriptor:
        sync_file_system(descriptor)
    write_info(data, DirectoryInfo(MAGIC, backup.data_format_version, backup.data_created_at))
    layout.sync_directory(data.parent)


def _restore_partition(path: Path, partition: PartitionEntry, data: Path, link: bool, throttle: Throttle) -> None:
    if not partition.segments and not partition.offsets:
        return
    directory = layout.partition_directory(data, *partition.place)
    directory.mkdir(parents=True)
    (directory / layout.INCARNATION).write_bytes(encode_incarnation(partition.incarnation))
    if partition.imported_end:
        (directory / layout.IMPORTED).write_bytes(encode_imported(partition.imported_end))
    for kind, number, value in partition.offsets:
        holder = directory / layout.OFFSETS / (layout.CONSUMERS if kind == OFFSET_CONSUMER else layout.GROUPS)
        holder.mkdir(parents=True, exist_ok=True)
        (holder / str(number)).write_bytes(_OFFSET.pack(value))
    source = partition_path(path, partition.place)
    for segment in partition.segments:
        active = segment is partition.segments[-1]  # the server goes on writing to it: never the backup's own file
        _restore_segment(source, directory, segment, partition.imported_end, link and not active, throttle)


def _restore_segment(
    source: Path, directory: Path, segment: SegmentEntry, imported_end: int, link: bool, throttle: Throttle
) -> None:
    start = segment.start_offset
    kept, log = layout.segment_log(source, start), layout.segment_log(directory, start)
    if segment.manifest is not None:
        _copy_small(layout.segment_manifest(source, start), layout.segment_manifest(directory, start), 0o644)
        if file_entry(layout.segment_manifest(directory, start)) != segment.manifest:
            raise BackupError(f"{layout.segment_manifest(source, start)}: it is not what the backup was made with")
    with opened(kept, os.O_RDONLY) as descriptor, Writer(layout.segment_index(directory, start)) as index:
        if link and os.fstat(descriptor).st_size == segment.bytes:
            os.link(kept, log)
            content = Log(descriptor, start, imported_end, throttle, index=index.write).whole()
        else:
            with Writer(log) as copy:
                pass_ = Log(descriptor, start, imported_end, throttle, copy=copy.write, index=index.write)
                content = pass_.whole(bytes_max=bytes_of(segment))
    for sentence in compare(kept, segment, content):
        raise BackupError(sentence)


def _copy_small(source: Path, target: Path, mode: int) -> None:
    with Writer(target, mode) as writer:
        writer.write(source.read_bytes())


def _remove_content(directory: Path) -> None:
    """What a failed restore has made; the guard goes last."""
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.suffix == ".json"):
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
