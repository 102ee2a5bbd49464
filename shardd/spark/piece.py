"""A part of a slice: offsets that lie in one place. Pickled to the executors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PieceOrigin(StrEnum):
    SEGMENT = "segment"
    ARCHIVE = "archive"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets [start, end); `path` of the .log or archive file, `segment_start` of a segment's first offset. `sparse`:
    at the server, and some of them have no message any more."""

    place: PieceOrigin
    start: int
    end: int
    path: str = ""
    segment_start: int = 0
    sparse: bool = False
