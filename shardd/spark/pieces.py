"""Where the rows of a slice lie: pieces in order, each in one sealed segment, in one archive file, or at the server."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from shardd.log import layout
from shardd.protocol.bounds import LAYOUT_PLAIN, PartitionBounds, TopicBounds
from shardd.spark import archive_files
from shardd.spark.options import ReadMode, SourceOptions
from shardd.spark.piece import Piece, Place
from shardd.spark.positions import OptionError, TopicName


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
        at = start
        while at < end:
            piece = next((each for each in self._cold if each.start <= at < each.end), None)
            if piece is None:
                following = min((each.start for each in self._cold if at < each.start < end), default=end)
                if self._options.read_mode is ReadMode.COLD:
                    raise OptionError(
                        f"offsets {at} to {following} of partition {self._partition.id} of '{self._name}' are in no"
                        " sealed segment or archive file; readMode 'auto' reads them from the server"
                    )
                pieces.append(Piece(Place.SERVER, at, following))
                at = following
            else:
                upto = min(piece.end, end)
                pieces.append(Piece(piece.place, at, upto, piece.path, piece.segment_start))
                at = upto
        return tuple(pieces)

    @property
    def _name(self) -> TopicName:
        return TopicName(self._topic.stream, self._topic.topic)

    @cached_property
    def _cold(self) -> list[Piece]:
        if self._options.read_mode is ReadMode.LIVE:
            return []
        archive, partition = self._options.archive_path, self._partition
        if archive is None:
            return self._sealed()
        return self._sealed() + archive_files.find(archive, self._name, partition.id, partition.incarnation)

    def _sealed(self) -> list[Piece]:
        if self._options.path is None:
            return []
        topic, data = self._topic, Path(self._options.path)
        directory = layout.partition_directory(data, topic.stream_id, topic.topic_id, self._partition.id)
        return [
            Piece(Place.SEGMENT, each.start, each.end, str(layout.segment_log(directory, each.start)), each.start)
            for each in self._partition.segments
            if each.sealed and each.layout == LAYOUT_PLAIN
        ]
