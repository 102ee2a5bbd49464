"""audit: reads everything that is kept and checks it: lengths, checksums, dense offsets, timestamps that never fall,
and for segment files the index against the log. Only counters come back to the driver. Archive files are read, too,
when the archive is named, and their names must cover every offset once.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shardd.client.errors import ServerError
from shardd.log import layout
from shardd.log.incarnation import read_incarnation
from shardd.protocol.bounds import PartitionBounds
from shardd.protocol.errors import Status
from shardd.spark import _decode, archive_listing, cold, planner
from shardd.spark.archive_listing import History
from shardd.spark.cold import explain
from shardd.spark.decode import ROWS_MAX, Fault, Verify
from shardd.spark.loss import Absences
from shardd.spark.options import ReadMode
from shardd.spark.piece import PieceOrigin
from shardd.spark.pieces import Locations
from shardd.spark.pipelines.common import Meter, Source, summary
from shardd.spark.planner import Slice
from shardd.spark.positions import TopicName, cuts
from shardd.spark.reading import SlicePartition, TaskSettings, read
from shardd.spark.tasks import Job, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENTRY: Final = np.dtype([("relative", "<u4"), ("end", "<u4"), ("timestamp", "<u8")])
_STRIDE: Final = 2_000_000  # offsets of one live task
_DAMAGE: Final = (Status.INVALID_MESSAGE_CHECKSUM, Status.CANNOT_READ_FILE)  # what a server says of damage
_BYTES_MAX: Final = 1 << 30
FAULTS_MAX: Final = 20  # that one task tells of


@dataclass
class SegmentAudit(Job):
    """One sealed segment file, whole."""

    name: TopicName
    partition: int
    incarnation: int
    start: int
    end: int
    path: str

    def run(self) -> dict[str, Any]:
        report = _report(self.name, self.partition, self.start, self.end, self.path)
        path = Path(self.path)
        try:
            with path.open("rb") as file:
                if read_incarnation(path.parent) != self.incarnation:
                    return _fault(report, f"{path} belongs to another incarnation")
                size = os.fstat(file.fileno()).st_size
                report["bytes"] = size
                if size == 0:
                    return _fault(report, f"{path} is empty")
                with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as data:
                    data.madvise(mmap.MADV_SEQUENTIAL)
                    self._walk(data, report)
        except FileNotFoundError:
            report["gone"] = True  # retention was faster
        return report

    def _walk(self, data: mmap.mmap, report: dict[str, Any]) -> None:
        index = _index_of(Path(self.path), self.start)
        manifest = cold.manifest_of(Path(self.path), self.start, self.incarnation)
        gaps = manifest.sparse
        if manifest.sparse and manifest.sealed is not None and len(data) != manifest.sealed.log_bytes:
            _fault(report, f"the log has {len(data)} bytes, its manifest says {manifest.sealed.log_bytes}")
        if len(index) != self.end - self.start - manifest.absent:
            _fault(report, f"the index has {len(index)} entries for {self.end - self.start - manifest.absent} messages")
        position, at, last_us = 0, self.start, 0
        while at < self.end and not (gaps and position == len(data)):
            found = _decode.decode(
                data, position, at, self.end, ROWS_MAX, _BYTES_MAX, Verify.REPORT, b"tpbo", None, gaps
            )
            (times_data,), (starts_data,), (good_bits,), (offsets_data,) = found.columns
            times, starts, offsets = (np.frombuffer(each, "<u8") for each in (times_data, starts_data, offsets_data))
            if found.bad_checksums:
                good = np.unpackbits(np.frombuffer(good_bits, np.uint8), bitorder="little")[: found.rows]
                for row in np.flatnonzero(good == 0):
                    bad_offset = int(offsets[row])
                    _fault(report, explain(Fault.BAD_CHECKSUM, bad_offset, bad_offset))
            last_us = _check_times(report, times, at, last_us)
            relative = offsets - np.uint64(self.start)
            _check_index(report, index[report["rows"] :], relative, starts, found.position, times)
            report["rows"] += found.rows
            position, at = found.position, found.next_offset
            if found.fault != Fault.OK or (found.rows == 0 and not gaps):
                if found.fault != Fault.OK or at < self.end:
                    _fault(report, explain(Fault(found.fault), at, found.fault_offset))
                return
        if position != len(data):
            _fault(report, f"{len(data) - position} bytes stand behind the last message")


def _report(name: TopicName, partition: int, start: int, end: int, where: str) -> dict[str, Any]:
    return {
        "topic": str(name),
        "partition": partition,
        "start": start,
        "end": end,
        "where": where,
        "rows": 0,
        "bytes": 0,
        "faults": 0,
        "first_faults": [],
        "gone": False,
    }


def _fault(report: dict[str, Any], text: str) -> dict[str, Any]:
    report["faults"] += 1
    if len(report["first_faults"]) < FAULTS_MAX:
        report["first_faults"].append(text)
    return report


def _index_of(log: Path, start: int) -> np.ndarray[Any, Any]:
    try:
        content = layout.segment_index(log.parent, start).read_bytes()
    except FileNotFoundError:
        return np.empty(0, _ENTRY)
    return np.frombuffer(content[: len(content) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY)


def _check_times(report: dict[str, Any], times: np.ndarray[Any, Any], at: int, last_us: int) -> int:
    if len(times) == 0:
        return last_us
    falls = np.flatnonzero(np.diff(times.astype(np.int64), prepend=last_us) < 0)
    for row in falls:
        _fault(report, f"the timestamp falls at offset {at + int(row)}")
    return int(times[-1])


def _check_index(
    report: dict[str, Any],
    index: np.ndarray[Any, Any],
    relative: np.ndarray[Any, Any],
    starts: np.ndarray[Any, Any],
    end: int,
    times: np.ndarray[Any, Any],
) -> None:
    """The entries of these records: relative offsets, end positions, timestamps."""
    entries = index[: len(starts)]
    if len(entries) == 0 or len(starts) == 0:
        return
    ends = np.append(starts[1:], end)[: len(entries)]
    wrong = (entries["end"] != ends) | (entries["timestamp"] != times[: len(entries)])
    wrong |= entries["relative"] != relative[: len(entries)]
    for row in np.flatnonzero(wrong):
        _fault(report, f"the index entry of message {int(relative[row])} of the segment contradicts the log")


@dataclass
class RangeAudit(Job):
    """Offsets that the server or an archive file has."""

    settings: TaskSettings
    slice: Slice

    def run(self) -> dict[str, Any]:
        slice_, settings = self.slice, self.settings
        where = slice_.pieces[0].path or "server"
        if slice_.pieces[0].place is PieceOrigin.ARCHIVE:  # the server does not stand in for a file that is gone
            settings = replace(settings, read_mode=ReadMode.ARCHIVE)
        report = _report(slice_.name, slice_.partition, slice_.start, slice_.end, where)
        last_us, absences = 0, Absences()
        try:
            for batch in read(settings, SlicePartition(slice_), absences):
                times = batch.column("timestamp").cast("int64").to_numpy().astype(np.uint64)
                last_us = _check_times(report, times, slice_.start + report["rows"], last_us)
                bad = len(batch) - (batch.column("checksumOk").true_count)
                if bad:
                    _fault(report, f"{bad} messages from offset {slice_.start + report['rows']} on fail their checksum")
                report["rows"] += batch.num_rows
                report["bytes"] += batch.nbytes
        except ServerError as error:
            if error.status not in _DAMAGE:
                raise
            at = slice_.start + report["rows"]
            _fault(report, f"{error} at offset {at} or soon behind it; the rest up to {slice_.end} was not looked at")
        except (ValueError, LookupError, OSError) as error:
            _fault(report, str(error))
        known = slice_.pieces[0].place is PieceOrigin.ARCHIVE  # its footer tells what was lost before
        missing = sum(high - low for low, high in absences.lost)
        if (missing and not known) or (absences.ended and not report["faults"]):
            missing = missing or slice_.end - slice_.start - report["rows"]
            _fault(report, f"{missing} messages are missing")
        return report


def plan(source: Source, archive_root: str | None) -> tuple[list[Job], list[dict[str, Any]]]:
    """Sealed segments as files where `path` reaches them, the rest as ranges; and what the names alone of an archive
    tell: offsets that no file has, or two."""
    options = source.parsed()
    settings = replace(TaskSettings.of(options, ("offset", "timestamp", "checksumOk")), verify=Verify.REPORT)
    settings = replace(settings, fail_on_data_loss=False)  # what is lost is counted as a fault
    jobs: list[Job] = []
    reports: list[dict[str, Any]] = []
    for name, topic in source.durable_bounds().items():
        listing = {} if archive_root is None else archive_listing.list_topic(archive_root, name)
        for partition in topic.partitions:
            end = planner.readable_end(options, partition)
            pieces = Locations(options, topic, partition).pieces(partition.first, end)
            history = listing.get((partition.id, partition.incarnation))
            if history is not None:
                pieces += tuple(history.files)
                reports.append(_audit_names(name, partition, history, str(archive_root)))
            for piece in pieces:
                if piece.place is PieceOrigin.SEGMENT:
                    at = (partition.incarnation, piece.start, piece.end, piece.path)
                    jobs.append(SegmentAudit(name, partition.id, *at))
                    continue
                for low, high in cuts(piece.start, piece.end, _STRIDE):
                    inner = replace(piece, start=low, end=high)
                    slice_ = Slice(name, partition.id, partition.incarnation, low, high, (inner,))
                    jobs.append(RangeAudit(settings, slice_))
    return jobs, reports


def _audit_names(name: TopicName, partition: PartitionBounds, history: History, root: str) -> dict[str, Any]:
    """What is between the beginning of the archive and its end, or the beginning of what the server keeps."""
    end = max([partition.first, *(each.end for each in history.files)])
    where = archive_listing.topic_path(root, name)
    report = _report(name, partition.id, history.begin or 0, end, where)
    for low, high in history.missing(end):
        _fault(report, f"offsets {low} to {high} are in no file of the archive")
    for low, high in history.doubled():
        _fault(report, f"offsets {low} to {high} are in two files of the archive")
    return report


def audit(spark: SparkSession, source: Source, archive_root: str | None = None) -> dict[str, Any]:
    """One run. `faults` in the summary is what the exit status follows."""
    jobs, reports = plan(source, archive_root)
    with Meter("audit", None) as meter:
        reports += run(spark, jobs)
    rows = sum(each["rows"] for each in reports)
    size = sum(each["bytes"] for each in reports)
    damaged = [each for each in reports if each["faults"]]
    return summary(
        "audit",
        meter,
        rows,
        size,
        parts=len(jobs),
        faults=sum(each["faults"] for each in damaged),
        damaged=sorted(damaged, key=lambda each: (each["topic"], each["partition"], each["start"])),
    )
