"""Where the rows of a slice lie: pieces in order, each in one sealed segment, in one archive file, or at the server."""

from __future__ import annotations

from pathlib import Path

from shardd.log import layout
from shardd.protocol.bounds import LAYOUT_PLAIN, PartitionBounds, TopicBounds
from shardd.spark import archive_files
from shardd.spark.options import ReadMode, SourceOptions
from shardd.spark.piece import Piece, Place
from shardd.spark.positions import OptionError, TopicName


def pieces_of(
    options: SourceOptions, topic: TopicBounds, partition: PartitionBounds, start: int, end: int
) -> tuple[Piece, ...]:
    """The pieces of [start, end), without a gap. Sealed segments below `path` first, then the archive, then the
    server."""
    name = TopicName(topic.stream, topic.topic)
    cold = _sealed(options, topic, partition) if options.read_mode is not ReadMode.LIVE else []
    if options.archive_path is not None and options.read_mode is not ReadMode.LIVE:
        cold += archive_files.find(options.archive_path, name, partition.id, partition.incarnation)
    pieces: list[Piece] = []
    at = start
    while at < end:
        piece = next((each for each in cold if each.start <= at < each.end), None)
        if piece is None:
            following = min((each.start for each in cold if at < each.start < end), default=end)
            if options.read_mode is ReadMode.COLD:
                raise OptionError(
                    f"offsets {at} to {following} of partition {partition.id} of '{name}' are in no sealed segment"
                    " or archive file; readMode 'auto' reads them from the server"
                )
            pieces.append(Piece(Place.SERVER, at, following))
            at = following
        else:
            upto = min(piece.end, end)
            pieces.append(Piece(piece.place, at, upto, piece.path, piece.segment_start))
            at = upto
    return tuple(pieces)


def _sealed(options: SourceOptions, topic: TopicBounds, partition: PartitionBounds) -> list[Piece]:
    if options.path is None:
        return []
    directory = layout.partition_directory(Path(options.path), topic.stream_id, topic.topic_id, partition.id)
    return [
        Piece(Place.SEGMENT, each.start, each.end, str(layout.segment_log(directory, each.start)), each.start)
        for each in partition.segments
        if each.sealed and each.layout == LAYOUT_PLAIN
    ]
