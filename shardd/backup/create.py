"""Makes a backup from the files of a data directory, beside its server or without one; the server takes no part.

The metadata is read, its partitions are taken, then the metadata is read again: a partition that was created or purged
meanwhile is taken (again), one that was deleted is dropped, until the last metadata read and the partitions fit. A
directory leaves its place only behind the metadata record that removes it, so a partition that the last metadata knows
was whole when it was taken.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from shardd.backup.backups_directory import Unfinished, locked, newest_backup, now, remove_leftovers, time_text
from shardd.backup.check import read_checked
from shardd.backup.format import (
    FORMAT_VERSION,
    MAGIC,
    SECOND_VERSION,
    THIRD_VERSION,
    Backup,
    BackupError,
    MetadataEntry,
    PartitionEntry,
    partition_path,
)
from shardd.backup.metadata import incarnations, take_metadata
from shardd.backup.partition import Base, Taker, UnsettledError
from shardd.log.directory_info import DirectoryInfo, read_info
from shardd.log.layout import PartitionIds
from shardd.runtime.throttle import Throttle

ROUNDS_MAX: Final = 10  # over what changes while it is taken
_PAUSE_S: Final = 0.2


class Options(msgspec.Struct, frozen=True):
    """`base`: the backup to share with; None: the newest complete one beside the new one, unless `full`. The rate is
    that of reading, 0 for no limit."""

    base: Path | None = None
    full: bool = False
    bytes_per_second: int = 0


class Made(msgspec.Struct, frozen=True):
    """`removed`: what killed runs had left."""

    path: Path
    backup: Backup
    removed: list[Path] = msgspec.field(default_factory=list)


def create_backup(
    data: Path, directory: Path, options: Options | None = None, flush: Callable[[], None] = lambda: None
) -> Made:
    """A new backup of the data directory `data` in `directory`, which is made when missing. `flush` is called when the
    moment has been taken from which on the backup is to hold everything. BackupError."""
    options = options or Options()
    try:
        info = _check(data, directory)
        with locked(directory):
            removed = remove_leftovers(directory)
            base = _base(directory, options, info)
            began = now()
            flush()
            with Unfinished(directory, began) as unfinished:
                taker = Taker(data, unfinished.path, base, Throttle(options.bytes_per_second))
                metadata, partitions, left_out = _take_all(taker)
                backup = _describe(info, began, base, metadata, partitions, left_out, taker)
                return Made(unfinished.finish(backup), backup, removed)
    except PermissionError as error:
        sentence = f"{error.filename} may not be used by this user: a backup is made as the server's user or as root"
        raise BackupError(sentence) from error
    except OSError as error:
        raise BackupError(f"the backup cannot be made: {error}") from error


def _check(data: Path, directory: Path) -> DirectoryInfo:
    try:
        info = read_info(data)
    except ValueError as error:
        raise BackupError(str(error)) from error
    if info is None:
        raise BackupError(f"{data} is no data directory of shardd: it has no info.json")
    inner, outer = directory.resolve(), data.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise BackupError(f"{directory} and the data directory {data} lie in one another")
    return info


def _base(directory: Path, options: Options, info: DirectoryInfo) -> Base | None:
    if options.full:
        return None
    if options.base is not None:
        found = options.base, read_checked(options.base)
        if found[1].data_created_at != info.created_at:
            raise BackupError(f"{options.base} is a backup of another data directory")
    else:
        newest = newest_backup(directory)
        if newest is None or newest[1].data_created_at != info.created_at:
            return None
        found = newest
    path, backup = found
    return Base(path, {partition.ids: partition for partition in backup.partitions})


def _take_all(taker: Taker) -> tuple[MetadataEntry, list[PartitionEntry], list[str]]:
    """Rounds until metadata and partitions fit. What does not is left out, but for what is newer than the beginning:
    none of its messages has to be there, so it is in the backup without any."""
    state, metadata = take_metadata(taker.data, taker.target)
    first_index = state.index
    taken: dict[PartitionIds, PartitionEntry] = {}
    unsettled: dict[PartitionIds, str] = {}
    for number in range(ROUNDS_MAX):
        wanted = incarnations(state)
        _drop(taker, taken, wanted)
        unsettled = {}
        for ids, incarnation in wanted.items():
            if ids not in taken:
                try:
                    taken[ids] = taker.take(ids, incarnation)
                except UnsettledError as error:
                    _remove_directory(taker, ids)
                    unsettled[ids] = str(error)
        state, metadata = take_metadata(taker.data, taker.target)
        wanted = incarnations(state)
        if wanted == {ids: entry.incarnation for ids, entry in taken.items()}:
            break
        if number + 1 < ROUNDS_MAX:
            time.sleep(_PAUSE_S)
    _drop(taker, taken, wanted)
    left_out = []
    for ids in sorted(wanted.keys() - taken.keys()):
        name = f"partition {'/'.join(map(str, ids))}"
        if wanted[ids] > first_index:
            taken[ids] = PartitionEntry(*ids, wanted[ids])
            taker.warnings[ids] = [f"{name} was made or purged during the backup and is empty in it"]
        else:
            left_out.append(unsettled.get(ids, f"{name} never fitted the metadata"))
    return metadata, [taken[ids] for ids in sorted(taken)], left_out


def _drop(taker: Taker, taken: dict[PartitionIds, PartitionEntry], wanted: dict[PartitionIds, int]) -> None:
    """Forgets what the metadata does not know (any more)."""
    for ids, entry in list(taken.items()):
        if wanted.get(ids) != entry.incarnation:
            del taken[ids]
            _remove_directory(taker, ids)


def _remove_directory(taker: Taker, ids: PartitionIds) -> None:
    taker.warnings.pop(ids, None)
    path = partition_path(taker.target, ids)
    if path.exists():
        shutil.rmtree(path)


def _version(info: DirectoryInfo, partitions: list[PartitionEntry]) -> int:
    """The earliest one whose programs read it."""
    if any(partition.uses is not msgspec.UNSET for partition in partitions):
        return THIRD_VERSION
    sparse = any(segment.sparse_end for partition in partitions for segment in partition.segments)
    return SECOND_VERSION if sparse or info.format_version > 1 else FORMAT_VERSION


def _describe(
    info: DirectoryInfo,
    began: datetime,
    base: Base | None,
    metadata: MetadataEntry,
    partitions: list[PartitionEntry],
    left_out: list[str],
    taker: Taker,
) -> Backup:
    return Backup(
        MAGIC,
        _version(info, partitions),
        info.format_version,
        info.created_at,
        time_text(began),
        time_text(now()),
        "" if base is None else base.path.name,
        metadata,
        partitions,
        left_out,
        [warning for ids in sorted(taker.warnings) for warning in taker.warnings[ids]],
    )
