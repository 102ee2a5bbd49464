"""The spool of segments that leave their log and are to be archived (docs/adr/0047-archive-before-deletion.md).

<data>/archive/incoming/<stream>.<topic>.<partition>.<incarnation>-<start offset, 20 digits>.<suffix>
    files of a segment, as the engine has renamed them
<data>/archive/spool/<stream>/<topic>/<partition>/<incarnation>-<start offset>-<end offset, exclusive, 20 digits each>/
    manifest.json    what the segment is, `SpoolManifest`; there as soon as the directory is
    incarnation, <start offset>.log (or .blocks), .index, .manifest    as in the directory of a partition
    ACK              `Acknowledgement`: whoever has archived it. The server checks it and removes the entry

Ids stand in the names, so that they are safe and stay when somebody renames a topic. An entry comes into being by one
rename, a manifest and an ACK, too: what is seen is whole. The parts that block run in helper threads.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from shardd.engine import _native
from shardd.log import layout
from shardd.log.imported import end_of_import
from shardd.log.incarnation import encode_incarnation, read_incarnation
from shardd.log.layout import PartitionIds
from shardd.log.manifest import Manifest, read_manifest
from shardd.log.sealing import seal_segment
from shardd.log.segment_reader import log_path, opened
from shardd.log.segments import scan_segment
from shardd.log.trash import move_to_trash
from shardd.runtime.regular_files import read_regular
from shardd.runtime.throttle import Throttle

MANIFEST: Final = "manifest.json"
ACK: Final = "ACK"
VERSION: Final = 1
SETTLE_S: Final = 0.5  # the engine may be in the middle of its renames
_SPOOL: Final = "spool"
_BUILDING: Final = ".building"
_LOGS: Final = ("log", "blocks")
_FILE: Final = re.compile(
    r"([0-9]+)\.([0-9]+)\.([0-9]+)\.([0-9]+)-([0-9]{20})\.(log|blocks|blocks\.tmp|index|manifest)", re.ASCII
)
_ENTRY: Final = re.compile(r"([0-9]+)-([0-9]{20})-([0-9]{20})", re.ASCII)


class UnfitError(ValueError):
    """The files are no whole segment, or an ACK is not for its entry; a sentence."""


class Named(msgspec.Struct, frozen=True):
    id: int
    name: str


class SpoolManifest(msgspec.Struct, frozen=True):
    """What an entry holds: offsets [start, end), of which `records` have a message. `file` has them, `digest` is the
    XXH3-128 of its bytes, in hexadecimal digits. Timestamps in microseconds."""

    version: int
    stream: Named
    topic: Named
    partition: int
    incarnation: int
    start: int
    end: int
    records: int
    first_timestamp: int
    last_timestamp: int
    log_bytes: int
    layout: str
    file: str
    file_bytes: int
    digest: str
    archive: str
    encrypted: bool = False


class ArchivedFile(msgspec.Struct, frozen=True):
    path: str
    rows: int
    bytes: int
    digest: str


class Acknowledgement(msgspec.Struct, frozen=True):
    """`digest` and `records` are those of the manifest. `table_version`: the end offset that a table has recorded."""

    digest: str
    records: int
    target: str
    files: tuple[ArchivedFile, ...] = ()
    table_version: int | None = None


class Segment(msgspec.Struct, frozen=True, order=True):
    """One that has left its log."""

    ids: PartitionIds
    incarnation: int
    start: int


def spool_directory(data: Path) -> Path:
    return data / layout.ARCHIVE / _SPOOL


def incoming_prefix(data: Path, ids: PartitionIds, incarnation: int) -> str:
    """Beginning of the names that the engine gives files of segments."""
    return str(layout.incoming_directory(data) / f"{'.'.join(map(str, ids))}.{incarnation}")


# ---- incoming -> entry ----


def incoming(data: Path) -> list[Segment]:
    """Segments that wait to become entries, in order, also those whose files are being renamed. OSError."""
    return sorted(_arrived(data))


class Settling:
    """Looks for segments with all their files: those that a look finds as one `SETTLE_S` before has found them. By the
    monotonic clock: times of files are those of the wall clock, which may jump between a rename and a look."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._since: dict[Segment, tuple[frozenset[str], float]] = {}

    def incoming(self, data: Path) -> list[Segment]:
        """In order. OSError."""
        now_s, before = self._now_s(), self._since
        self._since = {}
        for segment, names in _arrived(data).items():
            known, since_s = before.get(segment, (names, now_s))
            self._since[segment] = names, since_s if known == names else now_s
        return sorted(each for each, (names, at_s) in self._since.items() if not names or now_s - at_s >= SETTLE_S)


def _arrived(data: Path) -> dict[Segment, frozenset[str]]:
    """With the names that the engine has given; none of them: its entry is being made already."""
    found: dict[Segment, set[str]] = {}
    for name in _names(layout.incoming_directory(data)):
        match = _FILE.fullmatch(name.removesuffix(_BUILDING))
        if match is None:
            continue
        stream, topic, partition, incarnation, start = map(int, match.groups()[:5])
        names = found.setdefault(Segment((stream, topic, partition), incarnation, start), set())
        if not name.endswith(_BUILDING):
            names.add(name)
    return {segment: frozenset(names) for segment, names in found.items()}


def held(data: Path) -> Path | None:
    """The directory of a segment that is being made an entry. One that stays cannot be made one: it is damaged, and
    those of its partition behind it wait. OSError."""
    directory = layout.incoming_directory(data)
    return next((directory / name for name in sorted(_names(directory)) if name.endswith(_BUILDING)), None)


def make_entry(
    data: Path, segment: Segment, names: tuple[str, str], archive: str, throttle: Throttle
) -> tuple[Path, SpoolManifest] | None:
    """`names` of stream and topic. May be done again after a crash at any point. None: its log is in its partition, or
    again, after a power loss; it leaves later. OSError, UnfitError, StoppedError."""
    with _opened_home(data, segment) as home:
        return _made_entry(data, home, segment, names, archive, throttle)


def _made_entry(
    data: Path, home: Path | None, segment: Segment, names: tuple[str, str], archive: str, throttle: Throttle
) -> tuple[Path, SpoolManifest] | None:
    if home is not None and _is_at_home(data, home, segment):
        forget(data, segment)
        return None
    building = _gathered(data, home, segment)
    manifest, sentence = _sealed(building, segment, throttle)
    if sentence is not None or manifest is None or manifest.sealed is None:
        raise UnfitError(sentence or f"{building}: the segment has no manifest and cannot be given one")
    sealed, path = manifest.sealed, log_path(building, segment.start)
    found = SpoolManifest(
        VERSION,
        Named(segment.ids[0], names[0]),
        Named(segment.ids[1], names[1]),
        segment.ids[2],
        segment.incarnation,
        segment.start,
        manifest.end_offset or segment.start + sealed.count,
        sealed.count,
        sealed.first_timestamp,
        sealed.last_timestamp,
        sealed.log_bytes,
        "sparse" if manifest.sparse else manifest.layout.name,
        path.name,
        path.stat().st_size,
        (manifest.stored or sealed).digest.hex(),
        archive,
    )
    layout.write_durably(building / MANIFEST, msgspec.json.format(msgspec.json.encode(found)))
    entry = spool_directory(data) / relative_path(found)
    entry.parent.mkdir(parents=True, exist_ok=True)
    if (entry / MANIFEST).exists():  # a power loss has brought back what had left
        forget(data, segment)
        return entry, read_entry(entry)
    # First what tells that it has left: else a power loss could leave it in both places, or a log that begins anew.
    for directory in (building.parent, home):
        if directory is not None:
            layout.sync_directory(directory)
    _sync_names_to(entry.parent, data)
    building.rename(entry)
    layout.sync_directory(entry.parent)
    return entry, found


def _sync_names_to(directory: Path, data: Path) -> None:
    """Before something moves there: a later sync of the directory makes the move durable, and a power loss would take
    the directory with all that is in it. OSError."""
    for parent in directory.parents:
        if parent.is_relative_to(data):
            layout.sync_directory(parent)


def forget(data: Path, segment: Segment) -> None:
    """What is on its way goes to the trash. OSError."""
    prefix = Path(incoming_prefix(data, segment.ids, segment.incarnation))
    for path in sorted(prefix.parent.glob(f"{prefix.name}-{segment.start:0{layout.START_OFFSET_DIGITS}d}.*")):
        move_to_trash(path, layout.trash_directory(data), durable=False)


@contextmanager
def _opened_home(data: Path, segment: Segment) -> Iterator[Path | None]:
    """The directory of the partition that the segment is of, wherever it is moved meanwhile; None when it is gone:
    another incarnation in its place has nothing to do with the segment. OSError, ValueError (an unknown marker)."""
    path = layout.partition_directory(data, *segment.ids)
    with ExitStack() as stack:
        home = None
        with suppress(FileNotFoundError, NotADirectoryError):
            home = Path(f"/proc/self/fd/{stack.enter_context(opened(path, os.O_RDONLY | os.O_DIRECTORY))}")
        yield home if home is not None and read_incarnation(home) == segment.incarnation else None


def _is_at_home(data: Path, home: Path, segment: Segment) -> bool:
    """Whether only files beside its log are here: the log leaves behind what a change of its layout has left, and
    before its index. A crash may come in between; what is missing then a recovery makes again."""
    prefix = Path(incoming_prefix(data, segment.ids, segment.incarnation))
    stem = f"{segment.start:0{layout.START_OFFSET_DIGITS}d}"

    def has(suffix: str) -> bool:
        building = prefix.with_name(f"{prefix.name}-{stem}.log{_BUILDING}")
        return prefix.with_name(f"{prefix.name}-{stem}.{suffix}").exists() or (building / f"{stem}.{suffix}").exists()

    at_home = [each for each in _LOGS if layout.segment_file(home, segment.start, each).exists()]
    return bool(at_home) and not has("log") and (at_home == ["log"] or not has("blocks"))


def _sealed(building: Path, segment: Segment, throttle: Throttle) -> tuple[Manifest | None, str | None]:
    """Its manifest, or why it has none. A lost index is made again. UnfitError, OSError, StoppedError."""
    try:
        if not layout.segment_index(building, segment.start).exists():
            scan_segment(building, segment.start, 0, end_of_import(building))
        _, sentence = seal_segment(building, segment.start, segment.incarnation, throttle)
        return (None, sentence) if sentence is not None else (read_manifest(building, segment.start), None)
    except UnfitError:
        raise
    except ValueError as error:  # damaged, or of a later version
        raise UnfitError(str(error)) from error


def _gathered(data: Path, home: Path | None, segment: Segment) -> Path:
    """A directory with all files of the segment, also of those that a crash has left at their old place."""
    prefix = Path(incoming_prefix(data, segment.ids, segment.incarnation))
    stem = f"{segment.start:0{layout.START_OFFSET_DIGITS}d}"
    building = prefix.with_name(f"{prefix.name}-{stem}.log{_BUILDING}")
    building.mkdir(exist_ok=True)
    _sync_names_to(building, data)
    layout.write_whole(building / layout.INCARNATION, encode_incarnation(segment.incarnation))
    left = home is not None and not any(layout.segment_file(home, segment.start, each).exists() for each in _LOGS)
    for suffix in ("log", "blocks", "index", "manifest"):
        for source in (
            prefix.with_name(f"{prefix.name}-{stem}.{suffix}"),
            *((layout.segment_file(home, segment.start, suffix),) if home is not None and left else ()),
        ):
            if source.exists() and not (building / f"{stem}.{suffix}").exists():
                source.rename(building / f"{stem}.{suffix}")
    prefix.with_name(f"{prefix.name}-{stem}.blocks.tmp").unlink(missing_ok=True)
    if home is not None and (home / layout.IMPORTED).exists():
        layout.write_whole(building / layout.IMPORTED, read_regular(home / layout.IMPORTED))
    return building


def relative_path(manifest: SpoolManifest) -> Path:
    """Below the spool, and below a directory that segments are archived to."""
    place = Path(str(manifest.stream.id), str(manifest.topic.id), str(manifest.partition))
    return place / f"{manifest.incarnation}-{manifest.start:020}-{manifest.end:020}"


# ---- entries ----


def entries(spool: Path) -> Iterator[Path]:
    """Every entry, by partition and offset. What has no manifest is none."""
    for stream in _numbers(spool):
        for topic in _numbers(stream):
            for partition in _numbers(topic):
                names = [name for name in _names(partition) if _ENTRY.fullmatch(name)]
                for name in sorted(names, key=lambda name: tuple(map(int, name.split("-")))):
                    if (partition / name / MANIFEST).exists():
                        yield partition / name


def _numbers(directory: Path) -> list[Path]:
    return [directory / name for name in sorted(_names(directory)) if layout.parse_id(name) is not None]


def _names(directory: Path) -> list[str]:
    try:
        return [each.name for each in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_entry(entry: Path) -> SpoolManifest:
    """OSError, UnfitError."""
    try:
        found = msgspec.json.decode(read_regular(entry / MANIFEST), type=SpoolManifest)
    except ValueError as error:  # damaged, or too large
        raise UnfitError(f"{entry / MANIFEST}: {error}") from error
    if found.version != VERSION or Path(found.file).name != found.file:
        raise UnfitError(f"{entry / MANIFEST} has version {found.version}, or a file elsewhere")
    return found


def digest_of(path: Path) -> str:
    """OSError."""
    with opened(path, os.O_RDONLY) as file:
        return _native.digest_file(file, os.fstat(file).st_size).hex()


def verify(entry: Path, manifest: SpoolManifest) -> None:
    """Whether the file is the one that was sealed. OSError, UnfitError."""
    if (entry / manifest.file).stat().st_size != manifest.file_bytes or (
        digest_of(entry / manifest.file) != manifest.digest
    ):
        raise UnfitError(f"{entry / manifest.file} is not what {MANIFEST} says")


def acknowledge(entry: Path, acknowledgement: Acknowledgement) -> None:
    """Only once the archive has it for good. OSError."""
    layout.write_durably(entry / ACK, msgspec.json.format(msgspec.json.encode(acknowledgement)))


def read_acknowledgement(entry: Path, manifest: SpoolManifest) -> Acknowledgement | None:
    """None: there is none yet. OSError, UnfitError."""
    try:
        found = msgspec.json.decode(read_regular(entry / ACK), type=Acknowledgement)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UnfitError(f"{entry / ACK}: {error}") from error
    if (found.digest, found.records) != (manifest.digest, manifest.records):
        raise UnfitError(f"{entry / ACK} is that of another segment")
    if found.files and sum(each.rows for each in found.files) < manifest.records:
        raise UnfitError(f"{entry / ACK} names fewer rows than the segment has messages")
    return found
