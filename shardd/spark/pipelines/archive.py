"""archive: a topic to a Delta table, an Iceberg table, or Parquet files that the source reads back (`archivePath`).

Spark only schedules: each task decodes, verifies every checksum, and writes one Parquet file. How far the archive is
stands in the archive itself: in the file names (archive_publish.py), or in the table, where the end offset is the
version of the application "archive/<stream>/<topic>/<partition>/<incarnation>". So there is no checkpoint that could be
lost, and a run that was killed goes on after the last commit. A commit proves that the archive stands where the run
began: of two runs at a time one is told, and no row is there twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from shardd.protocol.bounds import PartitionBounds, TopicBounds
from shardd.spark import archive_files, archive_listing, archive_rows, durable, leases, planner, rollbacks
from shardd.spark.archive_files import ARCHIVED, Footer
from shardd.spark.archive_listing import History
from shardd.spark.archive_rows import TableRows
from shardd.spark.columns import ALL, arrow_schema
from shardd.spark.decode import Verify
from shardd.spark.loss import Absences
from shardd.spark.options import SourceOptions
from shardd.spark.pieces import Locations
from shardd.spark.pipelines import archive_publish
from shardd.spark.pipelines.common import Meter, PipelineError, Source, summary
from shardd.spark.planner import Slice
from shardd.spark.positions import OptionError, TopicName, cuts, stride_of
from shardd.spark.reading import SlicePartition, TaskSettings, read
from shardd.spark.server import Place, Server
from shardd.spark.sinks import files
from shardd.spark.sinks.delta import DeltaLake
from shardd.spark.sinks.files import ParquetFile, WrittenFile
from shardd.spark.sinks.iceberg import IcebergTable
from shardd.spark.sinks.tables import ListedTable, Step
from shardd.spark.tasks import Job, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS: Final = (*ARCHIVED, "stream", "topic")
READ: Final = tuple("originTimestampRaw" if name == "originTimestamp" else name for name in COLUMNS)
_ENCODINGS: Final = dict.fromkeys(("offset", "timestamp", "originTimestamp"), "DELTA_BINARY_PACKED")
_PROPERTIES: Final[dict[str, Any]] = {
    "use_dictionary": ["partition", "stream", "topic"],
    "column_encoding": _ENCODINGS,
    "write_page_checksum": True,
    "write_statistics": ["offset", "timestamp", "originTimestamp"],
}


@dataclass(frozen=True, slots=True)
class Target:
    """parquet:DIR, delta:DIR or iceberg:NAMESPACE.TABLE (with properties of the catalog)."""

    kind: str
    place: str
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # credentials may be among them

    @classmethod
    def parse(cls, text: str, properties: dict[str, str]) -> Target:
        kind, _, place = text.partition(":")
        if kind not in ("parquet", "delta", "iceberg") or not place:
            raise PipelineError(f"--to is '{text}', but must be parquet:DIR, delta:DIR or iceberg:NAMESPACE.TABLE")
        if kind == "iceberg" and ("warehouse" not in properties or "." not in place):
            raise PipelineError("an Iceberg target needs NAMESPACE.TABLE and --catalog warehouse=... (and uri=...)")
        return cls(kind, place, tuple(sorted(properties.items())))

    def table(self) -> ListedTable:
        if self.kind == "delta":
            return DeltaLake(self.place)
        return IcebergTable("default", dict(self.properties), self.place)


def application_of(name: TopicName, partition: int, incarnation: int) -> str:
    """Under which a table records how far one partition is archived."""
    return f"archive/{name}/{partition}/{incarnation}"


def spool_application(name: TopicName, partition: int, incarnation: int) -> str:
    """The same for what comes from the spool (archive_spool.py)."""
    return f"spool/{name}/{partition}/{incarnation}"


@dataclass
class ArchiveJob(Job):
    """One slice to one file. `begin`: where the table stood when the run was planned."""

    settings: TaskSettings
    slice: Slice
    target: Target
    run_id: str
    begin: int | None = None
    leased: leases.Leased = field(default_factory=leases.Leased)

    def run(self) -> dict[str, Any]:
        if self.target.kind == "parquet":
            written = archive_publish.publish(self.target.place, self._footer(), self._write)
        else:
            system, inner = self.target.table().place()
            slice_ = self.slice
            name = archive_rows.file_name(slice_.partition, slice_.start, slice_.end)
            written = self._write(system, f"{inner}/{name}")  # one without rows is gone, and is not committed
        return {
            "path": written.path,
            "bytes": written.size_bytes,
            "rows": written.rows,
            "application": application_of(self.slice.name, self.slice.partition, self.slice.incarnation),
            "begin": self.begin,
            "partition": self.slice.partition,
            "start": self.slice.start,
            "end": self.slice.end,
        }

    def _footer(self) -> Footer:
        slice_ = self.slice
        numbers = (slice_.partition, slice_.incarnation, slice_.start, slice_.end)
        return Footer(slice_.name.stream, slice_.name.topic, *numbers, self.run_id)

    def _write(self, system: pafs.FileSystem, path: str) -> WrittenFile:
        """All rows of the slice; nothing is left of an attempt that fails."""
        file, digests = ParquetFile(system, path, arrow_schema(COLUMNS), **_PROPERTIES), []
        slice_, absences, last = self.slice, Absences(), None
        there = np.zeros(slice_.end - slice_.start, np.bool_)
        try:
            for table in files.row_groups(read(self.settings, SlicePartition(slice_, leased=self.leased), absences)):
                file.add(self._as_stored(table))
                digests.append(archive_files.digest(table.column("checksum")))
                there[table.column("offset").to_numpy() - slice_.start] = True
                last = archive_files.last_row(table)
            if absences.ended:
                raise PipelineError(
                    f"partition {slice_.partition} of '{slice_.name}': {np.count_nonzero(there)} of the"
                    f" {slice_.end - slice_.start} messages from offset {slice_.start} on could be read"
                )
            for low, high in absences.lost:
                there[low - slice_.start : high - slice_.start] = True
            gaps = archive_files.ranges(np.flatnonzero(~there) + slice_.start)
            footer = replace(self._footer(), gaps=gaps, lost=tuple(absences.lost))
            written = file.finish(footer.encode(digests, last))
            if not written.rows and self.target.kind != "parquet":
                file.discard()
            return written
        except BaseException:
            file.discard()
            raise

    def _as_stored(self, table: pa.Table) -> pa.Table:
        """Files of the source's own archive have every time as it was sent; tables are read by others, which refuse
        what is no time."""
        at = COLUMNS.index("originTimestamp")
        times = table.column(at)
        kind = ALL["originTimestamp"].arrow
        times = times.cast(kind) if self.target.kind == "parquet" else archive_files.shown_times(times)
        return table.set_column(at, pa.field("originTimestamp", kind), times)


def plan(source: Source, target: Target, *, dry_run: bool = False) -> tuple[list[ArchiveJob], int]:
    """What is to be done now, and about how many bytes that is. Records what the server has deleted already, unless
    this is a dry run."""
    if source.parsed().verify is not Verify.STOP:
        raise OptionError("archive verifies every checksum; leave verifyChecksums as it is")
    server = source.server()
    try:
        return rollbacks.on_one_connection(server, lambda: _plan(server, source.parsed(), target, dry_run=dry_run))
    finally:
        server.close()


def _plan(server: Server, options: SourceOptions, target: Target, *, dry_run: bool) -> tuple[list[ArchiveJob], int]:
    bounds = durable.discover(server, options, segments=planner.needs_segments(options))
    table = None if target.kind == "parquet" else target.table()
    begins = {} if table is None else _begins(table, target, bounds)
    foreign = _foreign(server, target, bounds, table, begins)
    settings = replace(TaskSettings.of(options, READ), pass_isolated=True)
    run_id, jobs, size = uuid.uuid4().hex, list[ArchiveJob](), 0
    for name, topic in bounds.items():
        average = _average(topic.partitions)
        listing = archive_listing.list_topic(target.place, name) if target.kind == "parquet" else {}
        for partition in topic.partitions:
            if (name, partition.id) in foreign:
                raise PipelineError(_put_back(name, partition.id, target))
            locations = Locations(options, topic, partition)
            end = planner.readable_end(options, partition)
            begin = begins.get((name, partition.id))
            if table is None:
                history = listing.get((partition.id, partition.incarnation), History())
                ranges = _of_files(options, target, name, partition, history, end, dry_run=dry_run)
            else:
                ranges = _of_table(options, name, partition, begin, end)
            for first, last in ranges:
                for low, high in cuts(first, last, _stride(options, average)):
                    slice_ = Slice(name, partition.id, partition.incarnation, low, high, locations.pieces(low, high))
                    jobs.append(ArchiveJob(settings, slice_, target, run_id, begin))
                    size += (high - low) * average
    ends = {(job.slice.name, job.slice.partition): job.slice.end for job in jobs}  # of the last slice of each
    marks = rollbacks.last_records(server, options, ends)
    for job in jobs:
        job.slice = replace(job.slice, mark=marks.get((job.slice.name, job.slice.partition)))
    return jobs, size


def _begins(table: ListedTable, target: Target, bounds: Mapping[TopicName, TopicBounds]) -> dict[Place, int]:
    """How far a table has each partition in its present life."""
    found = {}
    for name, topic in bounds.items():
        for partition in topic.partitions:
            begin = table.version(application_of(name, partition.id, partition.incarnation))
            if begin is not None:
                found[name, partition.id] = begin
            elif table.version(spool_application(name, partition.id, partition.incarnation)):
                raise PipelineError(f"{target.kind}:{target.place} is kept by runs with --spool for '{name}'")
    return found


def _foreign(
    server: Server,
    target: Target,
    bounds: Mapping[TopicName, TopicBounds],
    table: ListedTable | None,
    begins: Mapping[Place, int],
) -> frozenset[Place]:
    """Partitions of which the target has other messages than the server."""
    if table is None:
        return rollbacks.foreign_archives(server, target.place, bounds, passes_damage=False)
    return rollbacks.foreign_table(server, bounds, begins, TableRows(table)) if begins else frozenset()


def _put_back(name: TopicName, partition: int, target: Target) -> str:
    return (
        f"partition {partition} of '{name}': {target.place} has other messages than the server, whose data directory"
        " was put back as files; archive to another directory"
    )


def _of_files(
    options: SourceOptions,
    target: Target,
    name: TopicName,
    partition: PartitionBounds,
    history: History,
    end: int,
    *,
    dry_run: bool,
) -> list[archive_listing.Range]:
    """The ranges that no file has; what a killed run left out between others, too."""
    marks: list[archive_listing.Range] = []
    if not history.begun:
        # an archive of earlier versions may lack its first file, and the server may still have those offsets
        marks.append((0, min(partition.first, partition.first if history.begin is None else history.begin)))
    wanted = []
    for start, upto in History(history.files, history.gaps + marks).missing(end):
        if start < partition.first:
            gone = min(upto, partition.first)
            _lost(options, name, partition.id, start, gone)
            marks.append((start, gone))
        if upto > partition.first:
            wanted.append((max(start, partition.first), upto))
    if not dry_run:
        for start, upto in marks:
            archive_publish.mark(target.place, name, partition.id, partition.incarnation, start, upto)
    return wanted


def _of_table(
    options: SourceOptions, name: TopicName, partition: PartitionBounds, begin: int | None, end: int
) -> list[archive_listing.Range]:
    start = partition.first if begin is None else begin
    if start < partition.first:
        _lost(options, name, partition.id, start, partition.first)
        start = partition.first
    return [(start, end)]


def _average(partitions: Any) -> int:
    messages = sum(each.messages_count for each in partitions)
    return max(sum(each.size_bytes for each in partitions) // messages, 1) if messages else 1


def _stride(options: SourceOptions, average: int) -> int:
    return stride_of(
        0,
        average,
        1,
        1,
        max_records=options.max_records_per_partition,
        max_bytes=options.max_bytes_per_partition,
        min_partitions=None,
    )


def _lost(options: SourceOptions, name: TopicName, partition: int, start: int, first: int) -> None:
    if options.fail_on_data_loss:
        raise PipelineError(
            f"partition {partition} of '{name}': offsets {start} to {first} were deleted before they were archived;"
            " to leave them out set failOnDataLoss=false"
        )


def archive(spark: SparkSession, source: Source, target: Target) -> dict[str, Any]:
    """One run up to the present end. Returns the summary. `CommitConflictError`, `ArchiveConflictError` when another
    run archives, too."""
    with ExitStack() as held:
        if target.kind == "parquet":
            for name in sorted(source.bounds()):
                held.enter_context(archive_publish.alone(target.place, name))
        jobs, size = plan(source, target)
        _keep_files(source, jobs)
        rows = sum(job.slice.end - job.slice.start for job in jobs)
        with Meter("archive", rows) as meter:
            results = run(spark, jobs)
            if target.kind != "parquet" and results:
                commit(target, results)
            meter.advance(rows, size)
    return summary("archive", meter, rows, size, files=len(results), target=f"{target.kind}:{target.place}")


def _keep_files(source: Source, jobs: list[ArchiveJob]) -> None:
    server = source.server()
    try:
        leased = leases.take(server, source.parsed(), [(job.slice,) for job in jobs])
    finally:
        server.close()
    for job, each in zip(jobs, leased, strict=True):
        job.leased = each


def commit(target: Target, results: list[dict[str, Any]]) -> None:
    """One transaction for all partitions: each must still stand where the run began. `CommitConflictError`."""
    steps: dict[str, Step] = {}
    ordered = sorted(results, key=lambda each: (each["application"], each["start"]))
    for each in ordered:
        steps[each["application"]] = Step(each["application"], each["end"], each["begin"], proven=True)
    written = [WrittenFile(each["path"], each["bytes"], each["rows"]) for each in ordered if each["rows"]]
    target.table().commit(written, arrow_schema(COLUMNS), tuple(steps.values()))


def dry_run(source: Source, target: Target) -> dict[str, Any]:
    jobs, size = plan(source, target, dry_run=True)
    return {
        "pipeline": "archive",
        "target": f"{target.kind}:{target.place}",
        "tasks": [
            {"topic": str(j.slice.name), "partition": j.slice.partition, "start": j.slice.start, "end": j.slice.end}
            for j in jobs
        ],
        "rows": sum(job.slice.end - job.slice.start for job in jobs),
        "bytes": size,
    }
