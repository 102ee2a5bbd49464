"""Names inside a Parquet archive, and what a directory of it holds:

    <root>/<stream>/<topic>/<partition>-<incarnation>-<start offset, 20 digits>-<end offset, exclusive, 20
    digits>.parquet
    <root>/<stream>/<topic>/<the same four numbers>.gap

A `.gap` file is empty and records offsets that the archive does not hold because the server had deleted them: those
below its first file (start 0, also when there are none), and those that a run left out with failOnDataLoss=false. So
whatever no name covers is missing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import pyarrow.fs as pafs

from shardd.spark.piece import Piece, PieceOrigin
from shardd.spark.positions import TopicName

FILE_SUFFIX: Final = "parquet"
GAP_SUFFIX: Final = "gap"
_NAME: Final = re.compile(r"(\d+)-(\d+)-(\d{20})-(\d{20})\.(parquet|gap)", re.ASCII)
_NAME_MAX: Final = 255  # bytes of one name, as file systems have it
_KEPT_OF_LONG: Final = 150
_OWN_DIRECTORY: Final = {".": "%2E", "..": "%2E%2E"}
_SETTLED_S: Final = 1.0  # a directory that changed this recently may change again within one tick of its clock
_REMOTE_AGE_S: Final = 2.0
_LOCK_PAUSE_S: Final = 0.01
Range = tuple[int, int]


class ArchiveConflictError(RuntimeError):
    """Another run archives, or has archived, the same offsets."""


def escape(name: str) -> str:
    """A stream or topic as the name of one directory; two names never share one.

    Percent-encoded; "." and ".." would be other directories, and a name that is too long keeps its beginning and gets
    its SHA-256 behind "%h", which no encoded name contains.
    """
    encoded = quote(name, safe="")
    if encoded in _OWN_DIRECTORY:
        return _OWN_DIRECTORY[encoded]
    if len(encoded) <= _NAME_MAX:
        return encoded
    return f"{encoded[:_KEPT_OF_LONG]}%h{hashlib.sha256(name.encode()).hexdigest()}"


def unescape(directory: str) -> str | None:
    """The name that `escape` was given; None when only its digest is left of it."""
    return None if "%h" in directory else unquote(directory)


def topic_path(root: str, name: TopicName) -> str:
    """Directory of a topic below the archive's root."""
    return f"{root.rstrip('/') or '/'}/{escape(name.stream)}/{escape(name.topic)}"


def file_name(partition: int, incarnation: int, start: int, end: int, suffix: str = FILE_SUFFIX) -> str:
    return f"{partition}-{incarnation}-{start:020}-{end:020}.{suffix}"


def parse_file_name(name: str) -> tuple[int, int, int, int] | None:
    """(partition, incarnation, start, end) of an archive file, or None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None or match[5] != FILE_SUFFIX or int(match[3]) >= int(match[4]):
        return None
    return int(match[1]), int(match[2]), int(match[3]), int(match[4])


def file_system(path: str) -> tuple[pafs.FileSystem, str]:
    """File system and path in it, from a local path or a URI such as s3://bucket/dir."""
    if "://" in path:
        system, inner = pafs.FileSystem.from_uri(path)
        return system, inner
    return pafs.LocalFileSystem(), path


@dataclass(slots=True)
class History:
    """What the archive has of one incarnation of a partition. `files` by start offset, of overlapping ones the longer
    first; `gaps` are recorded, `begun` tells that the one below the first file is among them."""

    files: list[Piece] = field(default_factory=list)
    gaps: list[Range] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        return any(start == 0 for start, _ in self.gaps)

    @property
    def begin(self) -> int | None:
        """First offset that the archive must hold; None when nothing was archived yet."""
        if self.begun:
            return min(end for start, end in self.gaps if start == 0)
        return min((each.start for each in self.files), default=None)

    def missing(self, end: int) -> list[Range]:
        """Offsets from the beginning up to `end` that neither a file nor a recorded gap covers."""
        at, found = self.begin or 0, []
        for start, upto in sorted([*((each.start, each.end) for each in self.files), *self.gaps]):
            if start > at and at < end:
                found.append((at, min(start, end)))
            at = max(at, upto)
        if at < end:
            found.append((at, end))
        return found

    def doubled(self) -> list[Range]:
        """Offsets that two files have."""
        at, found = 0, []
        for each in self.files:
            if each.start < at:
                found.append((each.start, min(at, each.end)))
            at = max(at, each.end)
        return found

    def overlapping(self, start: int, end: int) -> Piece | None:
        """A file with some of [start, end)."""
        return next((each for each in self.files if each.start < end and start < each.end), None)


Listing = dict[tuple[int, int], History]  # by partition and incarnation


def list_topic(root: str, name: TopicName) -> Listing:
    """All of one topic, as it is now. An empty one when the directory is not there."""
    directory = topic_path(root, name)
    found: Listing = {}
    for each in _names(directory):
        match = _NAME.fullmatch(each)
        if match is None:
            continue
        partition, incarnation, start, end = (int(match[n]) for n in range(1, 5))
        if match[5] == GAP_SUFFIX:
            found.setdefault((partition, incarnation), History()).gaps.append((start, end))
        elif start < end:
            piece = Piece(PieceOrigin.ARCHIVE, start, end, f"{directory}/{each}")
            found.setdefault((partition, incarnation), History()).files.append(piece)
    for history in found.values():
        history.files.sort(key=lambda each: (each.start, -each.end))
    return found


def _names(directory: str) -> list[str]:
    if "://" in directory:
        system, inner = file_system(directory)
        return [each.base_name for each in system.get_file_info(pafs.FileSelector(inner, allow_not_found=True))]
    try:
        with os.scandir(directory) as entries:
            return [each.name for each in entries]
    except FileNotFoundError:
        return []


@dataclass(slots=True)
class _Kept:
    listing: Listing
    changed_ns: int
    taken_s: float  # by the clock that files get their times from
    age_from_s: float  # by the monotonic one


class _Cache:
    """The last listing of each topic of this process, for the many questions of one plan.

    A local directory that has another time of change is listed again, and one that changed in the last second always
    is: two changes within one tick of the clock look the same. A remote one is listed again after two seconds.
    """

    TOPICS_MAX: Final = 64

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def get(self, root: str, name: TopicName) -> Listing:
        directory = topic_path(root, name)
        changed_ns = 0 if "://" in directory else _changed_ns(directory)
        with self._lock:
            kept = self._kept.get(directory)
            if kept is not None and kept.changed_ns == changed_ns and self._settled(kept):
                return kept.listing
            made = _Kept(list_topic(root, name), changed_ns, time.time(), time.monotonic())
            self._kept.pop(directory, None)
            self._kept[directory] = made
            while len(self._kept) > self.TOPICS_MAX:
                del self._kept[next(iter(self._kept))]
            return made.listing

    def _settled(self, kept: _Kept) -> bool:
        if kept.changed_ns == 0:
            return time.monotonic() - kept.age_from_s < _REMOTE_AGE_S
        return kept.taken_s - kept.changed_ns / 1e9 > _SETTLED_S


def _changed_ns(directory: str) -> int:
    try:
        return Path(directory).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


_cache: Final = _Cache()


def find(root: str, name: TopicName, partition: int, incarnation: int) -> list[Piece]:
    """The files of one incarnation of a partition, by start offset; of overlapping ones the longer first. One listing
    of the topic answers for all of its partitions."""
    history = _cache.get(root, name).get((partition, incarnation))
    return [] if history is None else list(history.files)


@contextmanager
def locked(directory: str, file: str, *, wait_s: float) -> Iterator[None]:
    """Holds a lock of a local directory. `ArchiveConflictError` when another process has it for longer than `wait_s`;
    the kernel gives it back when its process ends, however that ends."""
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    # nobody but owner and group may open, and so hold it
    descriptor = os.open(path / file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise ArchiveConflictError(f"another process holds {path / file}") from error
                time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)
