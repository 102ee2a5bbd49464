"""Marks of a history: records that a reader has seen, each by its offset and its checksum. Sans-IO.

A data directory that is put back as files has the histories it had, and may get other messages behind its end. Only
the records tell that: the checksum of a record covers its offset, its times, its id and its contents, and every
server gives it in the answer to a poll (docs/adr/0140-marks-of-a-history.md)."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from enum import Enum
from typing import Final, NamedTuple

KEPT: Final = 9  # the last record, and that at each of the 8 commits before


class Mark(NamedTuple):
    """A record that was read."""

    offset: int
    checksum: int


Marks = tuple[Mark, ...]
"""By offset, at most KEPT."""


class Verdict(Enum):
    """What a server has where a reader has marks."""

    SAME = "same"
    OTHER = "other"  # the directory was put back, and other messages followed
    UNKNOWN = "unknown"  # none of the marked records is left
    UNTOLD = "untold"  # the server did not say: it is asked again


def added(marks: Marks, mark: Mark) -> Marks:
    """The marks of before and a new one, which is the last record of them all."""
    return (*(each for each in marks if each.offset < mark.offset), mark)[-KEPT:]


def compared(marks: Iterable[Mark]) -> Generator[int, Mark | Verdict | None, Verdict]:
    """`marks`: the newest first, taken as they are needed. Yields the offsets to look at, and is sent the first record
    that the server has from there on (None: it has no such record, or does not give it; a verdict: the answer decides
    by itself). The newest one that is left decides."""
    for mark in marks:
        found = yield mark.offset
        if isinstance(found, Verdict):
            return found
        if found is not None and found.offset == mark.offset:
            return Verdict.SAME if found.checksum == mark.checksum else Verdict.OTHER
    return Verdict.UNKNOWN
