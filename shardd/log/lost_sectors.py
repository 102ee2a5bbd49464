"""A log of which the device does not give everything: a copy of the rest, for who has to see all of it.

What cannot be read is zeros in the copy, which no record is. The log itself is not changed, least of all cut: its
sectors may be readable another day.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from shardd.log.damage import DamageSurvey
from shardd.log.damage_survey import survey_segment
from shardd.log.manifest import Checkpoint
from shardd.log.segment_reader import opened_log, unnamed_file
from shardd.runtime.disk_errors import Trouble, losses_passed_over, trouble_of

_PART_BYTES: Final = 1 << 20
_SECTOR_BYTES: Final = 4096


class SurveyBounds(msgspec.Struct, frozen=True):
    """What is known of a segment that no server has open: as the arguments of survey_segment."""

    end_offset: int | None = None
    imported_end: int = 0
    checkpoint: Checkpoint | None = None
    sparse_count: int = 0


def survey_readable(
    directory: Path, start_offset: int, minimum_timestamp: int, bounds: SurveyBounds
) -> tuple[DamageSurvey, list[tuple[int, int]]]:
    """survey_segment, and the bytes (from, to) of the log that cannot be read. OSError."""
    known = msgspec.structs.asdict(bounds)
    try:
        return survey_segment(directory, start_offset, minimum_timestamp, **known), []
    except OSError as error:
        if trouble_of(error) is not Trouble.DEVICE:
            raise
    with _readable_copy(directory, start_offset) as (log, lost):
        return survey_segment(directory, start_offset, minimum_timestamp, log=log, **known), lost


@contextmanager
def _readable_copy(directory: Path, start_offset: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Descriptor of a file without a name, and what of the log is not in it."""
    lost: list[tuple[int, int]] = []
    with opened_log(directory, start_offset) as log:
        size = os.fstat(log).st_size
        copy = unnamed_file(directory)
        try:
            os.ftruncate(copy, size)
            for position in range(0, size, _PART_BYTES):
                end = min(position + _PART_BYTES, size)
                if _copied(log, copy, position, end):
                    continue
                for at in range(position, end, _SECTOR_BYTES):
                    if not _copied(log, copy, at, min(at + _SECTOR_BYTES, end)):
                        lost.append((at, min(at + _SECTOR_BYTES, end)))
            yield copy, lost
        finally:
            os.close(copy)


def _copied(log: int, copy: int, position: int, end: int) -> bool:
    with losses_passed_over():
        while position < end:
            part = os.pread(log, end - position, position)
            if not part:
                break
            position += os.pwrite(copy, part, position)
        return True
    return False
