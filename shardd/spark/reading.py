"""What a task does: the pieces of its slice, one after the other. Runs on the executors; everything here pickles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from shardd.spark import cold, live, python_worker
from shardd.spark.decode import Decoder, Verify
from shardd.spark.leases import Leased, Renewal
from shardd.spark.live import Polling
from shardd.spark.loss import Absences, DataLossError, ForeignIncarnationError, HistoryGoneError, Losses
from shardd.spark.options import ReadMode, SourceOptions
from shardd.spark.piece import Piece, PieceOrigin
from shardd.spark.planner import Slice
from shardd.spark.retry import Retries, ServerUnreachableError

FORMAT_VERSION = 6  # of SlicePartition: planner and executors must have the same


class SlicePartition(InputPartition):
    """What one task reads: slices, one after the other."""

    def __init__(self, *slices: Slice, leased: Leased = Leased()) -> None:  # noqa: B008 - frozen
        self.version = FORMAT_VERSION
        self.slices = slices
        self.leased = leased

    def __repr__(self) -> str:
        parts = (f"{each.name}, {each.partition}, [{each.start}, {each.end})" for each in self.slices)
        return f"SlicePartition({'; '.join(parts)})"


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What all tasks of a reader share."""

    columns: tuple[str, ...]
    polling: Polling
    key_header: str | None
    verify: Verify
    batch_bytes: int
    fail_on_data_loss: bool
    read_mode: ReadMode
    pass_isolated: bool = False  # what the manifest says of an operator's isolation is no fault

    @classmethod
    def of(cls, options: SourceOptions, columns: tuple[str, ...]) -> TaskSettings:
        return cls(
            columns=columns,
            polling=Polling(
                servers=options.servers,
                timeout_s=options.poll_timeout_ms / 1000,
                retries=Retries(options.retries, options.retry_interval_ms / 1000),
                poll_bytes=options.poll_max_bytes,
                depth=options.poll_pipelining,
            ),
            key_header=options.key_header,
            verify=options.verify,
            batch_bytes=options.batch_bytes,
            fail_on_data_loss=options.fail_on_data_loss,
            read_mode=options.read_mode,
        )


def read(
    settings: TaskSettings, partition: InputPartition, absences: Absences | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one task as record batches. An empty plan gives Spark one task with no slice: no rows. `absences`
    learns what was left out."""
    python_worker.settle()
    absences = Absences() if absences is None else absences
    if not isinstance(partition, SlicePartition):
        return
    if partition.version != FORMAT_VERSION:
        raise RuntimeError(f"driver and executors have different versions of shardd (slice format {partition.version})")
    renewal = Renewal(settings.polling, partition.leased)
    for slice_ in partition.slices:
        renewal.look()
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
            for batch in _read_piece(settings, decoder, slice_, piece, absences):
                yield batch
                renewal.look()


def _read_piece(
    settings: TaskSettings, decoder: Decoder, slice_: Slice, piece: Piece, absences: Absences
) -> Iterator[pa.RecordBatch]:
    """What cannot be read of it is told, or with failOnDataLoss=false counted: only what is really gone is left out."""
    losses = Losses(accepted=not settings.fail_on_data_loss)
    at, end = piece.start, piece.end
    while at < end:
        try:
            batches = _batches(settings, decoder, slice_, piece, at)
            if piece.place is PieceOrigin.SEGMENT:
                batches = _proven(settings, slice_, batches)
            for batch in batches:
                if piece.place is not PieceOrigin.ARCHIVE:  # which has all of them, or says which not
                    at = decoder.following
                yield batch
            return
        except HistoryGoneError as error:
            at = at if error.gone is None else error.gone
            kept = end if error.kept is None else min(error.kept, end)
            if kept <= at:
                raise  # it would not go on
            if piece.place is PieceOrigin.SERVER and not piece.sparse:
                until = min(_removed_until(settings, slice_, at, kept), end)
                if until > at:  # no loss: a segment says that offsets of it have no message
                    inner = Piece(PieceOrigin.SERVER, at, until, sparse=True)
                    yield from _read_piece(settings, decoder, slice_, inner, absences)
                    at = until
                    continue
            if not (error.isolated and settings.pass_isolated):
                losses.add(slice_.name, slice_.partition, kept - at, f"lost the offsets {at} to {kept}: {error}")
            absences.lost.append((at, kept))
            absences.ended = absences.ended or error.kept is None
            at = kept
        except (ForeignIncarnationError, cold.SegmentGoneError, FileNotFoundError) as error:
            absences.ended = absences.ended or piece.place is PieceOrigin.SERVER
            if piece.place is PieceOrigin.SERVER:
                losses.add(slice_.name, slice_.partition, end - at, f"lost the offsets {at} to {end}: {error}")
                return
            if settings.read_mode in (ReadMode.COLD, ReadMode.ARCHIVE):
                kept = _kept_behind(settings, slice_, at, end, error)
                losses.add(slice_.name, slice_.partition, kept - at, f"lost the offsets {at} to {kept}: {error}")
                absences.ended = True
                at = kept
                continue
            # Retention took the file, it is not mounted here, or the directory is of another history (that of a server
            # before a restore, for instance). The server proves which history it gives.
            piece = Piece(PieceOrigin.SERVER, at, end)
        except cold.DamagedRecordError:
            if piece.place is not PieceOrigin.SEGMENT or _is_of_plan(settings, slice_):
                raise
            piece = Piece(PieceOrigin.SERVER, at, end)  # which tells what is lost


def _proven(settings: TaskSettings, slice_: Slice, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a segment says, proven when it is open: its rows, that it has none, and that some were isolated."""
    proven = False
    try:
        for batch in batches:
            if not proven:
                _prove(settings, slice_)
                proven = True
            yield batch
    except HistoryGoneError:
        if not proven:
            _prove(settings, slice_)
        raise
    if not proven:
        _prove(settings, slice_)


def _prove(settings: TaskSettings, slice_: Slice) -> None:
    """`ForeignIncarnationError`. A plan of files alone has no mark: its tasks ask no server."""
    if slice_.mark is not None:
        at = slice_.name, slice_.partition
        live.prove(settings.polling, *at, incarnation=slice_.incarnation, mark=slice_.mark)


def _is_of_plan(settings: TaskSettings, slice_: Slice) -> bool:
    """Also when there is no server to ask: damage is told as such then."""
    try:
        _prove(settings, slice_)
    except ForeignIncarnationError:
        return False
    except ServerUnreachableError:
        return True
    return True


def _removed_until(settings: TaskSettings, slice_: Slice, at: int, found: int) -> int:
    """As `live.removed_until`, for the partition of a slice."""
    return live.removed_until(settings.polling, slice_.name, slice_.partition, slice_.incarnation, at, found)


def _kept_behind(settings: TaskSettings, slice_: Slice, at: int, end: int, error: Exception) -> int:
    """Where the history goes on behind a file that is not there, or is of another history. readMode=cold: only what
    the server does not have any more, either, is lost; else the file is missing here, which is not a loss to accept.
    readMode=archive: there is no server to ask. `DataLossError`."""
    if settings.fail_on_data_loss or settings.read_mode is ReadMode.ARCHIVE:
        return end
    now = live.bounds_of(settings.polling, slice_.name, slice_.partition)
    if now is None or now.incarnation != slice_.incarnation:
        return end
    if now.first > at:
        return min(now.first, end)
    raise DataLossError(
        f"partition {slice_.partition} of '{slice_.name}': the server has the offsets {at} to {end}, but not this"
        f" machine: {error}. readMode 'auto' reads them from the server"
    ) from error


def _batches(
    settings: TaskSettings, decoder: Decoder, slice_: Slice, piece: Piece, start: int
) -> Iterator[pa.RecordBatch]:
    match piece.place:
        case PieceOrigin.SEGMENT:
            return cold.read(
                decoder,
                Path(piece.path),
                segment_start=piece.segment_start,
                incarnation=slice_.incarnation,
                start=start,
                end=piece.end,
                label=f"partition {slice_.partition} of '{slice_.name}'",
            )
        case PieceOrigin.ARCHIVE:
            from shardd.spark import archive_files  # loads Parquet

            return archive_files.read(
                piece.path,
                settings.columns,
                stream=slice_.name.stream,
                topic=slice_.name.topic,
                key_header=settings.key_header,
                start=start,
                end=piece.end,
                verify=settings.verify,
            )
        case PieceOrigin.SERVER:
            return live.read(
                decoder,
                settings.polling,
                slice_.name,
                slice_.partition,
                incarnation=slice_.incarnation,
                start=start,
                end=piece.end,
                gaps=piece.sparse,
                mark=slice_.mark,
            )
