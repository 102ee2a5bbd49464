"""Where the rows of a slice lie: pieces in order, each in one sealed segment, in one archive file, or at the server."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

from shardd.log import layout
from shardd.protocol.bounds import PartitionBounds, TopicBounds
from shardd.protocol.record_layout import LAYOUT_COMPRESSED, LAYOUT_PLAIN, LAYOUT_SPARSE
from shardd.spark import archive_listing
from shardd.spark.options import ReadMode, SourceOptions
from shardd.spark.piece import Piece, PieceOrigin
from shardd.spark.positions import OptionError, TopicName

_OFFSET_MAX: Final = 1 << 64


class Locations:
    """Where one partition lies. Looks once, when the first offsets are asked for."""

    def __init__(self, options: SourceOptions, topic: TopicBounds, partition: PartitionBounds) -> None:
        self._options = options
        self._topic = topic
        self._partition = partition

    def pieces(self, start: int, end: int) -> tuple[Piece, ...]:
        """The pieces of [start, end), without a gap. Sealed segments below `path` first, then the archive, then the
        server."""
        pieces: list[Piece] = []
        at, number = start, bisect_right(self._cold, start, key=lambda each: each.end)
        while at < end:
            piece = self._cold[number] if number < len(self._cold) else None
            if piece is not None and piece.start <= at:
                upto = min(piece.end, end)
                pieces.append(Piece(piece.place, at, upto, piece.path, piece.segment_start))
                number += 1
            else:
                upto = end if piece is None else min(piece.start, end)
                if self._options.read_mode in (ReadMode.COLD, ReadMode.ARCHIVE):
                    raise self._not_in_files(at, upto)
                pieces.append(Piece(PieceOrigin.SERVER, at, upto))
            at = upto
        return tuple(pieces)

    def _not_in_files(self, start: int, end: int) -> OptionError:
        where = "in no sealed segment or archive file"
        if self._options.path is not None and any(
            each.layout & LAYOUT_COMPRESSED and each.start <= start < each.end for each in self._partition.segments
        ):
            where = "in compressed segments, which are not read as files"
        return OptionError(
            f"offsets {start} to {end} of partition {self._partition.id} of '{self._name}' are {where};"
            " readMode 'auto' reads them from the server"
        )

    @property
    def _name(self) -> TopicName:
        return TopicName(self._topic.stream, self._topic.topic)

    @cached_property
    def _cold(self) -> list[Piece]:
        """What needs no server, in order and without overlaps."""
        if self._options.read_mode is ReadMode.LIVE:
            return []
        archive, partition = self._options.archive_of(self._name, self._partition.id), self._partition
        if archive is None:
            return self._sealed()
        archived = archive_listing.find(archive, self._name, partition.id, partition.incarnation)
        return _beside(self._sealed(), archived)

    def _sealed(self) -> list[Piece]:
        if self._options.path is None:
            return []
        topic, data = self._topic, Path(self._options.path)
        directory = layout.partition_directory(data, topic.stream_id, topic.topic_id, self._partition.id)
        return [
            Piece(PieceOrigin.SEGMENT, each.start, each.end, str(layout.segment_log(directory, each.start)), each.start)
            for each in self._partition.segments
            if each.sealed and each.layout in (LAYOUT_PLAIN, LAYOUT_SPARSE)
        ]


def _beside(preferred: list[Piece], others: list[Piece]) -> list[Piece]:
    """`preferred` as they are, and of the others (by start, they may overlap) what is between."""
    found: list[Piece] = []
    rest, at = deque(others), 0
    for border in [*sorted(preferred, key=lambda each: each.start), None]:
        upto = _OFFSET_MAX if border is None else border.start
        while rest and rest[0].start < upto:
            other = rest[0]
            start, end = max(other.start, at), min(other.end, upto)
            if start < end:
                found.append(replace(other, start=start, end=end))
                at = end
            if other.end > upto:
                break  # it may go on behind the border
            rest.popleft()
        if border is not None:
            found.append(border)
            at = max(at, border.end)
    return found
