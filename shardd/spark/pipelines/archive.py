"""archive: a topic to a Delta table, an Iceberg table, or Parquet files that the source reads back (`archivePath`).

Spark only schedules: each task decodes, verifies every checksum, and writes one Parquet file. How far the archive is
stands in the archive itself: in the file names, or in the table, where the end offset is the version of the application
"archive/<stream>/<topic>/<partition>/<incarnation>". So there is no checkpoint that could be lost, and a run that was
killed goes on after the last commit.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.fs as pafs

from shardd.spark import archive_files, planner
from shardd.spark.archive_files import ARCHIVED
from shardd.spark.columns import arrow_schema
from shardd.spark.decode import Verify
from shardd.spark.options import SourceOptions
from shardd.spark.pieces import Locations
from shardd.spark.pipelines.common import Meter, PipelineError, Source, summary
from shardd.spark.planner import Slice
from shardd.spark.positions import OptionError, TopicName, cuts, stride_of
from shardd.spark.reading import SlicePartition, TaskSettings, read
from shardd.spark.sinks import files
from shardd.spark.sinks.files import ParquetFile, WrittenFile
from shardd.spark.sinks.tables import DeltaLake, IcebergTable, LakeTable
from shardd.spark.tasks import Job, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEMPORARY_SUFFIX: Final = ".tmp"
COLUMNS: Final = (*ARCHIVED, "stream", "topic")
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
    properties: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str, properties: dict[str, str]) -> Target:
        kind, _, place = text.partition(":")
        if kind not in ("parquet", "delta", "iceberg") or not place:
            raise PipelineError(f"--to is '{text}', but must be parquet:DIR, delta:DIR or iceberg:NAMESPACE.TABLE")
        if kind == "iceberg" and ("warehouse" not in properties or "." not in place):
            raise PipelineError("an Iceberg target needs NAMESPACE.TABLE and --catalog warehouse=... (and uri=...)")
        return cls(kind, place, tuple(sorted(properties.items())))

    def table(self) -> LakeTable:
        if self.kind == "delta":
            return DeltaLake(self.place)
        return IcebergTable("default", dict(self.properties), self.place)


def application_of(name: TopicName, partition: int, incarnation: int) -> str:
    """Under which a table records how far one partition is archived."""
    return f"archive/{name}/{partition}/{incarnation}"


@dataclass
class ArchiveJob(Job):
    """One slice to one file."""

    settings: TaskSettings
    slice: Slice
    target: Target

    def run(self) -> dict[str, Any]:
        if self.target.kind == "parquet":
            directory = archive_files.topic_path(self.target.place, self.slice.name)
            system, inner = archive_files.file_system(directory)
            system.create_dir(inner, recursive=True)
            name = archive_files.file_name(
                self.slice.partition, self.slice.incarnation, self.slice.start, self.slice.end
            )
            temporary = f"{inner}/{name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
        else:
            system, inner = self.target.table().place()
            name = (
                f"archive-{self.slice.partition}-{self.slice.start:020}-{self.slice.end:020}-{uuid.uuid4().hex}.parquet"
            )
            temporary = f"{inner}/{name}"
        size = self.slice.end - self.slice.start
        written = _write(system, temporary, self.settings, self.slice)
        if written.rows != size:
            raise PipelineError(
                f"partition {self.slice.partition} of '{self.slice.name}': {written.rows} of the {size} messages from"
                f" offset {self.slice.start} on could be read"
            )
        final = f"{inner}/{name}"
        if final != temporary:
            _publish(system, temporary, final)
        return {
            "path": final,
            "bytes": written.size_bytes,
            "rows": written.rows,
            "partition": self.slice.partition,
            "incarnation": self.slice.incarnation,
            "topic": str(self.slice.name),
            "start": self.slice.start,
            "end": self.slice.end,
        }


def _write(system: pafs.FileSystem, path: str, settings: TaskSettings, slice_: Slice) -> WrittenFile:
    file = ParquetFile(system, path, arrow_schema(COLUMNS), **_PROPERTIES)
    try:
        for table in files.row_groups(read(settings, SlicePartition(slice_))):
            file.add(table)
        return file.finish()
    except BaseException:
        file.discard()
        raise


def _publish(system: pafs.FileSystem, temporary: str, final: str) -> None:
    """The file is on the device before it has its name."""
    if isinstance(system, pafs.LocalFileSystem):
        from shardd.spark.sinks.tables import sync_path

        sync_path(Path(temporary))
        Path(temporary).replace(final)
        sync_path(Path(final).parent)
    else:
        system.move(temporary, final)


def archived_end(target: Target, name: TopicName, partition: int, incarnation: int) -> int | None:
    """Offset behind the last one that the archive holds without a gap from its first; None when it holds nothing."""
    if target.kind != "parquet":
        return target.table().version(application_of(name, partition, incarnation))
    found = archive_files.find(target.place, name, partition, incarnation)
    end: int | None = None
    for piece in found:
        if end is not None and piece.start > end:
            raise PipelineError(
                f"the archive of partition {partition} of '{name}' has a gap: offsets {end} to {piece.start}"
            )
        end = max(end or 0, piece.end)
    return end


def plan(source: Source, target: Target) -> tuple[list[ArchiveJob], int]:
    """What is to be done now, and about how many bytes that is."""
    options = source.parsed()
    if options.verify is not Verify.STOP:
        raise OptionError("archive verifies every checksum; leave verifyChecksums as it is")
    bounds = source.bounds(segments=planner.needs_segments(options))
    settings = TaskSettings.of(options, COLUMNS)
    jobs: list[ArchiveJob] = []
    size = 0
    for name, topic in bounds.items():
        average = _average(topic.partitions)
        for partition in topic.partitions:
            done = archived_end(target, name, partition.id, partition.incarnation)
            start = partition.first if done is None else done
            if start < partition.first:
                _lost(options, name, partition.id, start, partition.first)
                start = partition.first
            stride = _stride(options, average)
            locations = Locations(options, topic, partition)
            for low, high in cuts(start, planner.readable_end(options, partition), stride):
                slice_ = Slice(name, partition.id, partition.incarnation, low, high, locations.pieces(low, high))
                jobs.append(ArchiveJob(settings, slice_, target))
                size += (high - low) * average
    return jobs, size


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
    """One run up to the present end. Returns the summary."""
    jobs, size = plan(source, target)
    rows = sum(job.slice.end - job.slice.start for job in jobs)
    with Meter("archive", rows) as meter:
        results = run(spark, jobs)
        if target.kind != "parquet" and results:
            _commit(target, results)
        meter.advance(rows, size)
    return summary("archive", meter, rows, size, files=len(results), target=f"{target.kind}:{target.place}")


def _commit(target: Target, results: list[dict[str, Any]]) -> None:
    """One commit for each partition, in order of offsets."""
    table, schema = target.table(), arrow_schema(COLUMNS)
    grouped: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for each in sorted(results, key=lambda each: int(each["start"])):
        grouped.setdefault((each["topic"], each["partition"], each["incarnation"]), []).append(each)
    for (topic, partition, incarnation), parts in sorted(grouped.items()):
        application = application_of(TopicName.parse(topic, None), partition, incarnation)
        written = [WrittenFile(each["path"], each["bytes"], each["rows"]) for each in parts]
        table.commit(written, schema, application=application, version=parts[-1]["end"], overwrite=False)


def follow(spark: SparkSession, source: Source, target: Target, interval_s: float) -> None:
    """Runs again and again until it is interrupted."""
    while True:
        archive(spark, source, target)
        time.sleep(interval_s)


def dry_run(source: Source, target: Target) -> dict[str, Any]:
    jobs, size = plan(source, target)
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
