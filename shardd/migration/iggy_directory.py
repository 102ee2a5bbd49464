"""Takes a data directory of Apache Iggy 0.8 over. No segment is copied or rewritten.

1. Everything is read and checked; a refusal has changed nothing.
2. Beside Iggy's own files, where Iggy never looks: in each partition the markers `incarnation` and `imported`, and
   `offsets/groups.import` with the stored offsets of the groups under the numbers that this server files them under.
3. `state.snapshot` with the number that the log begins behind, then `state.messages` is renamed into place: from here
   on the import goes forward only.
4. `offsets/groups` becomes `offsets/groups.imported`, `offsets/groups.import` becomes `offsets/groups`.
5. `state/log` becomes `state/log.imported`.

A crash before 3 leaves a directory that Iggy opens as before, and the next start begins again; a crash behind 3 is
recognised by `state.messages` and `state/log` side by side: if the one is exactly what the other gives, the next start
goes on with 4. `info.json` is written by the caller, last.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from shardd.log import layout
from shardd.log.imported import OPEN_END, encode_imported
from shardd.log.incarnation import encode_incarnation
from shardd.log.stored_offsets import OFFSET_SIZE
from shardd.metadata import FILE_NAME, LogError, State
from shardd.metadata.births import born, first_state
from shardd.metadata.log_file import read_log
from shardd.metadata.snapshot import SNAPSHOT_NAME, encode_snapshot
from shardd.migration.errors import MigrationError
from shardd.migration.iggy_files import LOG_KEPT, STATE_DIRECTORY, iggy_log
from shardd.migration.iggy_log import parse_log
from shardd.migration.iggy_model import build_model
from shardd.migration.iggy_records import make_records
from shardd.runtime.disk import OsDisk, check_size, write_all

GROUPS_NEW: Final = "groups.import"
GROUPS_KEPT: Final = "groups.imported"


class ImportDisk(OsDisk):
    """What changes the directory, so that tests can stop it anywhere."""

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)


class _Partition(msgspec.Struct, frozen=True):
    """`groups`: stored offsets of the groups, by the number they are filed under here; None: no directory for them."""

    directory: Path
    incarnation: int
    groups: dict[int, bytes] | None


def import_directory(data: Path, disk: ImportDisk | None = None, first: State | None = None) -> State:
    """The import, or the rest of an interrupted one; the state that it gave. Raises MigrationError, and OSError from
    the file system: then the next start begins or goes on. `first`: the state in front of the first record, of which
    there is one drawn for each import that begins."""
    disk = disk or ImportDisk()
    log = iggy_log(data)
    _check_kind(data / STATE_DIRECTORY, stat.S_ISDIR, "directory")
    _check_kind(log, stat.S_ISREG, "file")
    if os.path.lexists(log.with_name(LOG_KEPT)):
        raise MigrationError(
            f"{log} lies beside {LOG_KEPT}, which an earlier import has kept: move away the one that does not count"
        )
    model = build_model(parse_log(log.read_bytes(), str(log)), str(log))
    target = data / FILE_NAME
    begins = not os.path.lexists(target)
    first = (first or first_state()) if begins else _first_of(target)
    records = make_records(model, str(log), first)
    if begins:
        partitions = list(_check_partitions(data, records.state))
        for partition in partitions:
            _prepare(disk, partition)
        if records.state != first:
            _write(disk, data / SNAPSHOT_NAME, encode_snapshot(first, []))
            disk.sync_directory(data)
            _write(disk, target, records.data)
            disk.sync_directory(data)
    elif target.read_bytes() != records.data:
        raise MigrationError(
            f"{target} lies beside {log} and was not made from it: move away the one that does not count"
        )
    for directory, _incarnation, _groups in _places(data, records.state):
        _finish_partition(disk, directory)
    disk.rename(log, log.with_name(LOG_KEPT))
    disk.sync_directory(log.parent)
    return records.state


def _first_of(target: Path) -> State:
    """The state in front of the first record of an import that was interrupted."""
    try:
        return born(read_log(target).base)
    except LogError:
        return State()  # not made from it, as the comparison of their bytes says


# ---- checks ----


def _places(data: Path, state: State) -> Iterator[tuple[Path, int, dict[int, int]]]:
    """(directory, incarnation, id of each group -> the number its offsets are filed under) of every partition."""
    for _, stream in sorted(state.streams.items()):
        for _, topic in sorted(stream.topics.items()):
            groups = {group.id: group.offsets_id for group in topic.groups.values()}
            for partition in topic.partitions:
                directory = layout.partition_directory(data, stream.id, topic.id, partition.id)
                yield directory, partition.incarnation, groups


def _check_partitions(data: Path, state: State) -> Iterator[_Partition]:
    checked: set[Path] = set()
    for directory, incarnation, groups in _places(data, state):
        above = [parent for parent in reversed(directory.parents) if parent.is_relative_to(data) and parent != data]
        for path in (*above, directory):
            if path not in checked:
                _check_kind(path, stat.S_ISDIR, "directory")
                checked.add(path)
        _check_segments(directory)
        yield _Partition(directory, incarnation, _read_offsets(directory / layout.OFFSETS, groups))


def _check_kind(path: Path, is_kind: Callable[[int], bool], kind: str) -> None:
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise MigrationError(
            f"{path} is missing, though the state log of Apache Iggy knows it: the directory is not whole"
        ) from None
    if stat.S_ISLNK(mode):
        raise MigrationError(f"{path} is a symbolic link; only a directory that lies in one place can be taken over")
    if not is_kind(mode):
        raise MigrationError(f"{path} is no {kind}")


def _check_segments(directory: Path) -> None:
    logs = 0
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            parsed = layout.parse_segment_name(entry.name)
            if parsed is None:
                if entry.is_symlink():
                    _check_kind(Path(entry.path), stat.S_ISREG, "file")
                continue
            _check_kind(Path(entry.path), stat.S_ISREG, "file")
            logs += parsed[1] == "log"
    if not logs:
        raise MigrationError(
            f"{directory} holds no .log file, which every partition of Apache Iggy has: it is not whole"
        )


def _read_offsets(offsets: Path, groups: dict[int, int]) -> dict[int, bytes] | None:
    """Checks all stored offsets of a partition; returns those of the groups."""
    found: dict[int, bytes] | None = None
    for name in (layout.CONSUMERS, layout.GROUPS):
        directory = offsets / name
        if not os.path.lexists(directory):
            continue
        _check_kind(offsets, stat.S_ISDIR, "directory")
        _check_kind(directory, stat.S_ISDIR, "directory")
        if name == layout.GROUPS:
            found = {}
        for path in sorted(directory.iterdir()):
            number = layout.parse_id(path.name)
            if number is None:
                raise MigrationError(f"{path} is no stored offset: move it away")
            _check_kind(path, stat.S_ISREG, "file")
            content = path.read_bytes()
            if len(content) != OFFSET_SIZE:
                raise MigrationError(
                    f"{path} has {len(content)} bytes instead of {OFFSET_SIZE}: without it its consumer starts anew"
                )
            if found is not None and name == layout.GROUPS and number in groups:
                found[groups[number]] = content
    return found


# ---- changes ----


def _write(disk: ImportDisk, path: Path, content: bytes) -> None:
    """The file whole or not at all. The caller syncs the directory."""
    check_size(len(content))
    temporary = path.with_name(path.name + layout.TEMPORARY_SUFFIX)
    descriptor = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(disk, descriptor, content, 0)
        disk.fdatasync(descriptor)
    finally:
        disk.close(descriptor)
    disk.rename(temporary, path)


def _prepare(disk: ImportDisk, partition: _Partition) -> None:
    """Step 2. Also over what an interrupted import has left."""
    directory = partition.directory
    _write(disk, directory / layout.INCARNATION, encode_incarnation(partition.incarnation))
    _write(disk, directory / layout.IMPORTED, encode_imported(OPEN_END))
    disk.sync_directory(directory)
    offsets = directory / layout.OFFSETS
    staged = offsets / GROUPS_NEW
    if staged.exists():
        disk.remove_tree(staged)
    if partition.groups is None:
        return
    disk.make_directory(staged)
    for number, content in partition.groups.items():
        _write(disk, staged / str(number), content)
    disk.sync_directory(staged)
    disk.sync_directory(offsets)


def _finish_partition(disk: ImportDisk, directory: Path) -> None:
    """Step 4, wherever it was interrupted."""
    offsets = directory / layout.OFFSETS
    staged, groups = offsets / GROUPS_NEW, offsets / layout.GROUPS
    if not staged.exists():
        return
    if groups.exists():
        disk.rename(groups, offsets / GROUPS_KEPT)
    disk.rename(staged, groups)
    disk.sync_directory(offsets)
