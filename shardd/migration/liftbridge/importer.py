"""Imports a data directory of Liftbridge into one of this server, with its offsets; the source is only read
(docs/adr/0095-liftbridge-import.md).

1. Each partition is read once, every checksum verified, and written as segments below `streams/liftbridge.import/`,
   which no server reads. A partition that is ready says so in a file beside it: an interrupted import goes on behind
   it, if the source has not changed.
2. When all are ready `info.json` gets the magic of an import, so that no server starts. For each stream its partitions
   get their place, then the record that creates it is stored. What was interrupted here is put right by the next
   import.
3. `info.json` is a server's again, and what was staged goes away.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from shardd.log import layout
from shardd.log.directory_info import FORMAT_VERSION, DirectoryInfo, read_being_imported, read_info
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.state import State
from shardd.migration.errors import MigrationError
from shardd.migration.liftbridge.log import DamagedError, log_files
from shardd.migration.liftbridge.partition import Look, PartitionFigures, PartitionReader, look
from shardd.migration.liftbridge.placing import Placing, Staged, StagedStream, has_messages, topic_of
from shardd.migration.liftbridge.report import ImportOptions, ImportReport, Outcome, StreamReport
from shardd.migration.liftbridge.staging import SegmentWriter
from shardd.migration.liftbridge.streams import (
    ACTIVITY,
    CURSORS,
    SourcePartition,
    SourceStream,
    Subject,
    check_stopped,
    find_streams,
    server_id_of,
    subject_of,
)
from shardd.migration.liftbridge.values import Opener

WORK: Final = "liftbridge.import"
_SPACE_KEPT_BYTES: Final = 64 << 20

Progress = Callable[[str, int, int], None]  # name of the partition, bytes that were read, bytes of the source


class LiftbridgeImport:
    """One import. The caller holds the lock of `data`, in which a server was started once."""

    def __init__(
        self, source: Path, data: Path, options: ImportOptions, master: bytes | None, progress: Progress
    ) -> None:
        self._source, self._data, self._options = source, data, options
        self._opener = None if master is None else Opener(master)
        self._progress = progress
        self._read_bytes = self._all_bytes = 0
        self._report = ImportReport(str(source), str(data), options.namespace, options.dry_run)

    def run(self) -> ImportReport:
        """MigrationError, OSError, LogError and ApplyError of the metadata: nothing was imported, or all of it, and
        the next import goes on."""
        options = self._options
        self._check_places()
        check_stopped(self._source)
        streams, refused = find_streams(self._source, options.names)
        unknown = sorted(options.only - {stream.source for stream in streams} - set(refused))
        if unknown:
            raise MigrationError(f"{self._source} has no stream {unknown[0]!r}")
        for source, why in sorted(refused.items()):
            if not options.only or source in options.only:
                self._leave_out(source, options.names.get(source, source), why)
        streams = [stream for stream in streams if not options.only or stream.source in options.only]
        self._all_bytes = sum(_source_bytes(part) for stream in streams for part in stream.partitions)
        if options.dry_run:
            state = State() if not (self._data / FILE_NAME).exists() else load_state(self._data / FILE_NAME)
        else:
            info = self._check_data()
            state = load_state(self._data / FILE_NAME)
            self._check_space()
        staged = [each for stream in streams if (each := self._stage(stream, state)) is not None]
        if not options.dry_run:
            Placing(self._data, options.namespace, server_id_of(self._source)).place(staged, info)
            self._remove_work()
        self._report.streams.sort(key=lambda report: report.source)
        return self._report

    @property
    def _work(self) -> Path:
        return self._data / layout.STREAMS / WORK

    def _remove_work(self) -> None:
        """First its name: half of it would tell the next import something wrong."""
        done = self._work.with_suffix(".done")
        with suppress(FileNotFoundError):
            self._work.rename(done)
        shutil.rmtree(done, ignore_errors=True)

    # ---- checks ----

    def _check_places(self) -> None:
        source, data = self._source.resolve(), self._data.resolve()
        if source == data or source in data.parents or data in source.parents:
            raise MigrationError(f"{self._source} and {self._data} have to be two directories, side by side")

    def _check_data(self) -> DirectoryInfo:
        try:
            info = read_being_imported(self._data) or read_info(self._data)
        except ValueError as error:
            raise MigrationError(str(error)) from error
        if info is None:
            raise MigrationError(f"{self._data} is no data directory of shardd")
        if info.format_version != FORMAT_VERSION:
            raise MigrationError(f"{self._data} has format version {info.format_version}: start the server on it once")
        return info

    def _check_space(self) -> None:
        found = os.statvfs(self._data)
        free = found.f_bavail * found.f_frsize
        wanted = self._all_bytes + _SPACE_KEPT_BYTES - _staged_bytes(self._work)
        if free < wanted:
            raise MigrationError(f"{self._data} has {free} bytes of room, the import takes about {wanted}")

    def _why_not(self, stream: SourceStream, state: State) -> str:
        """A sentence when the stream cannot be imported now, or never."""
        if stream.name == ACTIVITY:
            return "its events are those of the other server's metadata"
        namespace = self._options.namespace
        topic = topic_of(state, namespace, stream.name)
        if topic is None or self._is_placed(self._staged_stream(stream), state):
            return ""
        native = state.streams[state.stream_ids[namespace]]
        if stream.name == CURSORS and not has_messages(layout.topic_directory(self._data, native.id, topic.id)):
            return ""
        return f"there is a topic {self._options.namespace}/{stream.name} already"

    def _is_placed(self, staged: StagedStream, state: State) -> bool:
        """An interrupted import has done everything for it."""
        placed, topic = staged.placed, topic_of(state, self._options.namespace, staged.name)
        return placed is not None and topic is not None and placed.incarnation == topic.incarnation

    def _leave_out(self, source: str, name: str, why: str, damage: DamagedError | None = None) -> None:
        found = [] if damage is None else [damage.damage]
        self._report.streams.append(StreamReport(source, name, Outcome.LEFT_OUT, why, damage=found))

    # ---- reading ----

    def _staged_stream(self, stream: SourceStream) -> StagedStream:
        digest = hashlib.sha256(f"{self._options.namespace}\0{stream.name}".encode()).hexdigest()[:32]
        return StagedStream(stream.name, len(stream.partitions), self._work / digest)

    def _stage(self, stream: SourceStream, state: State) -> StagedStream | None:
        """Ready to be placed; None when it is left out, or in a dry run."""
        why = self._why_not(stream, state)
        if why:
            self._leave_out(stream.source, stream.name, why)
            return None
        staged = self._staged_stream(stream)
        if self._is_placed(staged, state):
            ready = [each.figures for part in stream.partitions if (each := staged.read(part.id)) is not None]
            topic = topic_of(state, self._options.namespace, stream.name)
            subject_text = topic.liftbridge.subject if topic is not None and topic.liftbridge is not None else ""
            self._report.streams.append(
                StreamReport(stream.source, stream.name, Outcome.IMPORTED, "", subject_text, "metadata", ready)
            )
            return staged
        looks = {part.id: look(part) for part in stream.partitions}
        subject = subject_of(stream, self._options.subjects, {number: each.subjects for number, each in looks.items()})
        outcome = Outcome.CHECKED if self._options.dry_run else Outcome.IMPORTED
        report = StreamReport(stream.source, stream.name, outcome, "", subject.text, subject.origin)
        try:
            for part in stream.partitions:
                report.partitions.append(self._partition(stream, part, subject, looks[part.id], staged))
        except DamagedError as error:
            shutil.rmtree(staged.directory, ignore_errors=True)
            self._leave_out(stream.source, stream.name, str(error), error)
            return None
        self._report.streams.append(report)
        staged.subject = subject.text
        return None if self._options.dry_run else staged

    def _partition(
        self, stream: SourceStream, part: SourcePartition, subject: Subject, seen: Look, staged: StagedStream
    ) -> PartitionFigures:
        """DamagedError."""
        options = self._options
        name = f"{stream.source}/{part.id}"

        def progress(more: int) -> None:
            self._read_bytes += more
            self._progress(name, self._read_bytes, self._all_bytes)

        reader = PartitionReader(part, subject.text, self._opener, stream.source in options.plain, progress)
        if options.dry_run:
            return reader.read(seen, None, salvage=options.salvage)
        before = self._fingerprint(part, subject, stream)
        ready = staged.read(part.id)
        if ready is not None and ready.fingerprint == before:
            self._report.again += 1
            progress(_source_bytes(part))
            return ready.figures
        directory = staged.begin(part.id)
        identity = f"{options.namespace}\0{stream.name}\0{part.id}\0".encode()
        with SegmentWriter(directory, options.segment_bytes_max, identity) as writer:
            figures = reader.read(seen, writer.add, salvage=options.salvage)
            segments = writer.finish(figures.end_offset)
        if self._fingerprint(part, subject, stream) != before:
            raise MigrationError(f"{part.directory} changed while it was read: stop its server first")
        staged.write(part.id, Staged(before, figures, segments, writer.falling))
        return figures

    def _fingerprint(self, part: SourcePartition, subject: Subject, stream: SourceStream) -> str:
        """Of what decides what is written."""
        key = self._opener is not None
        found: list[object] = [subject.text, self._options.salvage, stream.source in self._options.plain, key]
        if part.directory is not None:
            for file in log_files(part.directory):
                state = file.path.lstat()
                found.append((file.path.name, state.st_ino, state.st_size, state.st_mtime_ns))
        return hashlib.sha256(msgspec.json.encode([str(self._source.resolve()), part.id, *found])).hexdigest()


def _source_bytes(part: SourcePartition) -> int:
    return sum(file.path.lstat().st_size for file in log_files(part.directory)) if part.directory is not None else 0


def _staged_bytes(work: Path) -> int:
    return sum(path.lstat().st_size for path in work.rglob("*.log"))
