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
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import xxhash

from shardd.log import spool
from shardd.log.segment_reader import log_path
from shardd.log.spool import Acknowledgement, ArchivedFile, SpoolManifest
from shardd.spark import archive_listing
from shardd.spark.archive_listing import History, Range, file_system
from shardd.spark.archive_rows import TableRows, rows_in_file
from shardd.spark.decode import Verify
from shardd.spark.live import Polling
from shardd.spark.options import ReadMode, parse
from shardd.spark.piece import Piece, PieceOrigin
from shardd.spark.pipelines import archive, archive_overlap, archive_publish
from shardd.spark.pipelines.archive import READ, ArchiveJob, Target, application_of, spool_application
from shardd.spark.pipelines.common import Meter, PipelineError, summary
from shardd.spark.planner import Slice
from shardd.spark.positions import TopicName
from shardd.spark.reading import TaskSettings
from shardd.spark.retry import Servers
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


class Planned(NamedTuple):
    """`entries`: what may be acknowledged when the jobs are done. `refused`: one sentence for each history of which the
    archive has other messages; its segments stay where they are."""

    jobs: list[ArchiveJob]
    entries: list[Entry]
    refused: list[str]


class _OtherMessagesError(PipelineError):
    """The archive has other messages under the numbers of a segment."""


def plan(entries: list[Entry], target: Target) -> Planned:
    """What the archive does not have yet."""
    planned, run_id, settings = Planned([], [], []), uuid.uuid4().hex, task_settings()
    table = None if target.kind == "parquet" else TableRows(target.table())
    for name, of_topic in groupby(entries, key=lambda each: each.name):
        listing = archive_listing.list_topic(target.place, name) if target.kind == "parquet" else {}
        for _, group in groupby(of_topic, key=lambda each: each.history):
            segments = list(group)
            begin = None if target.kind == "parquet" else _version(target, segments[0])
            history = listing.get(segments[0].place, History())
            try:
                _prove_apart(segments)
                parts = [_missing(each, settings, target, history, begin, table) for each in segments]
            except _OtherMessagesError as error:
                planned.refused.append(str(error))
                continue
            for each, ranges in zip(segments, parts, strict=True):
                planned.jobs.extend(_job(each, target, settings, run_id, begin, part) for part in ranges)
            planned.entries.extend(segments)
    return planned


def _prove_apart(segments: list[Entry]) -> None:
    for one, other in pairwise(segments):
        if other.manifest.start < one.manifest.end:
            raise _OtherMessagesError(
                f"partition {one.manifest.partition} of '{one.name}': {one.path} and {other.path} have the same"
                " offsets: the data directory of the server was put back as files, and its spool was not. Move the"
                " segments of one of the two histories out of the spool"
            )


def _missing(
    entry: Entry,
    settings: TaskSettings,
    target: Target,
    history: History,
    begin: int | None,
    table: TableRows | None,
) -> list[Range]:
    """Offsets of a segment that the archive does not have. What it has must be the segment's messages."""
    start, end = entry.manifest.start, entry.manifest.end
    if table is None:
        missing = uncovered(history, start, end)
    else:
        at = min(max(start, begin or 0), end)
        missing = [(at, end)] if at < end else []
    for low, high in uncovered(History([Piece(PieceOrigin.SEGMENT, *part) for part in missing]), start, end):
        if table is None:
            there = (each for each in history.files if each.start < high and low < each.end)
            rows = [rows_in_file(each.path, low, high) for each in there if each.path]
        else:
            rows = [*table.between(entry.name, entry.manifest.partition, low, high)]
        absent = archive_overlap.first_absent(settings, _slice(entry, (low, high)), rows)
        if absent is not None:
            raise _OtherMessagesError(
                f"partition {entry.manifest.partition} of '{entry.name}': {_text(target)} says that it has offset"
                f" {absent}, but not the message of {entry.path}: the data directory of the server was put back as"
                " files, or rows of the archive were removed. Its segments are not acknowledged; archive this topic"
                " to another place from now on"
            )
    return missing


def task_settings() -> TaskSettings:
    options = parse({"subscribe": "spool/spool", "servers": "127.0.0.1:1", "username": "-", "password": "-"},
                    streaming=False)  # fmt: skip
    return TaskSettings(
        columns=READ,
        polling=Polling(Servers(()), 0.0, TaskSettings.of(options, READ).polling.retries, 1, 1),
        key_header=None,
        verify=Verify.STOP,
        batch_bytes=options.batch_bytes,
        fail_on_data_loss=True,
        read_mode=ReadMode.COLD,
        pass_isolated=True,
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
        jobs, entries, refused = plan(entries, target)
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
    if refused:
        others = f" Behind it {len(refused) - 1} more partitions are refused." if len(refused) > 1 else ""
        raise PipelineError(f"{refused[0]}.{others} {len(entries)} segments of other partitions are acknowledged")
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
    jobs, _, refused = plan(entries, target)
    return {
        "pipeline": "archive",
        "target": _text(target),
        "segments": [str(each.path) for each in entries],
        "rows": sum(job.slice.end - job.slice.start for job in jobs),
        "bytes": sum(each.manifest.log_bytes for each in entries),
        "refused": refused,
    }
