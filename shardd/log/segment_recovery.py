"""Recovery of the segments of a partition, one after the other (recovery.py has the rules)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from shardd.engine import SegmentInfo, WithheldRange
from shardd.log import layout
from shardd.log.changed_layouts import end_of_closed
from shardd.log.damage import DamageSurvey
from shardd.log.damage_survey import explained_by_index, survey_segment
from shardd.log.lost_sectors import SurveyBounds, survey_readable
from shardd.log.manifest import Checkpoint, DamagedManifestError, Manifest, read_manifest, write_manifest
from shardd.log.record_format import HEADER_BYTES
from shardd.log.recovered import Recovered
from shardd.log.segment_reader import layout_of, segment_starts
from shardd.log.segments import Segment, check_sealed, scan_segment, trust_sealed
from shardd.log.tail import Rest, cut_surplus, cut_torn, cut_zeros, offsets_possible, rest_of
from shardd.log.unproven_tail import end_by_producers
from shardd.protocol.errors import Status
from shardd.runtime.disk_errors import Trouble, losses_passed_over, trouble_of


def whole_manifests(directory: Path, starts: list[int]) -> Iterator[Manifest]:
    for start in starts:
        with suppress(DamagedManifestError):
            manifest = read_manifest(directory, start)
            if manifest is not None:
                yield manifest


def proven_incarnation(directory: Path) -> int | None:
    """What manifests tell of it; None: no whole one is there, or the device gives none."""
    try:
        return max((each.incarnation for each in whole_manifests(directory, segment_starts(directory))), default=None)
    except (OSError, ValueError):
        return None


def recover_segments(
    directory: Path, incarnation: int, starts: list[int], imported_end: int, boot: bytes, recovered: Recovered
) -> None:
    minimum_timestamp = 0
    known = (each.log_start for each in whole_manifests(directory, starts) if each.incarnation == incarnation)
    recovered.log_start = max(known, default=0)  # what is missing below it is explained
    for number, start in enumerate(starts):
        active = number + 1 == len(starts)
        if start < imported_end:
            minimum_timestamp = 0
        manifest = _read_manifest(directory, start, incarnation, recovered.notes)
        if manifest is not None:
            minimum_timestamp = max(minimum_timestamp, manifest.born_at)
            recovered.damaged += [WithheldRange((first, end, True)) for first, end in manifest.isolated]
            if manifest.checkpoint is not None and manifest.sealed is None:  # sealing syncs its own segment only
                recovered.durable_end = start + manifest.checkpoint.count
        go_on_at: int | None = None
        if not active:
            segment = _recover_sealed(
                directory, start, starts[number + 1], minimum_timestamp, imported_end, manifest, recovered
            )
        elif (end := end_of_closed(directory, start, manifest)) is not None:
            go_on_at = end  # the segments behind it are gone; it takes no records
            segment = _recover_sealed(directory, start, go_on_at, minimum_timestamp, imported_end, manifest, recovered)
        else:
            segment, go_on_at = _recover_active(directory, start, minimum_timestamp, imported_end, manifest, recovered)
            if go_on_at is None and not recovered.state:
                again = partial(
                    scan_segment, directory, start, minimum_timestamp, imported_end, _last_checkpoint(manifest)
                )
                segment = end_by_producers(directory, incarnation, boot, segment, again, recovered)
            _renew_manifest(directory, start, incarnation, manifest, starts[0], recovered)
        if segment.count:
            minimum_timestamp = segment.last_timestamp
        first_timestamp = segment.first_timestamp if segment.count else minimum_timestamp
        kept = layout_of(directory, start).bits
        times = first_timestamp, minimum_timestamp
        told = manifest is not None and (active or manifest.sealed is not None)
        more = segment.absent, kept, manifest.counted_us if manifest is not None and told else 0
        recovered.segments.append(SegmentInfo((start, segment.log_bytes, segment.count, *times, *more)))
        recovered.scanned_bytes += segment.scanned_bytes
        if not active and segment.next_offset != starts[number + 1]:
            _gap(directory, segment, starts[number + 1], recovered)
        recovered.waiting = segment.waiting if active else b""
        if active and go_on_at is not None and not recovered.state:
            point = _last_checkpoint(manifest)
            least = point.last_timestamp if point is not None else 0
            _go_on_behind(directory, incarnation, segment, go_on_at, least, recovered)


def _read_manifest(directory: Path, start: int, incarnation: int, notes: list[str]) -> Manifest | None:
    """None when the log has to tell everything itself."""
    try:
        manifest = read_manifest(directory, start)
    except DamagedManifestError as error:
        notes.append(f"{error}: its log is scanned")
        return None
    if manifest is not None and manifest.incarnation != incarnation:
        path = layout.segment_manifest(directory, start)
        notes.append(f"{path}: it is that of the incarnation {manifest.incarnation}: its log is scanned")
        return None
    return manifest


def _renew_manifest(
    directory: Path, start: int, incarnation: int, manifest: Manifest | None, first_start: int, recovered: Recovered
) -> None:
    """The active segment gets a manifest that the engine can write checkpoints into."""
    if recovered.state or (manifest is not None and manifest.sealed is None):
        return
    if manifest is None:
        fresh = Manifest(incarnation, start, log_start_offset=first_start)
    else:  # it was sealed, but the segments behind it are gone
        fresh = replace(manifest, sealed=None, checkpoint=None)
    try:
        write_manifest(directory, fresh, durable=False)
    except OSError as error:
        path = layout.segment_manifest(directory, start)
        recovered.notes.append(f"{path} cannot be written ({error}): the next start scans the whole log again")


def _recover_sealed(
    directory: Path,
    start: int,
    next_start: int,
    minimum_timestamp: int,
    imported_end: int,
    manifest: Manifest | None,
    recovered: Recovered,
) -> Segment:
    trusted = None if manifest is None else trust_sealed(directory, manifest)
    if trusted is not None and trusted.next_offset == next_start:
        return trusted
    segment = _check_unsealed(directory, start, next_start, minimum_timestamp, imported_end, manifest)
    if segment is not None:
        recovered.unsealed.append(start)
        return segment
    path = layout.segment_log(directory, start)
    end, records = next_start, 0
    if manifest is not None and manifest.sparse and manifest.sealed is not None:
        end, records = manifest.end_offset, manifest.sealed.count
    elif manifest is None:
        found = None
        with losses_passed_over():
            found = explained_by_index(directory, start, next_start, minimum_timestamp, imported_end)
        if found is not None:
            recovered.notes.append(f"{path}: without a manifest; its index explains the offsets without a message")
            return found
    bounds = SurveyBounds(end, imported_end, _last_checkpoint(manifest), records)
    survey, lost = survey_readable(directory, start, minimum_timestamp, bounds)
    segment = survey.segment
    if survey.index_changed:
        recovered.notes.append(f"{path}: did not fit its index, which was written again from {segment.count} records")
    _withhold(path, survey, recovered, lost)
    if not survey.damaged and segment.next_offset == next_start and not segment.absent:
        recovered.unsealed.append(start)
    if segment.next_offset == next_start and segment.file_bytes > segment.log_bytes and not lost:
        clear = not (survey.damaged or segment.absent or recovered.state)
        recovered.notes.append(cut_surplus(directory, segment, clear=clear))
    return segment


def _check_unsealed(
    directory: Path, start: int, next_start: int, minimum_timestamp: int, imported_end: int, manifest: Manifest | None
) -> Segment | None:
    """A segment that is not the last one, before it got its digest. None when it is not simply whole."""
    if manifest is None:
        return check_sealed(directory, start, next_start - start, minimum_timestamp, imported_end)
    if manifest.sealed is not None:  # and does not fit
        return None
    try:
        segment = scan_segment(directory, start, minimum_timestamp, imported_end, manifest.checkpoint)
    except OSError as error:
        if trouble_of(error) is not Trouble.DEVICE:
            raise
        return check_sealed(directory, start, next_start - start, minimum_timestamp, imported_end)
    return segment if segment.file_bytes == segment.log_bytes and segment.next_offset == next_start else None


def _recover_active(
    directory: Path,
    start: int,
    minimum_timestamp: int,
    imported_end: int,
    manifest: Manifest | None,
    recovered: Recovered,
) -> tuple[Segment, int | None]:
    """The segment, and where offsets go on if not right behind it."""
    checkpoint = _last_checkpoint(manifest)
    known = checkpoint.count if checkpoint is not None else 0
    path = layout.segment_log(directory, start)
    try:
        segment = scan_segment(directory, start, minimum_timestamp, imported_end, checkpoint)
    except OSError as error:
        if trouble_of(error) is not Trouble.DEVICE:
            raise
        bounds = SurveyBounds(imported_end=imported_end, checkpoint=checkpoint)
        survey, lost = survey_readable(directory, start, minimum_timestamp, bounds)
        if lost:
            return _go_on_behind_lost(path, survey, lost, recovered)
        segment = scan_segment(directory, start, minimum_timestamp, imported_end, checkpoint)  # it was for a moment
    if segment.count >= known and segment.file_bytes == segment.log_bytes:
        return segment, None
    if recovered.state:
        recovered.notes.append(
            f"{path}: {segment.fault.name} at byte {segment.log_bytes}: nothing is cut, it is read only up to there"
        )
        return segment, None
    rest, clear = rest_of(directory, segment, imported_end), True
    if segment.count < known or rest in (Rest.CLAIMED, Rest.UNCLEAR):
        survey = survey_segment(directory, start, minimum_timestamp, imported_end=imported_end, checkpoint=checkpoint)
        _withhold(path, survey, recovered)
        segment, clear = survey.segment, not survey.gave_up
        rest = rest_of(directory, segment, imported_end)
    end: int | None = None
    if segment.count < known:
        end = start + known
        recovered.notes.append(
            f"{path}: ends before offset {segment.next_offset}, but it was whole up to {end} (exclusive): what is "
            "missing is withheld"
        )
    elif rest is Rest.ZEROS:
        cut_zeros(directory, segment)
    elif rest is Rest.TORN or (rest is Rest.CLAIMED and clear):
        cut_torn(directory, segment, segment.fault.name, recovered)
    else:
        end = segment.next_offset + offsets_possible(directory, segment)
        recovered.notes.append(
            f"{path}: {segment.fault.name} at byte {segment.log_bytes}, and what looks like later records behind it: "
            f"they may be of a payload. Nothing is cut, offsets {segment.next_offset} to {end - 1} are withheld, the "
            "partition goes on behind them"
        )
    return segment, end


def _go_on_behind_lost(
    path: Path, survey: DamageSurvey, lost: list[tuple[int, int]], recovered: Recovered
) -> tuple[Segment, int]:
    """The active segment has bytes that cannot be read: offsets go on behind the highest one that it can hold."""
    segment = survey.segment
    _withhold(path, survey, recovered, lost)
    rest_bytes = segment.file_bytes - segment.log_bytes
    end = segment.next_offset + (rest_bytes // HEADER_BYTES + 1 if rest_bytes else 0)
    recovered.notes.append(
        f"{path}: {sum(end - begin for begin, end in lost)} bytes cannot be read, the first of them at {lost[0][0]}: "
        f"their messages are not served, nothing is cut, the partition goes on at offset {end}"
    )
    return segment, end


def _last_checkpoint(manifest: Manifest | None) -> Checkpoint | None:
    return None if manifest is None else manifest.sealed or manifest.checkpoint


def _go_on_behind(
    directory: Path, incarnation: int, segment: Segment, end: int, minimum_timestamp: int, recovered: Recovered
) -> None:
    """What lies up to this offset is unclear or missing: offsets go on there, in a segment of its own."""
    if segment.next_offset < end:
        recovered.damaged.append(WithheldRange((segment.next_offset, end, False)))
    last_timestamp = max(recovered.segments[-1].last_timestamp, minimum_timestamp)
    try:
        write_manifest(directory, Manifest(incarnation, end, last_timestamp, recovered.segments[0].start_offset))
        for path in (layout.segment_log(directory, end), layout.segment_index(directory, end)):
            path.touch()
        layout.sync_directory(directory)
    except OSError as error:
        if trouble_of(error) is not Trouble.ROOM:
            raise
        recovered.state = Status.CANNOT_WRITE_TO_FILE
        recovered.notes.append(f"{directory}: no room for a segment behind offset {end}: read only until there is")
        return
    recovered.segments.append(SegmentInfo((end, 0, 0, last_timestamp, last_timestamp, 0, 0, 0)))
    recovered.waiting = b""  # of the segment before it: whoever reads by it finds that it does not fit


def _withhold(path: Path, survey: DamageSurvey, recovered: Recovered, lost: Sequence[tuple[int, int]] = ()) -> None:
    """But for what is on sectors that cannot be read: whoever reads it hears of the device (10002)."""
    for found in survey.damaged:
        if any(begin < found.to_byte and found.from_byte < end for begin, end in lost):
            recovered.notes.append(f"{path}: cannot be read, {found}: all other messages are served")
            continue
        if _is_isolated(found.start, found.end, recovered):
            continue
        recovered.damaged.append(WithheldRange((found.start, found.end, False)))
        recovered.notes.append(f"{path}: damaged, {found}: these messages are withheld, all others are served")


def _is_isolated(start: int, end: int, recovered: Recovered) -> bool:
    return any(each.isolated and each.start <= start and end <= each.end for each in recovered.damaged)


def _gap(directory: Path, segment: Segment, next_start: int, recovered: Recovered) -> None:
    """The segment does not lead to the next one."""
    if next_start <= recovered.log_start or any(  # removing expired segments was cut short by a power loss
        each.isolated and each.start <= segment.next_offset and next_start <= each.end for each in recovered.damaged
    ):
        return
    if not recovered.damaged or recovered.damaged[-1].end != next_start:  # else the survey has found it
        recovered.damaged.append(WithheldRange((segment.next_offset, next_start, False)))
    recovered.notes.append(
        f"{layout.segment_log(directory, segment.start_offset)}: ends before offset {segment.next_offset}, but the "
        f"next segment starts at {next_start}: what was between is withheld"
    )
