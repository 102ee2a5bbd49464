"""archive --spool: segments that left their log into the archive, each acknowledged when the archive has it for good,
so that the server may delete it (docs/adr/0047-archive-before-deletion.md).

Needs no server: an entry of the spool says itself what it is. The files are those of archive.py. In a table another
application says how far the spool is, "spool/<stream>/<topic>/<partition>/<incarnation>": what a run over the topic has
recorded says nothing about segments that had left it before. So a table is kept by one of the two. A run that was
killed is done again; what has its ACK is not looked at.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.fs as pafs
import xxhash

from shardd.log import spool
from shardd.log.segment_reader import log_path
from shardd.log.spool import Acknowledgement, ArchivedFile, SpoolManifest
from shardd.spark import archive_listing
from shardd.spark.archive_listing import History, Range, file_system
from shardd.spark.decode import Verify
from shardd.spark.live import Polling
from shardd.spark.options import ReadMode, parse
from shardd.spark.piece import Piece, PieceOrigin
from shardd.spark.pipelines import archive, archive_overlap, archive_publish
from shardd.spark.pipelines.archive import READ, ArchiveJob, Target, application_of, spool_application
from shardd.spark.pipelines.archive_table import TableFiles
from shardd.spark.pipelines.common import Meter, PipelineError, summary
from shardd.spark.planner import Slice
from shardd.spark.positions import TopicName
from shardd.spark.reading import TaskSettings
from shardd.spark.tasks import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One segment without an ACK."""

    path: Path
    manifest: SpoolManifest

    @property
    def name(self) -> TopicName:
        return TopicName(self.manifest.stream.name, self.manifest.topic.name)

    @property
    def history(self) -> tuple[TopicName, int, int]:
        """A partition in one of its lives."""
        return self.name, self.manifest.partition, self.manifest.incarnation

    @property
    def place(self) -> tuple[int, int]:
        """As archives know it."""
        return self.manifest.partition, self.manifest.incarnation


def pending(directory: Path) -> list[Entry]:
    """By topic, partition and offset, none of a partition missing in front of another one: entries come in that order,
    but a listing may miss one that comes while it is made. OSError, `UnfitError`."""
    seen: dict[tuple[TopicName, int, int], int] = {}
    for each in _listed(directory):
        seen[each.history] = max(each.manifest.start, seen.get(each.history, 0))
    found = (each for each in _listed(directory) if each.manifest.start <= seen.get(each.history, -1))
    return sorted(found, key=lambda each: (each.history, each.manifest.start))


def _listed(directory: Path) -> Iterator[Entry]:
    for path in spool.entries(directory):
        try:
            manifest = spool.read_entry(path)
            acknowledgement = spool.read_acknowledgement(path, manifest)
        except FileNotFoundError:  # the server has removed it: it was acknowledged
            continue
        if acknowledgement is None:
            yield Entry(path, manifest)


def plan(entries: list[Entry], target: Target) -> list[ArchiveJob]:
    """What the archive does not have yet."""
    jobs, run_id, settings = [], uuid.uuid4().hex, task_settings()
    for name, of_topic in groupby(entries, key=lambda each: each.name):
        listing = archive_listing.list_topic(target.place, name) if target.kind == "parquet" else {}
        for _, group in groupby(of_topic, key=lambda each: each.history):
            segments = list(group)
            begin = None if target.kind == "parquet" else _version(target, segments[0])
            in_table = None if begin is None else TableFiles(target.table())
            for each in segments:
                there = _in_table(each, in_table) if in_table else _in_files(each, listing.get(each.place, History()))
                _prove_same(each, settings, target, there)
                if target.kind == "parquet":
                    ranges = uncovered(listing.get(each.place, History()), each.manifest.start, each.manifest.end)
                else:
                    ranges = [(max(each.manifest.start, begin or 0), each.manifest.end)]
                jobs += [_job(each, target, settings, run_id, begin, part) for part in ranges if part[0] < part[1]]
    return jobs


def task_settings() -> TaskSettings:
    options = parse({"subscribe": "spool/spool", "servers": "127.0.0.1:1", "username": "-", "password": "-"},
                    streaming=False)  # fmt: skip
    return TaskSettings(
        columns=READ,
        polling=Polling((), options.credentials, 0.0, TaskSettings.of(options, READ).polling.retries, 1, 1),
        key_header=None,
        verify=Verify.STOP,
        batch_bytes=options.batch_bytes,
        fail_on_data_loss=True,
        read_mode=ReadMode.COLD,
        pass_isolated=True,
    )


_Files = list[tuple[pafs.FileSystem, str, int, int]]  # each with its first offset and the one behind its last


def _in_files(entry: Entry, history: History) -> _Files:
    """Those that have some of a segment."""
    start, end = entry.manifest.start, entry.manifest.end
    there = [each for each in history.files if each.start < end and start < each.end and each.path]
    return [(*file_system(each.path), each.start, each.end) for each in there]


def _in_table(entry: Entry, table: TableFiles) -> _Files:
    found = table.of(*entry.history, entry.manifest.start, entry.manifest.end)
    return [(table.system, file.path, file.start, file.end) for file, _ in found]


def _prove_same(entry: Entry, settings: TaskSettings, target: Target, there: _Files) -> None:
    """What the archive has of a segment are its messages."""
    if not there:
        return
    whole = _slice(entry, (entry.manifest.start, entry.manifest.end))
    other = archive_overlap.first_other(settings, whole, there)
    if other is not None:
        raise PipelineError(
            f"partition {entry.manifest.partition} of '{entry.name}': {_text(target)} has another message than"
            f" {entry.path} at offset {other}: the data directory of the server was put back as files; archive to"
            " another place. Nothing is acknowledged"
        )


def _slice(entry: Entry, part: Range) -> Slice:
    manifest = entry.manifest
    piece = Piece(PieceOrigin.SEGMENT, *part, str(log_path(entry.path, manifest.start)), manifest.start)
    return Slice(entry.name, manifest.partition, manifest.incarnation, *part, (piece,))


def _job(
    entry: Entry, target: Target, settings: TaskSettings, run_id: str, begin: int | None, part: Range
) -> ArchiveJob:
    return ArchiveJob(settings, _slice(entry, part), target, run_id, begin)


def uncovered(history: History, start: int, end: int) -> list[Range]:
    """Offsets of [start, end) that no file has."""
    found, at = [], start
    for each in history.files:
        if each.end <= at or each.start >= end:
            continue
        if each.start > at:
            found.append((at, each.start))
        at = max(at, each.end)
    if at < end:
        found.append((at, end))
    return found


def _version(target: Target, entry: Entry) -> int | None:
    table = target.table()
    if table.version(application_of(*entry.history)) is not None:
        raise PipelineError(f"{_text(target)} is kept by runs over '{entry.name}'; give --spool a table of its own")
    return table.version(spool_application(*entry.history))


def archive_spool(spark: SparkSession, directory: Path, target: Target) -> dict[str, Any]:
    """One run over what is there now. Returns the summary. `CommitConflictError`, `ArchiveConflictError` when another
    run archives, too."""
    entries = pending(directory)
    with ExitStack() as held:
        if target.kind == "parquet":
            for name in sorted({each.name for each in entries}):
                held.enter_context(archive_publish.alone(target.place, name))
        jobs = plan(entries, target)
        rows = sum(job.slice.end - job.slice.start for job in jobs)
        with Meter("archive", rows) as meter:
            results = run(spark, jobs)
            for each in results:
                each["application"] = f"spool/{each['application'].removeprefix('archive/')}"
            if target.kind != "parquet" and results:
                archive.commit(target, results)
            size = sum(each["bytes"] for each in results)
            meter.advance(rows, size)
        for entry in entries:
            _acknowledge(entry, target, results)
    return summary("archive", meter, rows, size, files=len(results), target=_text(target), acknowledged=len(entries))


def _acknowledge(entry: Entry, target: Target, results: Iterable[dict[str, Any]]) -> None:
    """Asks the archive itself once more, not what was done."""
    manifest, version = entry.manifest, None
    if target.kind == "parquet":
        history = archive_listing.list_topic(target.place, entry.name).get(entry.place, History())
        missing = uncovered(history, manifest.start, manifest.end)
        paths = [each.path for each in history.files if each.start < manifest.end and manifest.start < each.end]
        files = tuple(_archived(path) for path in paths)
        if sum(each.rows for each in files) < manifest.records:  # isolated messages have no row: no file proves them
            files = ()
    else:
        version = _version(target, entry)
        missing = [] if version is not None and version >= manifest.end else [(manifest.start, manifest.end)]
        own = (each for each in results if each["application"] == spool_application(*entry.history))
        paths = [each["path"] for each in own if manifest.start <= each["start"] and each["end"] <= manifest.end]
        files = tuple(_archived(path, target) for path in paths) if _covers(results, entry) else ()
    if missing:
        raise PipelineError(f"the archive does not have the offsets {missing} of {entry.path}")
    spool.acknowledge(
        entry.path, Acknowledgement(manifest.digest, manifest.records, _text(target), files, table_version=version)
    )


def _covers(results: Iterable[dict[str, Any]], entry: Entry) -> bool:
    """Whether this run has written all of it; a part may stand in files of an earlier one."""
    manifest, application = entry.manifest, spool_application(*entry.history)
    own = (each for each in results if each["application"] == application)
    rows = sum(each["rows"] for each in own if manifest.start <= each["start"] and each["end"] <= manifest.end)
    return bool(rows == manifest.records)


def _archived(path: str, target: Target | None = None) -> ArchivedFile:
    import pyarrow.parquet as pq

    system, inner = file_system(path) if target is None else (target.table().place()[0], path)
    digest, size = xxhash.xxh3_128(), 0
    with system.open_input_stream(inner) as stream:
        while part := stream.read(_READ_BYTES):
            digest.update(part)
            size += len(part)
    with system.open_input_file(inner) as file:
        return ArchivedFile(path, pq.read_metadata(file).num_rows, size, digest.hexdigest())


def _text(target: Target) -> str:
    return f"{target.kind}:{target.place}"


def dry_run(directory: Path, target: Target) -> dict[str, Any]:
    entries = pending(directory)
    jobs = plan(entries, target)
    return {
        "pipeline": "archive",
        "target": _text(target),
        "segments": [str(each.path) for each in entries],
        "rows": sum(job.slice.end - job.slice.start for job in jobs),
        "bytes": sum(each.manifest.log_bytes for each in entries),
    }
