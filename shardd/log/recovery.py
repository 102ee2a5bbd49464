"""Recovery of a partition before its owner opens it: what is in the directory, what of it is valid, what has to go.

The rules (docs/ARCHITECTURE.md, DESIGN 4):
- only valid records count: checksum, dense offsets, timestamps that never fall; zero bytes and stale records are none;
  timestamps may fall in what Apache Iggy wrote (imported.py);
- zeros behind the last record of the active segment are cut off (level durable allocates space ahead);
- a torn tail is copied to `<start>.torn` and cut off; but when a valid record lies behind the damage, or a segment is
  missing in between, history is damaged: the log is surveyed (survey.py), the damaged offsets are withheld (status
  4027), what lies before and behind them is served, and offsets go on behind the last valid record;
- an index that does not fit its log exactly is written again;
- a directory of an earlier incarnation goes to the trash, one of a later incarnation is refused;
- what is not ours is reported and ignored, never removed.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path

from shardd.log import layout
from shardd.log.imported import OPEN_END, read_imported, write_imported
from shardd.log.incarnation import NewerIncarnationError, read_incarnation, write_incarnation
from shardd.log.segments import Segment, check_sealed, cut_tail, cut_zeros, has_later_record, scan_segment, tail_is_zero
from shardd.log.stored_offsets import read_offsets
from shardd.log.survey import Survey, survey_segment
from shardd.log.trash import move_to_trash
from shardd.protocol.errors import Status

_OWN_FILES = tuple(
    name + suffix for name in (layout.INCARNATION, layout.IMPORTED) for suffix in ("", layout.TEMPORARY_SUFFIX)
)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class Recovered:
    """What `Engine.partition_open` needs.

    `segments`: (start offset, log bytes, records, first timestamp us, last timestamp us), ascending, the last one is
    active. `damaged`: (start offset, end offset exclusive, isolated), ascending. `offsets`: (kind, id, value).
    `state`: 0, or the status that sends get from the start. `notes`: sentences for the operator, to be logged once.
    """

    segments: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    damaged: list[tuple[int, int, bool]] = field(default_factory=list)
    offsets: list[tuple[int, int, int]] = field(default_factory=list)
    state: int = 0
    notes: list[str] = field(default_factory=list)


def open_partition(directory: Path, incarnation: int) -> Recovered:
    """Makes a partition directory consistent and tells what it holds. A directory that does not exist is an empty
    partition. Reads the whole active segment (blocking; the scan releases the GIL).

    Raises NewerIncarnationError when the directory belongs to a later creation than `incarnation`, ValueError when its
    marker of an import is damaged, OSError when it cannot be read or repaired: then the partition must not be opened,
    the others can.
    """
    recovered = Recovered()
    if not directory.exists():
        return recovered
    starts = _list_segments(directory, recovered.notes)
    if not _check_incarnation(directory, incarnation, starts, recovered):
        return recovered
    imported_end = read_imported(directory)
    _recover_segments(directory, starts, imported_end, recovered)
    if imported_end == OPEN_END and not recovered.state:
        write_imported(directory, recovered.segments[-1][0] + recovered.segments[-1][2] if recovered.segments else 0)
    recovered.offsets, notes = read_offsets(directory)
    recovered.notes += notes
    return recovered


def _list_segments(directory: Path, notes: list[str]) -> list[int]:
    """Start offsets of the logs, ascending; everything that is not ours goes into the notes."""
    starts: list[int] = []
    indexes: list[int] = []
    for path in sorted(directory.iterdir()):
        parsed = layout.parse_segment_name(path.name)
        if parsed is not None and path.is_file():
            start_offset, kind = parsed
            if kind == "log":
                starts.append(start_offset)
            elif kind == "index":
                indexes.append(start_offset)
        elif path.name not in _OWN_FILES and not (path.name == layout.OFFSETS and path.is_dir()):
            notes.append(f"{path}: not a file of this server, ignored")
    known = set(starts)
    notes += [
        f"{layout.segment_index(directory, start)}: index without a log, ignored"
        for start in indexes
        if start not in known
    ]
    return starts


def _check_incarnation(directory: Path, incarnation: int, starts: list[int], recovered: Recovered) -> bool:
    """False when the partition starts empty because the directory was that of an earlier incarnation."""
    found = read_incarnation(directory)
    if found == incarnation:
        return True
    if found is None:
        if any(layout.segment_log(directory, start).stat().st_size for start in starts):
            # The engine writes the marker before the first record: somebody else has removed or damaged it.
            recovered.state = Status.INVALID_MESSAGE_CHECKSUM
            recovered.notes.append(
                f"{directory}: holds messages but no valid incarnation marker; read only until it is repaired"
            )
        else:
            write_incarnation(directory, incarnation)
        return True
    if found > incarnation:
        raise NewerIncarnationError(
            f"{directory} was made by metadata record {found}, this partition by record {incarnation}: "
            "the metadata is older than the log"
        )
    target = move_to_trash(directory, layout.trash_of_partition(directory))
    recovered.notes.append(f"{directory}: of an earlier incarnation ({found}), moved to {target}")
    return False


def _recover_segments(directory: Path, starts: list[int], imported_end: int, recovered: Recovered) -> None:
    minimum_timestamp = 0
    for number, start in enumerate(starts):
        active = number + 1 == len(starts)
        if start < imported_end:
            minimum_timestamp = 0
        if active:
            segment = _recover_active(directory, start, minimum_timestamp, imported_end, recovered)
        else:
            segment = _recover_sealed(directory, start, starts[number + 1], minimum_timestamp, imported_end, recovered)
        recovered.segments.append(
            (start, segment.log_bytes, segment.count, segment.first_timestamp, segment.last_timestamp)
        )
        if segment.count:
            minimum_timestamp = segment.last_timestamp
        if not active and segment.next_offset != starts[number + 1]:
            _gap(directory, segment, starts[number + 1], recovered)


def _recover_sealed(
    directory: Path, start: int, next_start: int, minimum_timestamp: int, imported_end: int, recovered: Recovered
) -> Segment:
    segment = check_sealed(directory, start, next_start - start, minimum_timestamp, imported_end)
    if segment is not None:
        return segment
    survey = survey_segment(directory, start, minimum_timestamp, end_offset=next_start, imported_end=imported_end)
    segment = survey.segment
    path = layout.segment_log(directory, start)
    if survey.index_changed:
        recovered.notes.append(f"{path}: did not fit its index, which was written again from {segment.count} records")
    _withhold(path, survey, recovered)
    if segment.next_offset == next_start and segment.file_bytes > segment.log_bytes:
        surplus = segment.file_bytes - segment.log_bytes
        recovered.notes.append(f"{path}: {surplus} bytes behind the last record of a sealed segment, ignored")
    return segment


def _recover_active(
    directory: Path, start: int, minimum_timestamp: int, imported_end: int, recovered: Recovered
) -> Segment:
    segment = scan_segment(directory, start, minimum_timestamp, imported_end)
    if segment.file_bytes == segment.log_bytes:
        return segment
    if not recovered.state and tail_is_zero(directory, segment):
        cut_zeros(directory, segment)
        return segment
    path = layout.segment_log(directory, start)
    damage = f"{path}: {segment.fault.name} at byte {segment.log_bytes}"
    if recovered.state:
        recovered.notes.append(f"{damage}: nothing is cut, it is read only up to there")
        return segment
    if has_later_record(directory, segment, minimum_timestamp, imported_end):
        survey = survey_segment(directory, start, minimum_timestamp, imported_end=imported_end)
        if survey.gave_up:
            recovered.state = Status.INVALID_MESSAGE_CHECKSUM
            recovered.notes.append(
                f"{damage}, and more behind it than can be searched: nothing is cut, the partition is read only up to "
                f"offset {segment.next_offset} (exclusive)"
            )
            return segment
        _withhold(path, survey, recovered)
        segment = survey.segment
        if segment.file_bytes == segment.log_bytes:
            return segment
        if tail_is_zero(directory, segment):
            cut_zeros(directory, segment)
            return segment
        damage = f"{path}: {segment.fault.name} at byte {segment.log_bytes}"
    surplus = segment.file_bytes - segment.log_bytes
    try:
        torn_path = cut_tail(directory, segment)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        recovered.state = Status.CANNOT_WRITE_TO_FILE
        recovered.notes.append(
            f"{damage}, no room to save the {surplus} bytes behind it: read only until the next start"
        )
        return segment
    recovered.notes.append(f"{damage}: torn tail of {surplus} bytes cut off, kept in {torn_path.name}")
    return segment


def _withhold(path: Path, survey: Survey, recovered: Recovered) -> None:
    for found in survey.damaged:
        recovered.damaged.append((found.start, found.end, False))
        recovered.notes.append(f"{path}: damaged, {found}: these messages are withheld, all others are served")


def _gap(directory: Path, segment: Segment, next_start: int, recovered: Recovered) -> None:
    """The segment does not lead to the next one."""
    if recovered.damaged and recovered.damaged[-1][1] == next_start:
        return  # the survey has said so
    recovered.damaged.append((segment.next_offset, next_start, False))
    recovered.notes.append(
        f"{layout.segment_log(directory, segment.start_offset)}: ends before offset {segment.next_offset}, but the "
        f"next segment starts at {next_start}: what was between is withheld"
    )
