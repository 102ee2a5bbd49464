"""Takes one partition into a backup, beside the server that goes on with it.

Everything is done through a descriptor of the partition's directory: when the server moves the directory away (delete,
purge), this still is the same incarnation, only its files get fewer. A sealed segment never changes, so a second name
for it is a copy; the newest one is copied, and a compressed one unpacked: a backup has plain logs (segment.py).
Segments are deleted from the front only: one that is gone when its turn comes takes with it what was taken before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from shardd.backup.format import OffsetEntry, OffsetUse, PartitionEntry, SegmentEntry, partition_path
from shardd.backup.segment import ChangedError, Segment, remove, settled_starts
from shardd.log import layout
from shardd.log.imported import end_of_import
from shardd.log.incarnation import read_incarnation
from shardd.log.layout import PartitionIds
from shardd.log.manifest import UnknownLayoutError
from shardd.log.offsets_table import StoredOffset
from shardd.log.segment_reader import log_path, segment_starts
from shardd.log.segment_recovery import whole_manifests
from shardd.log.single_pass import UnreadableError
from shardd.log.stored_offsets import UnusableTableError, read_offsets
from shardd.runtime.disk_errors import Trouble, trouble_of
from shardd.runtime.throttle import Throttle

ATTEMPTS_MAX: Final = 20  # listings of a directory whose segments are being deleted


class UnsettledError(Exception):
    """The partition cannot be taken now, or does not fit the metadata that was read; the text is a sentence."""


class Base(msgspec.Struct, frozen=True):
    """An earlier backup of the same data directory."""

    path: Path
    partitions: dict[PartitionIds, PartitionEntry]

    def segments(self, ids: PartitionIds, incarnation: int) -> dict[int, SegmentEntry]:
        """By start offset."""
        partition = self.partitions.get(ids)
        if partition is None:
            return {}
        segments = partition.segments
        if partition.incarnation != incarnation:  # the directory was restored, or the topic purged: equal bytes only
            segments = [msgspec.structs.replace(segment, source=None) for segment in segments]
        return {segment.start_offset: segment for segment in segments}


class Taker(msgspec.Struct):
    """Takes partitions of `data` into the directory `target` of a backup."""

    data: Path
    target: Path
    base: Base | None
    throttle: Throttle
    warnings: dict[PartitionIds, list[str]] = msgspec.field(default_factory=dict)

    def take(self, ids: PartitionIds, incarnation: int) -> PartitionEntry:
        """UnsettledError, also when the messages cannot be read; OSError of the target, or of other files."""
        self.warnings[ids] = []
        path = layout.partition_directory(self.data, *ids)
        with _opened_directory(path) as directory:
            if directory is None:
                return PartitionEntry(*ids, incarnation)
            try:
                return self._take(directory, path, ids, incarnation)
            except UnsettledError as error:
                raise UnsettledError(_by_path(str(error), directory, path)) from error
            finally:
                self.warnings[ids] = [_by_path(each, directory, path) for each in self.warnings[ids]]

    def _take(self, directory: Path, path: Path, ids: PartitionIds, incarnation: int) -> PartitionEntry:
        try:
            starts = segment_starts(directory)
            found = _incarnation_of(directory, starts, self.warnings[ids])
            if found is None and any(log_path(directory, start).stat().st_size for start in starts):
                raise UnsettledError(f"{path} holds messages but no valid incarnation marker")
            if found is not None and found < incarnation:  # nothing of this incarnation is there yet
                return PartitionEntry(*ids, incarnation)
            if found is not None and found > incarnation:
                raise UnsettledError(f"{path} was made by metadata record {found}, later than record {incarnation}")
            imported_end = end_of_import(directory, self.warnings[ids])
            offsets, notes = _offsets_in(directory, incarnation)  # before the messages: never ahead of them
        except FileNotFoundError as error:
            raise UnsettledError(f"{path} was changed while it was read: {error}") from error
        except OSError as error:
            if trouble_of(error) is not Trouble.DEVICE:
                raise
            raise UnsettledError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UnsettledError(str(error)) from error
        self.warnings[ids] += notes
        try:
            segments = self._segments(directory, ids, incarnation, imported_end)
        except UnreadableError as error:
            raise UnsettledError(f"{path} cannot be read: {error.strerror}") from error
        except UnknownLayoutError as error:
            raise UnsettledError(f"{path} cannot be taken: {error}") from error
        return PartitionEntry(
            *ids,
            incarnation,
            start_offset=segments[0].start_offset if segments else 0,
            end_offset=segments[-1].end_offset if segments else 0,
            imported_end=imported_end,
            offsets=[OffsetEntry(*each[:3]) for each in offsets],
            uses=_uses(offsets),
            segments=segments,
        )

    def _segments(self, directory: Path, ids: PartitionIds, incarnation: int, imported_end: int) -> list[SegmentEntry]:
        taken: dict[int, SegmentEntry] = {}
        notes: dict[int, str] = {}
        target = partition_path(self.target, ids)
        base = None if self.base is None else partition_path(self.base.path, ids)
        earlier = {} if self.base is None else self.base.segments(ids, incarnation)
        for _ in range(ATTEMPTS_MAX):
            starts = settled_starts(directory)
            for start in [start for start in taken if start not in starts]:
                remove(target, start)
                del taken[start]
            if starts:
                target.mkdir(parents=True, exist_ok=True)
            try:
                for start, following in zip(starts, [*starts[1:], None], strict=False):
                    if start not in taken:
                        taken[start] = Segment(
                            directory,
                            target,
                            incarnation,
                            start,
                            following,
                            imported_end,
                            self.throttle,
                            base,
                            earlier.get(start),
                            notes,
                        ).take()
            except (FileNotFoundError, ChangedError):
                remove(target, start)
                continue
            found = [taken[start] for start in starts]
            self.warnings[ids] += [notes[start] for start in starts if start in notes]
            for entry in found:
                if entry.damage:
                    log = layout.segment_log(layout.partition_directory(self.data, *ids), entry.start_offset)
                    self.warnings[ids].append(f"{log}: damaged: {entry.damage}")
            return found
        path = layout.partition_directory(self.data, *ids)
        raise UnsettledError(f"{path}: its segments are deleted faster than they can be taken")


def _uses(offsets: list[StoredOffset]) -> list[OffsetUse] | msgspec.UnsetType:
    """Not named in backup.json where nothing is known of any, as programs before did."""
    uses = [OffsetUse(*each[3:]) for each in offsets]
    return uses if any(map(any, uses)) else msgspec.UNSET


@contextmanager
def _opened_directory(path: Path) -> Iterator[Path | None]:
    """A path that stays that of this directory wherever it is moved; None when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _by_path(sentence: str, directory: Path, path: Path) -> str:
    """An operator knows a partition by its path, not by the descriptor through which it was read."""
    return re.sub(rf"{directory}\b", lambda _: str(path), sentence)


def _incarnation_of(directory: Path, starts: list[int], warnings: list[str]) -> int | None:
    """As a start finds it: where the device does not give the marker, what manifests say. OSError, ValueError."""
    try:
        return read_incarnation(directory)
    except OSError as error:
        told = max((each.incarnation for each in whole_manifests(directory, starts)), default=None)
        if trouble_of(error) is not Trouble.DEVICE or told is None:
            raise
        warnings.append(f"{error}: a manifest says what its incarnation marker would")
        return told


def _offsets_in(directory: Path, incarnation: int) -> tuple[list[StoredOffset], list[str]]:
    """A table that cannot be read costs its own content, never the backup. FileNotFoundError, ValueError."""
    try:
        return read_offsets(directory, incarnation)
    except FileNotFoundError:
        raise
    except (OSError, UnusableTableError) as error:
        return [], [f"{directory}: no stored offset is in this backup: {error}"]
