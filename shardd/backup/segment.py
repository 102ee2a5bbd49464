"""Takes one segment into a backup. What it is gets decided once, by one descriptor (log/segment_source.py), and what
was made of it is proven before a backup tells of it.

Bytes that are known to be good (read here, or verified by the server) are never replaced by such that are not.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

import msgspec
import xxhash
from msgspec.structs import replace

from shardd.backup.format import COPIED, LINKED, SHARED, FileEntry, SegmentEntry, SourceFile, file_digest
from shardd.backup.writing import Writer
from shardd.log import layout
from shardd.log.manifest import Manifest, encode_manifest
from shardd.log.segment_layout import COMPRESSED
from shardd.log.segment_reader import opened, segment_starts
from shardd.log.segment_source import SegmentSource, opened_source, read_manifest_content
from shardd.log.single_pass import LogPass, PassResult
from shardd.runtime.throttle import Throttle

_NO_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


class ChangedError(Exception):
    """What was taken is not what is there: it is taken again."""


class Segment(msgspec.Struct, frozen=True):
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
    notes: dict[int, str]

    def take(self) -> SegmentEntry:
        """Into `notes`, by start offset: why the manifest is not in the backup although there is one."""
        with opened_source(self.directory, self.start) as source:
            if source.unread:
                self.notes[self.start] = f"{source.unread}: it is not in this backup, the log was read whole"
            entry = self._keep_manifest(source)
            sparse_end = self._sparse_end(source.manifest)
            compressed = source.kept is COMPRESSED
            closed_end = source.manifest.end_offset if compressed and source.manifest is not None else sparse_end
            if self.following is None and closed_end:  # what was behind it is gone; it takes no more records
                segment = replace(self, following=closed_end)._sealed(source, closed_end if sparse_end else 0)
            elif self.following is None:
                point = None if source.manifest is None else source.manifest.checkpoint
                segment = self._copy_tail(source, 0 if point is None else point.log_bytes)
            else:
                segment = self._sealed(source, sparse_end)
            self._prove(source, segment)
            return replace(segment, manifest=entry)

    def _sealed(self, source: SegmentSource, sparse_end: int) -> SegmentEntry:
        """One that takes no more records."""
        state, manifest, compressed = source.state, source.manifest, source.kept is COMPRESSED
        file = SourceFile(state.st_dev, state.st_ino, state.st_mtime_ns)
        digest = self._known_digest(manifest, source.log_bytes)
        shared = None
        if manifest is None or not manifest.isolated:  # else it has changed since its digest was taken
            shared = self._share(file, source.log_bytes, digest, by_digest=compressed)
        segment = shared or self._share_equal(
            (None if compressed else self._link(source, file, digest, sparse_end))
            or self._copy_sealed(source, file, digest, sparse_end)
        )
        if sparse_end and digest is not None and manifest is not None and manifest.sealed is not None:
            return replace(segment, records=manifest.sealed.count)
        return segment

    def _prove(self, source: SegmentSource, entry: SegmentEntry) -> None:
        """Before anybody is told that the backup has it: the kept file is the one that the entry tells of, and what the
        server says of its segment is still the same. ChangedError, OSError."""
        kept, now = self._kept.lstat(), os.fstat(source.descriptor)
        same = not entry.source or (now.st_size, now.st_mtime_ns) == (source.state.st_size, source.state.st_mtime_ns)
        if not stat.S_ISREG(kept.st_mode) or kept.st_size != entry.bytes or not same:
            raise ChangedError(f"{self._kept} has {kept.st_size} bytes instead of {entry.bytes}")
        if entry.kept == LINKED and (kept.st_dev, kept.st_ino) != (source.state.st_dev, source.state.st_ino):
            raise ChangedError(f"{self._kept} is not the file that was opened")
        manifest = read_manifest_content(self.directory, self.start).manifest
        if manifest is None or manifest.incarnation != self.incarnation or self.following is None or entry.damage:
            return
        said = manifest.sealed  # it may have been sealed since
        if said is not None and (said.log_bytes, file_digest(said.digest)) != (entry.bytes, entry.digest):
            raise ChangedError(f"{self._kept} is not what the manifest says by now")

    def _sparse_end(self, manifest: Manifest | None) -> int:
        """Where the segment ends when its manifest explains that some of its offsets have no record, else 0."""
        if manifest is None or not manifest.sparse or manifest.incarnation != self.incarnation:
            return 0
        fits = manifest.start_offset == self.start and self.following in (None, manifest.end_offset)
        return manifest.end_offset if fits else 0

    def _known_digest(self, manifest: Manifest | None, size_bytes: int) -> str | None:
        """The digest that the server found when it verified the sealed segment. None: it has to be read, as one
        with isolated messages, which were damaged after that."""
        if manifest is None or manifest.sealed is None or manifest.isolated or self.following is None:
            return None
        sealed = manifest.sealed
        fits = (manifest.incarnation, manifest.start_offset) == (self.incarnation, self.start)
        offsets = self.following - self.start
        if not fits or (sealed.log_bytes, sealed.count + manifest.absent) != (size_bytes, offsets):
            return None
        return file_digest(sealed.digest)

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
        return replace(earlier, kept=SHARED, source=source)

    def _share_equal(self, entry: SegmentEntry) -> SegmentEntry:
        """One file for both when the base has the same bytes from another file (of a restored directory). What the
        base says of its file is read again: it takes the place of bytes that are known to be good."""
        earlier = self.earlier
        if earlier is None or self.base is None or (earlier.digest, earlier.bytes) != (entry.digest, entry.bytes):
            return entry
        shared, double = layout.segment_log(self.base, self.start), self._kept.with_suffix(layout.TEMPORARY_SUFFIX)
        try:
            with opened(shared, os.O_RDONLY) as file:
                base = os.fstat(file)
                if os.path.samestat(base, self._kept.lstat()):
                    return entry  # a rename of one name over another of the same file would leave both
                known = self.start, self.imported_end, self.throttle
                content = LogPass(file, *known, sparse_end=entry.sparse_end).whole()
                if (content.bytes, file_digest(content.digest.digest())) != (entry.bytes, entry.digest):
                    return entry
                os.link(f"/proc/self/fd/{file}", double, src_dir_fd=file)
        except OSError:
            return entry
        double.replace(self._kept)
        return replace(entry, kept=SHARED)

    def _link(
        self, source: SegmentSource, file: SourceFile, digest: str | None, sparse_end: int
    ) -> SegmentEntry | None:
        """A second name for a sealed log, read only when its digest is not known. None where that is not possible."""
        try:
            source.link(self._kept)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return None
        if digest is not None and self.following is not None:
            return SegmentEntry(self.start, self.following, source.state.st_size, digest, LINKED, file)
        whole = LogPass(source.descriptor, self.start, self.imported_end, self.throttle, sparse_end=sparse_end)
        return self._entry(whole.whole(self.following), LINKED, file, sparse_end)

    def _copy_sealed(
        self, source: SegmentSource, file: SourceFile, digest: str | None, sparse_end: int
    ) -> SegmentEntry:
        with source.plain() as log, Writer(self._kept) as writer:
            known = self.start, self.imported_end, self.throttle
            content = LogPass(log, *known, copy=writer.write, sparse_end=sparse_end).whole(self.following)
        entry = self._entry(content, COPIED, file, sparse_end)
        if digest not in (None, entry.digest) and not entry.damage:
            return replace(entry, damage="it has another digest than its manifest says")
        return entry

    def _copy_tail(self, source: SegmentSource, bytes_min: int) -> SegmentEntry:
        with source.plain() as log, Writer(self._kept) as writer:
            content = LogPass(log, self.start, self.imported_end, self.throttle, copy=writer.write).tail(bytes_min)
        return self._entry(content, COPIED, None, 0)

    def _entry(self, content: PassResult, kept: str, source: SourceFile | None, sparse_end: int) -> SegmentEntry:
        digest = file_digest(content.digest.digest())
        end_offset = sparse_end or self.start + content.count
        entry = SegmentEntry(self.start, end_offset, content.bytes, digest, kept, source, None, content.damage)
        return replace(entry, records=content.count) if sparse_end else entry

    def _keep_manifest(self, source: SegmentSource) -> FileEntry | None:
        """Copies the manifest as it is, one of a compressed log as that of the plain one, which the backup has; one
        that says nothing to this version is only copied."""
        data, manifest = source.content, source.manifest
        if data is None:
            return None
        if manifest is not None and manifest.stored is not None:
            data = encode_manifest(replace(manifest, stored=None))
        with Writer(layout.segment_manifest(self.target, self.start)) as writer:
            writer.write(data)
        return FileEntry(len(data), file_digest(xxhash.xxh3_128_digest(data)))


def settled_starts(directory: Path) -> list[int]:
    """Start offsets of the segments, as two looks in a row see them: one alone may miss a segment whose log gets
    another name meanwhile. UnknownLayoutError, OSError."""
    starts = segment_starts(directory)
    while (again := segment_starts(directory)) != starts:
        starts = again
    return starts


def remove(target: Path, start_offset: int) -> None:
    layout.segment_log(target, start_offset).unlink(missing_ok=True)
    layout.segment_manifest(target, start_offset).unlink(missing_ok=True)
