"""What lies in a partition directory, for `shardd doctor log`: segments, manifests, damage; and how it is isolated.
What lies beside the log: side_diagnosis.py.

Looking changes nothing and needs no lock: of a server that runs it sees what is there at this moment. Isolating writes
manifests and is for a data directory that nobody uses.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from shardd.engine import _native
from shardd.engine.record_faults import RecordFault
from shardd.log import layout
from shardd.log.damage import DamagedRange, DamageSurvey
from shardd.log.damage_survey import survey_segment
from shardd.log.imported import end_of_import
from shardd.log.incarnation import read_incarnation
from shardd.log.layout import PartitionIds
from shardd.log.manifest import DamagedManifestError, Manifest, UnknownLayoutError, read_manifest, write_manifest
from shardd.log.removed_segments import written_log_start
from shardd.log.segment_layout import COMPRESSED, PLAIN
from shardd.log.segment_reader import log_path, opened_log, segment_starts
from shardd.log.tail import Rest, rest_of

LOOKS_MAX: Final = 20  # at what changes while it is looked at
LOOK_INTERVAL_S: Final = 0.1


class ReplacedError(Exception):
    """The partition was deleted or purged since its files were listed."""


class SegmentView(msgspec.Struct):
    """`notes`: what is odd and costs no message. `unreadable`: why nothing more is known of it."""

    start_offset: int
    end_offset: int  # exclusive
    log_bytes: int
    manifest: str
    damaged: list[DamagedRange] = msgspec.field(default_factory=list)
    isolated: tuple[tuple[int, int], ...] = ()
    notes: list[str] = msgspec.field(default_factory=list)
    unreadable: str = ""

    def open_damage(self) -> list[DamagedRange]:
        """What is not isolated (as a whole)."""
        return [
            each
            for each in self.damaged
            if not any(start <= each.start and each.end <= end for start, end in self.isolated)
        ]


def partitions_below(data: Path) -> Iterator[tuple[PartitionIds, Path]]:
    """Every partition directory, ascending. OSError."""
    for stream, stream_path in _numbered(data / layout.STREAMS):
        for topic, topic_path in _numbered(stream_path / layout.TOPICS):
            for partition, path in _numbered(topic_path / layout.PARTITIONS):
                yield (stream, topic, partition), path


def _numbered(directory: Path) -> list[tuple[int, Path]]:
    try:
        found = [(layout.parse_id(path.name), path) for path in directory.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):  # never made, or deleted meanwhile
        return []
    return sorted((number, path) for number, path in found if number is not None)


def diagnose_partition(directory: Path) -> Iterator[SegmentView]:
    """Reads every segment whole, one at a time. A segment that is removed meanwhile, by right, is left out.
    ReplacedError; OSError, ValueError (a marker or a manifest of a later version)."""
    marker = _marker(directory)
    imported_end = end_of_import(directory)
    try:
        starts = segment_starts(directory)
    except FileNotFoundError as error:
        raise ReplacedError(f"{directory} is gone") from error
    minimum = 0
    for number, start in enumerate(starts):
        next_start = starts[number + 1] if number + 1 < len(starts) else None
        least = 0 if start < imported_end else minimum
        try:
            view, survey = _diagnose_settled(directory, start, next_start, least, imported_end)
        except FileNotFoundError as error:
            removed = _was_removed(directory, marker, start)
            if removed is None:
                yield _unreadable(directory, start, next_start, error)
            elif not removed:
                yield _lost(directory, start, next_start)
            continue
        except OSError as error:
            _check_same(directory, marker)
            yield _unreadable(directory, start, next_start, error)
            continue
        if view.damaged:
            _check_same(directory, marker)
        minimum = survey.segment.last_timestamp if survey.segment.count else minimum
        yield view


def _marker(directory: Path) -> int | None:
    """None, too, where it cannot be read or is of a later version, which side_diagnosis.py tells."""
    try:
        return read_incarnation(directory)
    except (OSError, ValueError):
        return None


def _check_same(directory: Path, marker: int | None) -> None:
    """ReplacedError."""
    if not directory.is_dir() or _marker(directory) != marker:
        raise ReplacedError(f"{directory} is another one than when its files were listed, or gone")


def _diagnose_settled(
    directory: Path, start: int, next_start: int | None, minimum: int, imported_end: int
) -> tuple[SegmentView, DamageSurvey]:
    """Of a file that has another name since it was looked for (a segment that is being compressed) it looks again."""
    for _ in range(LOOKS_MAX - 1):
        try:
            return _diagnose_segment(directory, start, next_start, minimum, imported_end)
        except FileNotFoundError as error:
            is_log = Path(error.filename or "").suffix[1:] in (PLAIN.suffix, COMPRESSED.suffix)
            if not is_log or start not in segment_starts(directory):
                raise
            time.sleep(LOOK_INTERVAL_S)
    return _diagnose_segment(directory, start, next_start, minimum, imported_end)


def _was_removed(directory: Path, marker: int | None, start: int) -> bool | None:
    """Whether the log of a segment that was listed is gone by right: it was the first one, and a manifest says that
    the log begins behind it, or its own manifest is gone like it. A server renames the log first: a moment later its
    manifest follows. None: the log is still there, so another file is missing. ReplacedError."""
    for _ in range(LOOKS_MAX):
        _check_same(directory, marker)
        try:
            starts = segment_starts(directory)
        except FileNotFoundError:
            continue
        _check_same(directory, marker)  # the segments of a later incarnation say nothing about this one
        if start in starts:
            return None
        if not starts or starts[0] < start:
            return False
        if not layout.segment_manifest(directory, start).exists():
            return True
        if marker is not None and written_log_start(directory, starts, marker) > start:
            return True
        time.sleep(LOOK_INTERVAL_S)
    _check_same(directory, marker)
    return False


def _diagnose_segment(
    directory: Path, start: int, next_start: int | None, minimum: int, imported_end: int
) -> tuple[SegmentView, DamageSurvey]:
    manifest, text = _manifest_of(directory, start)
    if manifest is not None:
        minimum = max(minimum, manifest.born_at)
    known = None if manifest is None else manifest.sealed or manifest.checkpoint
    records = 0
    if manifest is not None and manifest.sparse and manifest.sealed is not None:
        records, next_start = manifest.sealed.count, manifest.end_offset
    survey = survey_segment(
        directory, start, minimum,
        end_offset=next_start, imported_end=imported_end, checkpoint=known, write_index=False, sparse_count=records,
    )  # fmt: skip
    segment = survey.segment
    view = SegmentView(start, segment.next_offset if next_start is None else next_start, segment.file_bytes, text)
    view.damaged = survey.damaged
    if next_start is None and known is not None and segment.count < known.count:
        view.damaged.append(
            DamagedRange(
                start,
                segment.next_offset,
                start + known.count,
                segment.log_bytes,
                segment.file_bytes,
                RecordFault.TRUNCATED,
            )
        )
        view.end_offset = start + known.count
    elif next_start is None and segment.file_bytes > segment.log_bytes:
        surplus, rest = segment.file_bytes - segment.log_bytes, rest_of(directory, segment, imported_end)
        withheld = " (from the next start on withheld)" if rest is Rest.UNCLEAR else ""
        view.notes.append(f"{surplus} bytes behind the last record: {rest.value}, or being written{withheld}")
    if manifest is not None:
        view.isolated = manifest.isolated
    if next_start is not None and survey.index_changed:
        view.notes.append("the index does not fit; it is written again when it is met")
    if manifest is not None and manifest.sealed is not None and not view.damaged:
        with opened_log(directory, start) as log:
            if _native.digest_file(log, segment.file_bytes) != manifest.sealed.digest:
                view.notes.append("the digest in the manifest is not that of the log, although every record is valid")
    return view, survey


def _unreadable(directory: Path, start: int, next_start: int | None, error: OSError) -> SegmentView:
    """The others are looked at all the same."""
    path = error.filename or f"{log_path(directory, start)}, or its index,"
    text = (
        f"{path} cannot be read ({error.strerror}): polls that need what lies there get CANNOT_READ_FILE (10002), all "
        "else is served. What is lost is in a backup, or nowhere; an index that is moved to another place while no "
        "server runs is made again by the next start"
    )
    return SegmentView(start, start if next_start is None else next_start, 0, "not read", unreadable=text)


def _lost(directory: Path, start: int, next_start: int | None) -> SegmentView:
    text = (
        f"{layout.segment_file(directory, start, PLAIN.suffix)} is gone since it was listed, and no manifest says that "
        "it was removed: its messages are lost, unless a backup has them"
    )
    return SegmentView(start, start if next_start is None else next_start, 0, "not read", unreadable=text)


def _manifest_of(directory: Path, start: int) -> tuple[Manifest | None, str]:
    try:
        manifest = read_manifest(directory, start)
    except DamagedManifestError:
        return None, "damaged manifest (costs a scan)"
    except UnknownLayoutError:
        raise
    except ValueError as error:  # a later version
        return None, str(error)
    if manifest is None:
        return None, "no manifest"
    if manifest.sparse:
        return manifest, f"sealed, {manifest.absent} offsets without a message"
    return manifest, "sealed" if manifest.sealed is not None else "open manifest"


def isolate(directory: Path, damaged: list[DamagedRange]) -> list[Path]:
    """Writes the ranges into the manifests of their segments, durably: from the next start on polls pass over them. The
    manifests written. ValueError (no marker, or a manifest of a later version), OSError."""
    incarnation = read_incarnation(directory)
    if incarnation is None:
        raise ValueError(f"{directory} has no valid incarnation marker")
    written = []
    for start in sorted({each.segment for each in damaged}):
        try:
            manifest = read_manifest(directory, start)
        except DamagedManifestError:
            manifest = None
        if manifest is None or manifest.incarnation != incarnation:
            manifest = Manifest(incarnation, start)
        ranges = [*manifest.isolated, *((each.start, each.end) for each in damaged if each.segment == start)]
        write_manifest(directory, replace(manifest, isolated=joined(ranges)))
        written.append(layout.segment_manifest(directory, start))
    return written


def joined(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same offsets as ascending ranges that do not touch."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((start, end))
    return tuple(result)
