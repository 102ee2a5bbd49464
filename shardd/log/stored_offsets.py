"""The stored offsets of a partition (docs/formats.md#consumer-offsets): one table in format version 2 of a directory,
and before it a file of 8 bytes for each consumer or group, which the first opening takes over. The table has versions
of its own; where an entry has no time of last use, the next opening writes the table anew with the time of now.

The import writes the table whole and durably before it moves anything away, so whatever stops it, one of both is there,
and the table counts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shardd.log import layout
from shardd.log.offsets_table import (
    BYTES_MAX,
    OFFSET_CONSUMER,
    OFFSET_GROUP,
    VERSION,
    Head,
    StoredOffset,
    Table,
    decode_table,
    encode_table,
)
from shardd.log.trash import move_to_trash
from shardd.runtime.regular_files import NotRegularError, read_regular

OFFSET_SIZE: Final = 8  # of a file of format version 1
_ATTEMPTS: Final = 5  # reads of a table that a server is writing to

_KINDS = ((OFFSET_CONSUMER, layout.CONSUMERS), (OFFSET_GROUP, layout.GROUPS))


class UnusableTableError(ValueError):
    """Of a later version, or of an absurd size: the stored offsets in it cannot be told."""


# ---- the table ----


def read_table(directory: Path, incarnation: int | None) -> Table | None:
    """None without the file. ValueError (a sentence) for one that is no regular file, UnusableTableError; OSError."""
    path = directory / layout.CONSUMER_OFFSETS
    try:
        content = read_regular(path, BYTES_MAX)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UnusableTableError(str(error)) from error
    except (NotRegularError, IsADirectoryError) as error:
        raise ValueError(f"{path}: {error.strerror}: no stored offset is kept there") from error
    table = decode_table(content, incarnation)
    if table.head is Head.UNKNOWN:
        raise UnusableTableError(f"{path} has a format version that this program does not know; it is left untouched")
    return table


def read_settled_table(directory: Path, incarnation: int | None) -> Table | None:
    """As above, of a server that runs: a half that is being written may look damaged, once."""
    table = read_table(directory, incarnation)
    for _ in range(_ATTEMPTS):
        if table is None or table.is_whole:
            break
        before, table = table, read_table(directory, incarnation)
        if table == before:
            break
    return table


def write_table(directory: Path, incarnation: int, offsets: Iterable[StoredOffset]) -> None:
    """Durably, whole or not at all. OSError."""
    layout.write_durably(directory / layout.CONSUMER_OFFSETS, encode_table(incarnation, offsets), BYTES_MAX)


def table_notes(directory: Path, table: Table) -> list[str]:
    """What an operator should know of it."""
    path, notes = directory / layout.CONSUMER_OFFSETS, []
    if table.head is Head.FOREIGN:
        notes.append(f"{path}: of another incarnation, not read; the next stored offset replaces it")
    if table.head is Head.DAMAGED:
        notes.append(f"{path}: its head is damaged, the stored offsets in it count all the same")
    if table.lost:
        notes.append(
            f"{path}: {len(table.lost)} entries are damaged, their stored offsets are lost: {_few(table.lost)}"
        )
    earlier = sorted(set(table.hurt) - set(table.lost))
    if earlier:
        notes.append(f"{path}: half of {len(earlier)} entries is damaged, the other half counts: {_few(earlier)}")
    return notes


def _few(places: list[int]) -> str:
    return ", ".join(map(str, places[:5])) + (", ..." if len(places) > 5 else "")


def repair_table(directory: Path, incarnation: int | None) -> Path:
    """Writes a damaged table anew, with what counts in it; of a partition that nobody has open. OSError, ValueError."""
    table = read_table(directory, incarnation)
    if incarnation is None or table is None or not table.counts:
        raise ValueError(f"{directory} has no marker or no table of its own: its stored offsets cannot be repaired")
    write_table(directory, incarnation, table.offsets)
    return directory / layout.CONSUMER_OFFSETS


# ---- both ----


def read_offsets(directory: Path, incarnation: int | None) -> tuple[list[StoredOffset], list[str]]:
    """(offsets, notes) of a partition directory of either version. Values are clamped by the engine. ValueError as
    read_table, OSError."""
    table = read_settled_table(directory, incarnation)
    if table is not None and table.counts:
        return table.offsets, table_notes(directory, table)
    offsets, notes = read_offset_files(directory)
    return offsets, notes + ([] if table is None else table_notes(directory, table))


# ---- format version 1 ----


def read_offset_files(directory: Path) -> tuple[list[StoredOffset], list[str]]:
    """(offsets, notes); files that are not offsets are told in the notes and ignored, one bad file never takes the
    others with it. OSError."""
    offsets: list[StoredOffset] = []
    notes: list[str] = []
    for kind, name in _KINDS:
        for entry in _files(directory / layout.OFFSETS / name):
            identifier = layout.parse_id(entry.name.removesuffix(layout.TEMPORARY_SUFFIX))
            if identifier is not None and entry.name.endswith(layout.TEMPORARY_SUFFIX):
                continue  # its birth was cut short, nothing was acknowledged
            if identifier is None or not entry.is_file(follow_symlinks=False):
                notes.append(f"{entry.path}: not a stored offset, ignored")
                continue
            content = _read_value(entry.path)
            if len(content) != OFFSET_SIZE:
                size = entry.stat(follow_symlinks=False).st_size
                notes.append(f"{entry.path}: {size} bytes instead of {OFFSET_SIZE}, this stored offset is ignored")
                continue
            offsets.append(StoredOffset(kind, identifier, int.from_bytes(content, "little")))
    return offsets, notes


def _files(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:  # there may be millions
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read_value(path: str) -> bytes:
    """A byte more than a value has, if there is one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return os.read(descriptor, OFFSET_SIZE + 1)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error  # a read names no file
    finally:
        os.close(descriptor)


def bring_up_to_date(directory: Path, incarnation: int, now_us: int) -> tuple[Table | None, list[str]]:
    """Before the engine opens the partition: takes the files of format version 1 over, and writes a table anew that is
    mostly free. The table, and what an operator should know of the import. ValueError as read_table, or for symbolic
    links; OSError: nothing is lost."""
    old = directory / layout.OFFSETS
    for path in (old, old / layout.CONSUMERS, old / layout.GROUPS):
        if path.is_symlink():
            raise ValueError(f"{path} is a symbolic link: no stored offset is kept behind it")
    table = read_table(directory, incarnation)
    notes: list[str] = []
    if not old.is_dir():
        if table is not None and table.is_whole and (table.is_sparse or _is_early(table)):
            with contextlib.suppress(OSError):  # no room: it does as it is
                write_table(directory, incarnation, _used(table.offsets, now_us))
    else:
        if table is None or not table.counts:  # else they are not read: what the device says of them costs nothing
            offsets, notes = read_offset_files(directory)
            if offsets:
                write_table(directory, incarnation, _used(offsets, now_us))
                table = read_table(directory, incarnation)
        notes = notes + _move_away(directory, keep=bool(notes) or _holds_more(old))
        if old.is_dir() and (table is None or not table.counts):  # without a table it counts as not read yet
            write_table(directory, incarnation, [])
    return table, notes


def _is_early(table: Table) -> bool:
    return table.version != VERSION or table.is_timeless


def _used(offsets: Iterable[StoredOffset], now_us: int) -> list[StoredOffset]:
    """What has no time of last use counts as used now."""
    return [each if each.used_us else each._replace(used_us=now_us) for each in offsets]


def _holds_more(old: Path) -> bool:
    """Than was read: what the import of an Apache Iggy directory has kept, or somebody's own."""
    return any(path.name not in (layout.CONSUMERS, layout.GROUPS) or not path.is_dir() for path in old.iterdir())


def _move_away(directory: Path, *, keep: bool) -> list[str]:
    """It is never read again: without a sync, since the table counts as long as both are there."""
    old, kept = directory / layout.OFFSETS, directory / layout.OFFSETS_KEPT
    try:
        if not keep:
            move_to_trash(old, layout.trash_of_partition(directory), durable=False)
        elif not kept.exists():
            old.rename(kept)
            return [f"{old}: taken over, what is not a stored offset is kept as {kept.name}"]
    except OSError as error:
        return [f"{old}: taken over, but it cannot be moved away: {error.strerror}"]
    return [f"{old}: not read, {layout.CONSUMER_OFFSETS} counts; it lies beside {kept.name}"] if old.exists() else []
