"""The manifest beside every segment: what is known about its log, so that a recovery need not read all of it.

All integers little-endian; checksums are XXH3-64, seed 0. The engine makes the file with the segment, with section 5
where that is needed, and writes the checkpoints in place (native/src/log/manifest.c); whatever else changes, the file
is written anew and renamed.

    offset size field
    0      8    magic "SHRDMANI"
    8      4    version 1; 2 when there is an end offset (docs/adr/0028-format-version-2.md)
    12     1    layout of the log, in version 2 bits: 1 compressed (its file is .blocks), 8 sparse (it has no record for
                some of its offsets); 0 plain
    13     3    reserved, 0
    16     8    incarnation of the partition
    24     8    start offset of the segment
    32     8    born_at: server clock, microseconds; no record here is older; 0: not known (made by a recovery)
    40     8    log start offset: first offset of the partition when this was written (adr/0040); slots may know more
    48     8    version 2: end offset of the segment (exclusive); 0: not known
    56     8    checksum of bytes 0 to 56; magic, version, layout and this stay where they are in every version
    64     64   checkpoint slot A
    128    64   checkpoint slot B
    192         sections, back to back to the end of the file

    checkpoint slot: up to here log and index were on the device, and every record had been verified or was written by
    the engine. Slots are written alternately; the valid one with the higher sequence counts, so a torn write costs one.
    0      8    sequence, from 1; 0: never written
    8      8    bytes of the log
    16     8    count of records in them; 0: none of this was known yet
    24     8    timestamp of the first record
    32     8    timestamp of the last record
    40     8    log start of the partition; 0: as far as the head knows it. In a slot without records, too
    48     8    reserved, 0
    56     8    checksum of bytes 0 to 56

    section: u32 tag, u32 length, `length` bytes, u64 checksum of tag, length and bytes
    tag 1  sealed    u64 bytes, u64 count, u64 first timestamp, u64 last timestamp, 16 bytes XXH3-128 of the whole log
                     (canonical, big-endian); written once every record was verified and the log is on the device
    tag 2  isolated  pairs of u64 (first offset, end offset exclusive), ascending: withheld with the operator's consent
    tag 3  reserved for the states of idempotent producers
    tag 4  stored    u64 bytes, 16 bytes XXH3-128 of the file with the records, where that is not a plain log
    tag 5  counted   u64 microseconds by the believed clock, where times are ahead of that: when the segment was sealed;
                     with no section 1, when it was begun (docs/adr/0135-times-that-are-ahead.md)
    Sections with other tags are kept as they are; in version 2 one with bit 31 in its tag may not be passed over.

A manifest that is missing or damaged costs a scan of its log, never data. One of an unknown version or layout keeps the
partition closed.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from shardd.log import layout
from shardd.log.segment_layout import COMPRESSED, KNOWN, PLAIN, SegmentLayout, name_of
from shardd.protocol.record_layout import LAYOUT_SPARSE
from shardd.runtime.disk_errors import Trouble, trouble_of
from shardd.runtime.regular_files import SMALL_BYTES_MAX, open_regular, read_regular

MAGIC: Final = b"SHRDMANI"
VERSION: Final = 1
VERSION_2: Final = 2
TAG_SEALED: Final = 1
TAG_ISOLATED: Final = 2
TAG_STORED: Final = 4
TAG_COUNTED: Final = 5
TAG_MUST_KNOW: Final = 1 << 31

_HEAD: Final = struct.Struct("<8sIB3sQQQQQ")
_SLOT: Final = struct.Struct("<QQQQQQ8s")
_SEALED: Final = struct.Struct("<QQQQ16s")
_SECTION: Final = struct.Struct("<II")
_RANGE: Final = struct.Struct("<QQ")
_STORED: Final = struct.Struct("<Q16s")
_COUNTED: Final = struct.Struct("<Q")
_CHECKSUM: Final = struct.Struct("<Q")
_BLOCK_BYTES: Final = 64
_SECTIONS_AT: Final = 3 * _BLOCK_BYTES


class DamagedManifestError(ValueError):
    """The file is not a whole manifest; the log beside it has to be scanned."""


class UnknownManifestError(ValueError):
    """A later version made this file, or its log has a layout that this version cannot read."""


class UnknownLayoutError(UnknownManifestError):
    """The records of the segment are kept in a way that this version does not know."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The first `count` records of a log, `log_bytes` long. Timestamps in microseconds."""

    log_bytes: int
    count: int
    first_timestamp: int
    last_timestamp: int


class Sealed(Checkpoint, frozen=True):
    """A whole log that will never change, with the XXH3-128 of its bytes."""

    digest: bytes


class Stored(msgspec.Struct, frozen=True):
    """The file that has the records of a segment which is not plain, and the XXH3-128 of its bytes."""

    size_bytes: int
    digest: bytes


class Manifest(msgspec.Struct, frozen=True):
    """What the file says. `log_start`: the highest that its slots know. `isolated`: (first offset, end offset
    exclusive), ascending. `others`: sections that this version does not know, (tag, bytes). `end_offset` 0: not known.
    `sparse`: sealed, with less records than offsets. `stored`: sealed and compressed. `counted_us` 0: its times tell
    its age."""

    incarnation: int
    start_offset: int
    born_at: int = 0
    log_start_offset: int = 0
    checkpoint: Checkpoint | None = None
    sealed: Sealed | None = None
    isolated: tuple[tuple[int, int], ...] = ()
    others: tuple[tuple[int, bytes], ...] = ()
    end_offset: int = 0
    sparse: bool = False
    stored: Stored | None = None
    log_start: int = 0
    counted_us: int = 0

    def counted(self, timestamp: int, now_us: int) -> int:
        """When a record with that time counts as stored, in a sealed segment: then, unless it is yet to come."""
        return min(timestamp, self.counted_us) if self.counted_us and timestamp > now_us else timestamp

    @property
    def layout(self) -> SegmentLayout:
        """How the records are kept."""
        return PLAIN if self.stored is None else COMPRESSED

    @property
    def absent(self) -> int:
        """Offsets of the segment that have no record."""
        return self.end_offset - self.start_offset - self.sealed.count if self.sparse and self.sealed else 0


def _with_checksum(content: bytes) -> bytes:
    return content + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(content))


def _without_checksum(content: bytes) -> bytes | None:
    """The content before its checksum; None when that is wrong."""
    body = content[: -_CHECKSUM.size]
    return body if content[-_CHECKSUM.size :] == _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)) else None


def encode_manifest(manifest: Manifest) -> bytes:
    """Content of the file; the checkpoint gets slot A."""
    head = _HEAD.pack(
        MAGIC,
        VERSION_2 if manifest.end_offset or manifest.stored else VERSION,
        manifest.layout.bits | (LAYOUT_SPARSE if manifest.sparse else 0),
        bytes(3),
        manifest.incarnation,
        manifest.start_offset,
        manifest.born_at,
        manifest.log_start_offset,
        manifest.end_offset,
    )
    content = _with_checksum(head)
    point = manifest.checkpoint
    if point is None and not manifest.log_start:
        content += bytes(_BLOCK_BYTES)
    else:
        point = point or Checkpoint(0, 0, 0, 0)
        numbers = point.log_bytes, point.count, point.first_timestamp, point.last_timestamp, manifest.log_start
        content += _with_checksum(_SLOT.pack(1, *numbers, bytes(8)))
    content += bytes(_BLOCK_BYTES)
    sections = list(manifest.others)
    if manifest.counted_us:
        sections.insert(0, (TAG_COUNTED, _COUNTED.pack(manifest.counted_us)))
    if manifest.stored is not None:
        sections.insert(0, (TAG_STORED, _STORED.pack(manifest.stored.size_bytes, manifest.stored.digest)))
    if manifest.isolated:
        sections.insert(0, (TAG_ISOLATED, b"".join(_RANGE.pack(*each) for each in manifest.isolated)))
    if manifest.sealed is not None:
        point = manifest.sealed
        sealed = _SEALED.pack(
            point.log_bytes, point.count, point.first_timestamp, point.last_timestamp, manifest.sealed.digest
        )
        sections.insert(0, (TAG_SEALED, sealed))
    return content + b"".join(_with_checksum(_SECTION.pack(tag, len(body)) + body) for tag, body in sections)


def decode_manifest(content: bytes) -> Manifest:
    """DamagedManifestError, UnknownManifestError."""
    head = _without_checksum(content[:_BLOCK_BYTES]) if len(content) >= _BLOCK_BYTES else None
    if head is None or not head.startswith(MAGIC):
        raise DamagedManifestError("its head is damaged")
    _, version, log_layout, reserved, incarnation, start_offset, born_at, log_start_offset, end_offset = _HEAD.unpack(
        head
    )
    if version not in (VERSION, VERSION_2):
        raise UnknownManifestError(f"its version is {version}, this shardd knows versions {VERSION} and {VERSION_2}")
    later = version == VERSION_2
    _known_layout(log_layout)
    if log_layout and not later:
        raise UnknownManifestError(f"its version is {version}, which has no layout {log_layout}")
    slots = [_without_checksum(content[at : at + _BLOCK_BYTES]) for at in (_BLOCK_BYTES, 2 * _BLOCK_BYTES)]
    if later and (any(reserved) or any(slot is not None and any(slot[48:56]) for slot in slots)):
        raise UnknownManifestError("it says something that this shardd does not know")
    if len(content) < _SECTIONS_AT:
        raise DamagedManifestError("it is cut off")
    sections = _decode_sections(content)
    sealed = isolated = stored = None
    compressed = bool(log_layout & COMPRESSED.bits)
    counted_us = 0
    others = []
    for tag, body in sections:
        if later and tag & TAG_MUST_KNOW:
            raise UnknownManifestError(f"its section {tag - TAG_MUST_KNOW} is one that this shardd does not know")
        if tag == TAG_SEALED and len(body) == _SEALED.size and sealed is None:
            sealed = Sealed(*_SEALED.unpack(body))
        elif tag == TAG_ISOLATED and len(body) % _RANGE.size == 0 and isolated is None:
            isolated = tuple((first, end) for first, end in _RANGE.iter_unpack(body))
        elif tag == TAG_STORED and compressed and len(body) == _STORED.size and stored is None:
            stored = Stored(*_STORED.unpack(body))
        elif tag == TAG_COUNTED and len(body) == _COUNTED.size:
            (counted_us,) = _COUNTED.unpack(body)
        elif tag in (TAG_SEALED, TAG_ISOLATED, TAG_COUNTED) or (tag == TAG_STORED and compressed):
            raise DamagedManifestError(f"its section {tag} has no possible content")
        else:
            others.append((tag, body))
    checkpoint, log_start_of_slots = _decode_slots(slots)
    manifest = Manifest(
        incarnation,
        start_offset,
        born_at,
        log_start_offset,
        checkpoint,
        sealed,
        isolated or (),
        tuple(others),
        end_offset if later else 0,
        bool(log_layout & LAYOUT_SPARSE),
        stored,
        log_start_of_slots,
        counted_us,
    )
    if compressed and (sealed is None or stored is None or not stored.size_bytes):
        raise DamagedManifestError("its log is compressed, and it does not say how long it is")
    if manifest.sparse and (sealed is None or manifest.absent <= 0):
        raise DamagedManifestError("it has no offset without a record, but a sparse log")
    return manifest


def _known_layout(bits: int) -> SegmentLayout:
    known = KNOWN.get(bits & ~LAYOUT_SPARSE)
    if known is None:
        raise UnknownLayoutError(f"this version does not know layout {bits} ({name_of(bits)})")
    return known


def _decode_slots(slots: list[bytes | None]) -> tuple[Checkpoint | None, int]:
    """The newest checkpoint, and the highest log start of both. A slot that is not whole (None) says nothing."""
    newest: tuple[int, Checkpoint] | None = None
    highest = 0
    for slot in slots:
        if slot is None:
            continue
        sequence, *values, log_start, _ = _SLOT.unpack(slot)
        point = Checkpoint(*values)
        if not sequence:
            continue
        highest = max(highest, log_start)
        if newest is None or sequence > newest[0]:
            newest = sequence, point
    return (None if newest is None or not newest[1].count else newest[1]), highest


def _decode_sections(content: bytes) -> list[tuple[int, bytes]]:
    sections = []
    at = _SECTIONS_AT
    while at < len(content):
        if len(content) - at < _SECTION.size:
            raise DamagedManifestError("a section is cut off")
        tag, length = _SECTION.unpack_from(content, at)
        end = at + _SECTION.size + length + _CHECKSUM.size
        body = _without_checksum(content[at:end]) if end <= len(content) else None
        if body is None:
            raise DamagedManifestError("a section is damaged")
        sections.append((tag, body[_SECTION.size :]))
        at = end
    return sections


def read_manifest(directory: Path, start_offset: int) -> Manifest | None:
    """The manifest of the segment that starts there, None without one. DamagedManifestError, UnknownManifestError (both
    ValueError, with the path in the text), OSError."""
    path = layout.segment_manifest(directory, start_offset)
    content = _content(path, SMALL_BYTES_MAX)
    if content is None:
        return None
    try:
        manifest = decode_manifest(content)
    except ValueError as error:
        raise type(error)(f"{path}: {error}") from None
    if manifest.start_offset != start_offset:
        raise DamagedManifestError(f"{path}: it is that of the segment {manifest.start_offset}")
    return manifest


def read_layout(directory: Path, start_offset: int) -> SegmentLayout:
    """How the records of that segment are kept, plain without a manifest: the head tells it in every version.
    DamagedManifestError, UnknownLayoutError (with the path in the text), OSError."""
    path = layout.segment_manifest(directory, start_offset)
    content = _content(path)
    if content is None:
        return PLAIN
    head = _without_checksum(content) if len(content) == _BLOCK_BYTES else None
    if head is None or not head.startswith(MAGIC):
        raise DamagedManifestError(f"{path}: its head is damaged")
    try:
        return _known_layout(_HEAD.unpack(head)[2])
    except UnknownLayoutError as error:
        raise UnknownLayoutError(f"{path}: {error}") from None


def _content(path: Path, bytes_max: int | None = None) -> bytes | None:
    """The whole file, or without a bound what is enough for the layout; None without one. One that has more bytes than
    it can have or that the device does not give is a damaged one. DamagedManifestError; OSError, of what passes by
    itself or is no file."""
    try:
        if bytes_max is not None:
            return read_regular(path, bytes_max)
        descriptor = open_regular(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _as_damage(path, error) from error
    try:
        return os.pread(descriptor, _BLOCK_BYTES, 0)
    except OSError as error:
        raise _as_damage(path, error) from error
    finally:
        os.close(descriptor)


def _as_damage(path: Path, error: OSError | ValueError) -> OSError | ValueError:
    if isinstance(error, OSError) and trouble_of(error) is not Trouble.DEVICE:
        return error
    return DamagedManifestError(f"{path} cannot be read ({error})")


def write_manifest(directory: Path, manifest: Manifest, *, durable: bool = True) -> None:
    """Writes the file whole. Never for the active segment of an open partition: the engine writes checkpoints there.
    Without `durable` a power loss may damage it, which costs a scan. OSError."""
    target = layout.segment_manifest(directory, manifest.start_offset)
    if durable:
        layout.write_durably(target, encode_manifest(manifest))
        return
    layout.write_whole(target, encode_manifest(manifest))
