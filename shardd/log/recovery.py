"""Recovery of a partition before its owner opens it: what is in the directory, what of it is valid, what has to go.

The rules:
- only valid records count: checksum, dense offsets, timestamps that never fall; not zero bytes, not
  stale records; timestamps may fall in what Apache Iggy wrote (imported.py);
- what an idempotent producer's batch lacks, or a power loss leaves unproven, goes (unproven_tail.py);
- zeros behind the last record of the active segment are cut off (level durable allocates space ahead);
- a torn tail is copied to `<start>.torn` and cut off; but when what looks like a later record lies in it, or a segment
  is missing, the log is surveyed (damage_survey.py): damaged offsets are withheld (status 4027), what is proven to be a
  record is served, what is not is neither served nor cut, and offsets go on behind it (borders.py, tail.py);
- a sealed segment is what its manifest says when the lengths of its files fit; every other one is scanned from the last
  checkpoint in its manifest (manifest.py). A manifest that is missing or damaged costs a scan; one of a later version
  keeps the partition closed; a log that is shorter than its manifest says is damaged history, never silently less;
- an index that does not fit its log exactly is written again;
- a directory of an earlier incarnation goes to the trash, one of a later incarnation is refused, one whose marker was
  never synced (power loss) is kept aside and not read;
- files beside a log that retention has removed go to the trash (removed_segments.py);
- what is not ours is reported and ignored, never removed.

Nearly every partition is opened by `_native.recover_partition` (native/src/log/recover.h): it needs no decision.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from shardd.engine import _native
from shardd.log import layout
from shardd.log.changed_layouts import sweep_left_over
from shardd.log.imported import OPEN_END, end_of_import, read_imported, write_imported
from shardd.log.incarnation import (
    NewerIncarnationError,
    is_of,
    marker_was_never_synced,
    move_aside,
    read_incarnation,
    write_incarnation,
)
from shardd.log.listing import list_segments
from shardd.log.offsets_table import OFFSET_GROUP
from shardd.log.recovered import Recovered
from shardd.log.removed_segments import sweep_removed
from shardd.log.segment_reader import log_path
from shardd.log.segment_recovery import recover_segments, whole_manifests
from shardd.log.stored_offsets import UnusableTableError, bring_up_to_date, table_notes
from shardd.log.trash import move_to_trash
from shardd.log.unproven_tail import forget_withheld
from shardd.protocol.errors import Status
from shardd.runtime.boot import boot_id
from shardd.runtime.clock import SystemClock
from shardd.runtime.disk_errors import Trouble, trouble_of
from shardd.runtime.regular_files import linked_directory

_LEVELS = 5  # of directories above a partition, up to the data directory, which may be reached through a link


def open_partition(
    directory: Path, incarnation: int, boot: bytes | None = None, now_us: int | None = None
) -> Recovered:
    """Makes a partition directory consistent and tells what it holds. A directory that does not exist is an empty
    partition. Reads what is behind the last checkpoints (blocking; the scan releases the GIL). `boot`: of the machine,
    when it is not this one. `now_us`: by the believed clock, when stored offsets without a time of use were last used;
    None: by the wall clock.

    Raises NewerIncarnationError when the directory belongs to a later creation than `incarnation`, ValueError when a
    directory on the way is a symbolic link, the marker of an import is damaged or a manifest is of a later version,
    OSError when it cannot be read or repaired: then the partition must not be opened, the others can.
    """
    boot = boot_id() if boot is None else boot
    now_us = SystemClock().now_us() if now_us is None else now_us
    usual = _open_usual(directory, incarnation, boot, [])
    if usual is not None:
        return usual
    linked = linked_directory(directory, _LEVELS)
    if linked is not None:
        raise ValueError(f"{linked} is a symbolic link: no partition is opened through it")
    if not directory.exists():
        return Recovered()
    recovered = Recovered()
    tidied = sweep_removed(directory, incarnation, recovered.notes)
    if (directory / layout.OFFSETS).is_dir() and is_of(directory, incarnation):
        tidied = _take_over(directory, incarnation, now_us, recovered.notes) or tidied
    if tidied:
        usual = _open_usual(directory, incarnation, boot, recovered.notes)
        if usual is not None:
            return usual
    starts = list_segments(directory, recovered.notes)
    if not _check_incarnation(directory, incarnation, starts, recovered):
        return recovered
    sweep_left_over(directory, starts, recovered.notes)
    imported_end = end_of_import(directory, recovered.notes)
    recover_segments(directory, incarnation, starts, imported_end, boot, recovered)
    if fresh := [each for each in recovered.damaged if not each.isolated]:  # the others were seen before
        forget_withheld(directory, incarnation, boot, fresh)
    if imported_end == OPEN_END and not recovered.state:
        _close_import(directory, recovered)
    _read_offsets(directory, incarnation, now_us, recovered)
    return recovered


def _close_import(directory: Path, recovered: Recovered) -> None:
    """Where it can be read and the disk has room: else a later start does it."""
    last = recovered.segments[-1] if recovered.segments else None
    with suppress(ValueError, OSError):
        if read_imported(directory) == OPEN_END:
            write_imported(directory, 0 if last is None else last.start_offset + last.records)


def _take_over(directory: Path, incarnation: int, now_us: int, notes: list[str]) -> bool:
    """The files of format version 1. False: they cannot be read, which `_read_offsets` tells. As it."""
    try:
        notes += bring_up_to_date(directory, incarnation, now_us)[1]
    except (OSError, UnusableTableError) as error:
        if isinstance(error, OSError) and trouble_of(error).heals:
            raise
        return False
    return True


def _read_offsets(directory: Path, incarnation: int, now_us: int, recovered: Recovered) -> None:
    """The engine meets offsets that cannot be read again, and refuses requests for them: a directory of format
    version 1 without a table was not taken over. OSError: they are taken over as soon as there is room, or a
    descriptor. ValueError: of an entry that is not a regular file."""
    try:
        table, notes = bring_up_to_date(directory, incarnation, now_us)
    except (OSError, UnusableTableError) as error:
        if (directory / layout.OFFSETS).is_dir() and isinstance(error, OSError) and trouble_of(error).heals:
            raise
        recovered.notes.append(f"{error}: stored offsets cannot be read, the log is not concerned")
        return
    recovered.notes += notes
    if table is not None:
        recovered.notes += table_notes(directory, table)
        recovered.groups = [each.id for each in table.offsets if each.kind == OFFSET_GROUP]


def _open_usual(directory: Path, incarnation: int, boot: bytes, notes: list[str]) -> Recovered | None:
    """None: something is to be decided."""
    usual = _native.recover_partition(os.fspath(directory), incarnation, boot)
    if usual is None:
        return None
    return Recovered(
        segments=usual.segments,
        groups=usual.groups,
        notes=notes,
        unsealed=usual.unsealed,
        scanned_bytes=usual.scanned_bytes,
        durable_end=usual.durable_end,
        log_start=usual.log_start,
    )


def _is_proven(directory: Path, incarnation: int, starts: list[int]) -> bool:
    """Whether manifests say that the directory is of this incarnation."""
    return max((each.incarnation for each in whole_manifests(directory, starts)), default=None) == incarnation


def _check_incarnation(directory: Path, incarnation: int, starts: list[int], recovered: Recovered) -> bool:
    """False when the partition starts empty: the directory was that of an earlier incarnation, or of none. OSError:
    neither the marker nor a manifest can be read."""
    try:
        found = read_incarnation(directory)
    except OSError as error:
        if trouble_of(error) is not Trouble.DEVICE or not _is_proven(directory, incarnation, starts):
            raise
        recovered.notes.append(f"{error}: a manifest says the same as its incarnation marker would")
        return True
    if found is None and not any(log_path(directory, start).stat().st_size for start in starts):
        write_incarnation(directory, incarnation)
        return True
    if found is None:
        found = max((each.incarnation for each in whole_manifests(directory, starts)), default=None)
        if found == incarnation:
            write_incarnation(directory, incarnation)
            recovered.notes.append(f"{directory}: its incarnation marker was missing, made again from a manifest")
    if found == incarnation:
        return True
    if found is None and marker_was_never_synced(directory):
        # The first sync of a partition covers its marker: nothing in here was ever known to be on the device.
        aside = move_aside(directory)
        recovered.notes.append(
            f"{directory}: holds messages and no incarnation marker, so a power loss came before the first sync of "
            f"the partition; kept as {aside.name}, never read, the partition starts empty"
        )
        return False
    if found is None:
        recovered.state = Status.INVALID_MESSAGE_CHECKSUM
        recovered.notes.append(f"{directory}: its incarnation marker is damaged; read only until it is repaired")
        return True
    if found > incarnation:
        raise NewerIncarnationError(
            f"{directory} was made by metadata record {found}, this partition by record {incarnation}: "
            "the metadata is older than the log"
        )
    target = move_to_trash(directory, layout.trash_of_partition(directory))
    recovered.notes.append(f"{directory}: of an earlier incarnation ({found}), moved to {target}")
    return False
