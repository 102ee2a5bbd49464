"""What a task does: the pieces of its slice, one after the other. Runs on the executors; everything here pickles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from shardd.client import Credentials
from shardd.spark import archive_files, cold, live
from shardd.spark.decode import Decoder, Verify
from shardd.spark.options import ReadMode, SourceOptions
from shardd.spark.piece import Piece, Place
from shardd.spark.planner import DataLossError, Slice

FORMAT_VERSION = 1  # of SlicePartition: planner and executors must have the same


class SlicePartition(InputPartition):
    """One task's slice."""

    def __init__(self, slice_: Slice) -> None:
        self.version = FORMAT_VERSION
        self.slice = slice_

    def __repr__(self) -> str:
        return f"SlicePartition({self.slice.name}, {self.slice.partition}, [{self.slice.start}, {self.slice.end}))"


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What all tasks of a reader share."""

    columns: tuple[str, ...]
    servers: tuple[str, ...]
    credentials: Credentials
    key_header: str | None
    verify: Verify
    batch_bytes: int
    poll_bytes: int
    poll_timeout_s: float
    poll_depth: int
    fail_on_data_loss: bool
    cold_only: bool

    @classmethod
    def of(cls, options: SourceOptions, columns: tuple[str, ...]) -> TaskSettings:
        return cls(
            columns=columns,
            servers=options.servers,
            credentials=options.credentials,
            key_header=options.key_header,
            verify=options.verify,
            batch_bytes=options.batch_bytes,
            poll_bytes=options.poll_max_bytes,
            poll_timeout_s=options.poll_timeout_ms / 1000,
            poll_depth=options.poll_pipelining,
            fail_on_data_loss=options.fail_on_data_loss,
            cold_only=options.read_mode in (ReadMode.COLD, ReadMode.ARCHIVE),
        )


def read(settings: TaskSettings, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task as record batches. An empty plan gives Spark one task with no slice: no rows."""
    if not isinstance(partition, SlicePartition):
        return
    if partition.version != FORMAT_VERSION:
        raise RuntimeError(f"driver and executors have different versions of shardd (slice format {partition.version})")
    slice_ = partition.slice
    decoder = Decoder(
        settings.columns,
        stream=slice_.name.stream,
        topic=slice_.name.topic,
        partition=slice_.partition,
        key_header=settings.key_header,
        verify=settings.verify,
        batch_bytes=settings.batch_bytes,
    )
    for piece in slice_.pieces:
        yield from _read_piece(settings, decoder, slice_, piece)


def _read_piece(settings: TaskSettings, decoder: Decoder, slice_: Slice, piece: Piece) -> Iterator[pa.RecordBatch]:
    label = f"partition {slice_.partition} of '{slice_.name}'"
    at = piece.start
    try:
        for batch in _batches(settings, decoder, slice_, piece, label):
            at += batch.num_rows  # offsets are dense within a piece
            yield batch
    except (cold.SegmentGoneError, FileNotFoundError) as error:
        if settings.cold_only:
            raise DataLossError(f"{label}: offsets {at} to {piece.end} are gone: {error}") from error
        rest = Piece(Place.SERVER, at, piece.end)  # retention took the file, or it is not mounted here
        yield from _read_piece(settings, decoder, slice_, rest)
    except live.HistoryGoneError as error:
        if settings.fail_on_data_loss:
            raise DataLossError(
                f"{error}: offsets {at} to {piece.end} were planned. To go on without them set failOnDataLoss=false"
            ) from error


def _batches(
    settings: TaskSettings, decoder: Decoder, slice_: Slice, piece: Piece, label: str
) -> Iterator[pa.RecordBatch]:
    match piece.place:
        case Place.SEGMENT:
            return cold.read(
                decoder,
                Path(piece.path),
                segment_start=piece.segment_start,
                incarnation=slice_.incarnation,
                start=piece.start,
                end=piece.end,
                label=label,
            )
        case Place.ARCHIVE:
            return archive_files.read(
                piece.path,
                settings.columns,
                stream=slice_.name.stream,
                topic=slice_.name.topic,
                key_header=settings.key_header,
                start=piece.start,
                end=piece.end,
                verify=settings.verify,
            )
        case Place.SERVER:
            return live.read(
                decoder,
                settings.servers,
                settings.credentials,
                slice_.name,
                slice_.partition,
                start=piece.start,
                end=piece.end,
                poll_bytes=settings.poll_bytes,
                timeout_s=settings.poll_timeout_s,
                depth=settings.poll_depth,
            )
