"""Takes one partition into a backup, beside the server that goes on with it.

Everything is done through a descriptor of the partition's directory: when the server moves the directory away (delete,
purge), this still is the same incarnation, only its files get fewer. A sealed segment never changes, so a second name
for it is a copy; the newest one is copied, and a compressed one unpacked:
a backup has plain logs. Segments are deleted from the front only: one that is gone when its turn
comes takes with it what was taken before.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import xxhash
from msgspec.structs import replace

from shardd.backup.format import (
    COPIED,
    LINKED,
    SHARED,
    FileEntry,
    OffsetEntry,
    OffsetUse,
    PartitionEntry,
    SegmentEntry,
    SourceFile,
    file_digest,
    partition_path,
)
from shardd.backup.writing import Writer
from shardd.log import layout
from shardd.log.imported import read_imported
from shardd.log.incarnation import read_incarnation
from shardd.log.layout import PartitionIds
from shardd.log.manifest import Manifest, UnknownLayoutError, decode_manifest, encode_manifest
from shardd.log.offsets_table import StoredOffset
from shardd.log.segment_layout import COMPRESSED
from shardd.log.segment_reader import layout_of, log_path, opened, opened_log, segment_starts
from shardd.log.single_pass import LogPass, PassResult, UnreadableError
from shardd.log.stored_offsets import read_offsets
from shardd.runtime.regular_files import read_regular
from shardd.runtime.throttle import Throttle

ATTEMPTS_MAX: Final = 20  # listings of a directory whose segments are being deleted
_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


class UnsettledError(Exception):
    """The partition cannot be taken now, or does not fit the metadata that was read; the text is a sentence."""


class Base(msgspec.Struct, frozen=True):
    """An earlier backup of the same data directory."""

    path: Path
    partitions: dict[PartitionIds, PartitionEntry]

    def segments(self, ids: PartitionIds, incarnation: int) -> dict[int, SegmentEntry]:
        """By start offset."""
        partition = self.partitions.get(ids)
        if partition is None:
            return {}
        segments = partition.segments
        if partition.incarnation != incarnation:  # the directory was restored, or the topic purged: equal bytes only
            segments = [msgspec.structs.replace(segment, source=None) for segment in segments]
        return {segment.start_offset: segment for segment in segments}


class Taker(msgspec.Struct):
    """Takes partitions of `data` into the directory `target` of a backup."""

    data: Path
    target: Path
    base: Base | None
    throttle: Throttle
    warnings: dict[PartitionIds, list[str]] = msgspec.field(default_factory=dict)

    def take(self, ids: PartitionIds, incarnation: int) -> PartitionEntry:
        """UnsettledError, also when the messages cannot be read; OSError of the target, or of other files."""
        self.warnings[ids] = []
        path = layout.partition_directory(self.data, *ids)
        nothing = PartitionEntry(*ids, incarnation)
        with _opened_directory(path) as directory:
            if directory is None:
                return nothing
            try:
                found = read_incarnation(directory)
                starts = segment_starts(directory)
                if found is None and any(log_path(directory, start).stat().st_size for start in starts):
                    raise UnsettledError(f"{path} holds messages but no valid incarnation marker")
                if found is not None and found < incarnation:  # nothing of this incarnation is there yet
                    return nothing
                if found is not None and found > incarnation:
                    raise UnsettledError(f"{path} was made by metadata record {found}, later than record {incarnation}")
                imported_end = read_imported(directory)
                offsets, notes = read_offsets(directory, incarnation)  # before the messages: never ahead of them
            except FileNotFoundError as error:
                raise UnsettledError(f"{path} was changed while it was read: {error}") from error
            except ValueError as error:
                raise UnsettledError(str(error)) from error
            self.warnings[ids] += notes
            try:
                segments = self._segments(directory, ids, incarnation, imported_end)
            except UnreadableError as error:
                raise UnsettledError(f"{path} cannot be read: {error.strerror}") from error
            except UnknownLayoutError as error:
                raise UnsettledError(f"{path} cannot be taken: {error}") from error
        return PartitionEntry(
            *ids,
            incarnation,
            start_offset=segments[0].start_offset if segments else 0,
            end_offset=segments[-1].end_offset if segments else 0,
            imported_end=imported_end,
            offsets=[OffsetEntry(*each[:3]) for each in offsets],
            uses=_uses(offsets),
            segments=segments,
        )

    def _segments(self, directory: Path, ids: PartitionIds, incarnation: int, imported_end: int) -> list[SegmentEntry]:
        taken: dict[int, SegmentEntry] = {}
        target = partition_path(self.target, ids)
        base = None if self.base is None else partition_path(self.base.path, ids)
        earlier = {} if self.base is None else self.base.segments(ids, incarnation)
        for _ in range(ATTEMPTS_MAX):
            starts = segment_starts(directory)
            for start in [start for start in taken if start not in starts]:
                _remove(target, start)
                del taken[start]
            if starts:
                target.mkdir(parents=True, exist_ok=True)
            try:
                for start, following in zip(starts, [*starts[1:], None], strict=False):
                    if start not in taken:
                        taken[start] = _Segment(
                            directory,
                            target,
                            incarnation,
                            start,
                            following,
                            imported_end,
                            self.throttle,
                            base,
                            earlier.get(start),
                        ).take()
            except FileNotFoundError:
                _remove(target, start)
                continue
            found = [taken[start] for start in starts]
            for entry in found:
                if entry.damage:
                    log = layout.segment_log(layout.partition_directory(self.data, *ids), entry.start_offset)
                    self.warnings[ids].append(f"{log}: damaged: {entry.damage}")
            return found
        path = layout.partition_directory(self.data, *ids)
        raise UnsettledError(f"{path}: its segments are deleted faster than they can be taken")


def _uses(offsets: list[StoredOffset]) -> list[OffsetUse] | msgspec.UnsetType:
    """Not named in backup.json where nothing is known of any, as programs before did."""
    uses = [OffsetUse(*each[3:]) for each in offsets]
    return uses if any(map(any, uses)) else msgspec.UNSET


class _Segment(msgspec.Struct, frozen=True):
    """One segment on its way. `following`: start offset of the next one, None for the newest. `earlier`: what the base
    has under the same name; `base`: its directory. FileNotFoundError when the server has deleted the segment."""

    directory: Path
    target: Path
    incarnation: int
    start: int
    following: int | None
    imported_end: int
    throttle: Throttle
    base: Path | None
    earlier: SegmentEntry | None

    def take(self) -> SegmentEntry:
        entry, manifest = self._manifest()  # before the log: its checkpoints are never ahead of what is copied
        sparse_end = self._sparse_end(manifest)
        compressed = layout_of(self.directory, self.start) is COMPRESSED
        closed_end = manifest.end_offset if compressed and manifest is not None else sparse_end
        if self.following is None and closed_end:  # what was behind it is gone; it takes no more records
            return replace(self, following=closed_end).take()
        if self.following is None:
            point = None if manifest is None else manifest.checkpoint
            segment = self._copy_tail(0 if point is None else point.log_bytes)
        else:
            state = self._log.stat()
            source = SourceFile(state.st_dev, state.st_ino, state.st_mtime_ns)
            size = manifest.sealed.log_bytes if compressed and manifest and manifest.sealed else state.st_size
            digest = self._known_digest(manifest, size)
            segment = self._share(source, size, digest, by_digest=compressed) or self._share_equal(
                (None if compressed else self._link(source, size, digest, sparse_end))
                or self._copy_sealed(source, digest, sparse_end)
            )
            if sparse_end and digest is not None and manifest is not None and manifest.sealed is not None:
                segment = msgspec.structs.replace(segment, records=manifest.sealed.count)
        return msgspec.structs.replace(segment, manifest=entry)

    def _sparse_end(self, manifest: Manifest | None) -> int:
        """Where the segment ends when its manifest explains that some of its offsets have no record, else 0."""
        if manifest is None or not manifest.sparse or manifest.incarnation != self.incarnation:
            return 0
        fits = manifest.start_offset == self.start and self.following in (None, manifest.end_offset)
        return manifest.end_offset if fits else 0

    def _known_digest(self, manifest: Manifest | None, size_bytes: int) -> str | None:
        """What the server found when it verified the sealed segment; None: it has to be read."""
        if manifest is None or manifest.sealed is None or self.following is None:
            return None
        sealed = manifest.sealed
        fits = (manifest.incarnation, manifest.start_offset) == (self.incarnation, self.start)
        offsets = self.following - self.start
        if not fits or (sealed.log_bytes, sealed.count + manifest.absent) != (size_bytes, offsets):
            return None
        return file_digest(sealed.digest)

    @property
    def _log(self) -> Path:
        return log_path(self.directory, self.start)

    @property
    def _kept(self) -> Path:
        return layout.segment_log(self.target, self.start)

    def _share(
        self, source: SourceFile, size_bytes: int, digest: str | None, *, by_digest: bool
    ) -> SegmentEntry | None:
        """The file of the base, when that was made from this very file, or (`by_digest`) has these very bytes. Nothing
        is read."""
        earlier = self.earlier
        if earlier is None or self.base is None or digest not in (None, earlier.digest):
            return None
        if (earlier.bytes, earlier.end_offset) != (size_bytes, self.following):
            return None
        if earlier.source != source and (not by_digest or digest is None or earlier.damage):
            return None
        kept = layout.segment_log(self.base, self.start)
        try:
            found = kept.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_size != size_bytes:
                return None
            os.link(kept, self._kept)
        except OSError:  # the base has lost it, or cannot be linked: it is taken anew
            return None
        return msgspec.structs.replace(earlier, kept=SHARED, source=source)

    def _share_equal(self, entry: SegmentEntry) -> SegmentEntry:
        """One file for both when the base has the same bytes from another file (of a restored directory)."""
        earlier = self.earlier
        if earlier is None or self.base is None or (earlier.digest, earlier.bytes) != (entry.digest, entry.bytes):
            return entry
        shared, double = layout.segment_log(self.base, self.start), self._kept.with_suffix(layout.TEMPORARY_SUFFIX)
        try:
            if not stat.S_ISREG(shared.lstat().st_mode):
                return entry
            if shared.samefile(self._kept):  # a rename of one name over another of the same file would leave both
                return entry
            os.link(shared, double)
        except OSError:
            return entry
        double.replace(self._kept)
        return msgspec.structs.replace(entry, kept=SHARED)

    def _link(self, source: SourceFile, size_bytes: int, digest: str | None, sparse_end: int) -> SegmentEntry | None:
        """A second name for a sealed log, read only when its digest is not known. None where that is not possible."""
        try:
            os.link(self._log, self._kept)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return None
        if digest is not None and self.following is not None:
            return SegmentEntry(self.start, self.following, size_bytes, digest, LINKED, source)
        with opened(self._kept, os.O_RDONLY) as log:
            whole = LogPass(log, self.start, self.imported_end, self.throttle, sparse_end=sparse_end)
            content = whole.whole(self.following)
        return self._entry(content, LINKED, source, sparse_end)

    def _copy_sealed(self, source: SourceFile, digest: str | None, sparse_end: int) -> SegmentEntry:
        with opened_log(self.directory, self.start) as log, Writer(self._kept) as writer:
            known = self.start, self.imported_end, self.throttle
            content = LogPass(log, *known, copy=writer.write, sparse_end=sparse_end).whole(self.following)
        entry = self._entry(content, COPIED, source, sparse_end)
        if digest not in (None, entry.digest) and not entry.damage:
            return msgspec.structs.replace(entry, damage="it has another digest than its manifest says")
        return entry

    def _copy_tail(self, bytes_min: int) -> SegmentEntry:
        with opened_log(self.directory, self.start) as log, Writer(self._kept) as writer:
            content = LogPass(log, self.start, self.imported_end, self.throttle, copy=writer.write).tail(bytes_min)
        return self._entry(content, COPIED, None, 0)

    def _entry(self, content: PassResult, kept: str, source: SourceFile | None, sparse_end: int) -> SegmentEntry:
        digest = file_digest(content.digest.digest())
        end_offset = sparse_end or self.start + content.count
        entry = SegmentEntry(self.start, end_offset, content.bytes, digest, kept, source, None, content.damage)
        return msgspec.structs.replace(entry, records=content.count) if sparse_end else entry

    def _manifest(self) -> tuple[FileEntry | None, Manifest | None]:
        """Copies the manifest as it is, one of a compressed log as that of the plain one, which the backup has; one
        that says nothing to this version is only copied."""
        try:
            data = read_regular(layout.segment_manifest(self.directory, self.start))
        except FileNotFoundError:
            return None, None
        manifest = None
        try:
            manifest = decode_manifest(data)
        except UnknownLayoutError as error:
            raise UnknownLayoutError(f"{layout.segment_manifest(self.directory, self.start)}: {error}") from None
        except ValueError:
            pass
        if manifest is not None and manifest.stored is not None:
            data = encode_manifest(replace(manifest, stored=None))
        with Writer(layout.segment_manifest(self.target, self.start)) as writer:
            writer.write(data)
        return FileEntry(len(data), file_digest(xxhash.xxh3_128_digest(data))), manifest


@contextmanager
def _opened_directory(path: Path) -> Iterator[Path | None]:
    """A path that stays that of this directory wherever it is moved; None when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _remove(target: Path, start_offset: int) -> None:
    layout.segment_log(target, start_offset).unlink(missing_ok=True)
    layout.segment_manifest(target, start_offset).unlink(missing_ok=True)
