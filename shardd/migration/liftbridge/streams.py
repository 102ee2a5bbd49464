"""Finds the streams in a data directory of Liftbridge: each directory has the unescaped name of its stream. The Raft
logs with the settings of the streams are not read: options name the settings, or they are derived (`Subject`)."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from shardd.config.liftbridge import parse_word
from shardd.metadata.liftbridge_state import SUBJECT_BYTES_MAX
from shardd.migration.errors import MigrationError
from shardd.protocol.liftbridge.api_messages import CreateStreamRequest
from shardd.protocol.liftbridge.creation import RESERVED_STREAMS, CreationError, is_subject, new_stream
from shardd.protocol.limits import PARTITIONS_PER_REQUEST_MAX
from shardd.runtime.regular_files import read_regular

STREAMS: Final = "streams"
RAFT: Final = "raft"
CURSORS: Final = "__cursors"
ACTIVITY: Final = "__activity"
_DEPTH_MAX: Final = 32
_ENTRIES_MAX: Final = 2_000_000
_FIELD_1: Final = 1 << 3 | 2
_SERVER_FILE_BYTES_MAX: Final = 4_096
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_LOG: Final = re.compile(r"[0-9]{20}\.log", re.ASCII)


class SourcePartition(msgspec.Struct, frozen=True):
    """`directory` None: there should be one."""

    id: int
    directory: Path | None


class SourceStream(msgspec.Struct, frozen=True):
    """`source`: its name there; `name`: here."""

    source: str
    name: str
    partitions: tuple[SourcePartition, ...]


def find_streams(directory: Path, names: Mapping[str, str]) -> tuple[list[SourceStream], dict[str, str]]:
    """Streams by their names, and those that cannot be here with a sentence. `names`: those that get another one.
    MigrationError, OSError."""
    if not _is_directory(directory / STREAMS):
        raise MigrationError(f"{directory} is no data directory of Liftbridge: it has no directory {STREAMS}")
    found: dict[str, dict[int, Path]] = {}
    for path in _partitions(directory / STREAMS, directory / STREAMS, 0, [0]):
        name = str(path.parent.relative_to(directory / STREAMS))
        found.setdefault(name, {})[int(path.name)] = path
    missing = sorted(set(names) - set(found))
    if missing:
        raise MigrationError(f"{directory} has no stream {missing[0]!r}")
    streams: list[SourceStream] = []
    refused: dict[str, str] = {}
    for source, partitions in sorted(found.items()):
        name = names.get(source, source)
        count = max(partitions) + 1
        sentence = _refusal(name, count)
        if sentence:
            refused[source] = sentence
        elif any(stream.name == name for stream in streams):
            refused[source] = f"another stream has the name {name!r}"
        else:
            parts = tuple(SourcePartition(number, partitions.get(number)) for number in range(count))
            streams.append(SourceStream(source, name, parts))
    return streams, refused


def check_stopped(directory: Path) -> None:
    """A Liftbridge server that runs holds locks on its databases. MigrationError."""
    for path in sorted((directory / RAFT).rglob("*.db")):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MigrationError(f"{directory} is in use by a Liftbridge server: stop it first") from None


def server_id_of(directory: Path) -> str:
    """The name by which clients know the server: field 1 of a protobuf message. "" where there is none that is one."""
    try:
        content = read_regular(directory / "liftbridge", _SERVER_FILE_BYTES_MAX)
    except (OSError, ValueError):
        return ""
    if len(content) < 2 or content[0] != _FIELD_1 or content[1] >= 128:
        return ""
    try:
        return parse_word(content[2 : 2 + content[1]].decode())
    except ValueError:
        return ""


def _refusal(name: str, partitions: int) -> str:
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        return f"it has {partitions} partitions, a stream has at most {PARTITIONS_PER_REQUEST_MAX}"
    if name in RESERVED_STREAMS:
        return ""
    if not _is_text(name):
        return "its name is not UTF-8"
    if "/" in name:
        return "its name is that of a path"
    try:
        new_stream(CreateStreamRequest(name=name, subject="a", partitions=partitions))
    except CreationError as error:
        return str(error)
    return ""


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _partitions(root: Path, directory: Path, depth: int, seen: list[int]) -> Iterator[Path]:
    """Directories with a number as name and log files in them. Nothing is followed out of `root`."""
    with os.scandir(directory) as entries:
        for entry in entries:
            seen[0] += 1
            if seen[0] > _ENTRIES_MAX:
                raise MigrationError(f"{root} has more than {_ENTRIES_MAX} entries")
            if entry.is_symlink():
                raise MigrationError(
                    f"{entry.path} is a symbolic link; only a directory that lies in one place can be imported"
                )
            if not entry.is_dir(follow_symlinks=False):
                continue
            if depth >= _DEPTH_MAX:
                raise MigrationError(f"{entry.path} lies too deep to be a stream")
            path = Path(entry.path)
            if depth and _NUMBER.fullmatch(entry.name) and _has_logs(path):
                yield path
            yield from _partitions(root, path, depth + 1, seen)


def _has_logs(directory: Path) -> bool:
    with os.scandir(directory) as entries:
        return any(_LOG.fullmatch(entry.name) for entry in entries)


class Subject(msgspec.Struct, frozen=True):
    """`origin`: "option"; "messages", on which they arrived; "name", when they say nothing or several things."""

    text: str
    origin: str


def subject_of(stream: SourceStream, given: Mapping[str, str], seen: Mapping[int, set[str]]) -> Subject:
    """`seen`: subjects on which messages of each partition have arrived. MigrationError for a given one that is
    none."""
    if stream.source in given:
        if not _fits(given[stream.source]):
            raise MigrationError(f"{given[stream.source]!r} is no subject of NATS")
        return Subject(given[stream.source], "option")
    bases = {
        subject.removesuffix(f".{partition}") if partition else subject
        for partition, subjects in seen.items()
        for subject in subjects
    }
    wild = {base for base in bases if not {"*", ">"}.isdisjoint(base.split("."))}
    likely = wild or bases  # published by name to a stream with wildcards, they arrive on these
    if len(likely) == 1 and _fits(*likely):
        return Subject(next(iter(likely)), "messages")
    return Subject(stream.name, "name")


def _fits(subject: str) -> bool:
    return is_subject(subject) and len(subject.encode()) <= SUBJECT_BYTES_MAX
