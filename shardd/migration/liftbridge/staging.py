"""Writes records with their offsets at the source as sealed segments of this server (docs/formats.md#log): some offsets
may have no record. The segments have no metadata yet: `complete` adds the metadata when they are known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Self

import msgspec
import xxhash

from shardd.engine import _native
from shardd.log import layout
from shardd.log.imported import encode_imported
from shardd.log.incarnation import encode_incarnation
from shardd.log.manifest import Checkpoint, Manifest, Sealed, encode_manifest

_FLUSH_BYTES: Final = 1 << 20
_RELATIVE_MAX: Final = (1 << 32) - 1  # offsets of one segment, and its bytes


class StagedSegment(msgspec.Struct, frozen=True):
    """Offsets [start, end) with `count` records in them; timestamps in microseconds."""

    start: int
    end: int
    size_bytes: int
    count: int
    first_timestamp: int
    last_timestamp: int
    digest: bytes


class SegmentWriter:
    """The segments of one partition, in `directory`, which must be empty. `falling`: some timestamp fell."""

    def __init__(self, directory: Path, segment_bytes_max: int, identity: bytes) -> None:
        """`identity`: what makes the ids of the messages, with their offset: the same at each import."""
        self.segments: list[StagedSegment] = []
        self.falling = False
        self._directory, self._bytes_max, self._identity = directory, segment_bytes_max, identity
        self._open: _Open | None = None
        self._timestamp = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.close()

    def add(self, offset: int, timestamp_us: int, payload: bytes, headers: bytes) -> None:
        """Offsets ascend. OSError."""
        current = self._open
        bytes_more = _native.RECORD_HEADER_SIZE + len(payload) + len(headers)
        if current is not None and (
            current.position + bytes_more > self._bytes_max or offset - current.start >= _RELATIVE_MAX
        ):
            self._finish(offset)
            current = None
        if current is None:
            current = self._open = _Open(self._directory, offset)
        message_id = xxhash.xxh3_128_digest(self._identity + offset.to_bytes(8, "little"))
        current.add(offset, timestamp_us, message_id, payload, headers)
        self.falling |= timestamp_us < self._timestamp
        self._timestamp = timestamp_us

    def finish(self, end_offset: int) -> list[StagedSegment]:
        """Nothing follows; the next message of the partition gets `end_offset`. OSError."""
        if self._open is not None:
            self._finish(end_offset)
        elif end_offset:
            _Open(self._directory, end_offset).close()
            self.segments.append(StagedSegment(end_offset, end_offset, 0, 0, 0, 0, b""))
        return self.segments

    def _finish(self, end_offset: int) -> None:
        assert self._open is not None
        self.segments.append(self._open.finish(end_offset))
        self._open = None


class _Open:
    """The segment that is being written."""

    def __init__(self, directory: Path, start: int) -> None:
        self.start, self.position, self.count = start, 0, 0
        self._first = self._last = 0
        self._digest = xxhash.xxh3_128()
        self._log = layout.segment_log(directory, start).open("xb", buffering=_FLUSH_BYTES)
        self._index = layout.segment_index(directory, start).open("xb", buffering=_FLUSH_BYTES)

    def add(self, offset: int, timestamp_us: int, message_id: bytes, payload: bytes, headers: bytes) -> None:
        lengths = len(headers).to_bytes(4, "little") + len(payload).to_bytes(4, "little")
        message = b"".join(
            (bytes(8), message_id, bytes(16), timestamp_us.to_bytes(8, "little"), lengths, bytes(8), payload, headers)
        )
        record, entry = _native.batch_assign(message, 1, offset, timestamp_us, offset - self.start, self.position, 0)
        self._log.write(record)
        self._index.write(entry)
        self._digest.update(record)
        self.position += len(record)
        self._first = timestamp_us if not self.count else self._first
        self._last = timestamp_us
        self.count += 1

    def finish(self, end: int) -> StagedSegment:
        for file in (self._log, self._index):
            file.flush()
            os.fdatasync(file.fileno())
        self.close()
        return StagedSegment(self.start, end, self.position, self.count, self._first, self._last, self._digest.digest())

    def close(self) -> None:
        self._log.close()
        self._index.close()


def complete(directory: Path, segments: list[StagedSegment], incarnation: int, imported_end: int) -> None:
    """Markers and manifests, so that the directory is one of that incarnation, on the device. `imported_end`: below it
    timestamps may fall. OSError."""
    layout.write_whole(directory / layout.INCARNATION, encode_incarnation(incarnation))
    if imported_end:
        layout.write_whole(directory / layout.IMPORTED, encode_imported(imported_end))
    for segment in segments:
        known = segment.size_bytes, segment.count, segment.first_timestamp, segment.last_timestamp
        sparse = segment.count < segment.end - segment.start
        sealed = sparse or segment is not segments[-1]  # the server goes on writing behind the last dense one
        manifest = Manifest(
            incarnation,
            segment.start,
            log_start_offset=segments[0].start,
            checkpoint=Checkpoint(*known) if segment.count else None,
            sealed=Sealed(*known, digest=segment.digest) if sealed else None,
            end_offset=segment.end if sparse else 0,
            sparse=sparse,
        )
        layout.write_whole(layout.segment_manifest(directory, segment.start), encode_manifest(manifest))
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    layout.sync_directory(directory)
