"""The end of an import: moves staged segments to their place and writes their records in the metadata (importer.py)."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from shardd.log import layout
from shardd.log.directory_info import IMPORTING, MAGIC, DirectoryInfo, write_info
from shardd.log.imported import OPEN_END
from shardd.log.segment_layout import COMPRESSED, PLAIN
from shardd.metadata.apply import created_id
from shardd.metadata.commands import DeleteTopic, Ref
from shardd.metadata.offline import OfflineError, OfflineMetadata
from shardd.metadata.state import State, Stream, Topic
from shardd.migration.errors import MigrationError
from shardd.migration.liftbridge.creation import creation_of, home_of
from shardd.migration.liftbridge.partition import PartitionFigures
from shardd.migration.liftbridge.staging import StagedSegment, complete

_PLACED: Final = "placed.json"


class Placed(msgspec.Struct, frozen=True):
    """Where a stream was to be, and the record that was to create it."""

    incarnation: int
    path: str


class Staged(msgspec.Struct, frozen=True):
    """A partition that is ready. `fingerprint`: of what it was made from. `falling`: some timestamp fell."""

    fingerprint: str
    figures: PartitionFigures
    segments: list[StagedSegment]
    falling: bool


class StagedStream(msgspec.Struct):
    """A stream below the working directory: `partitions/<id>/` and, once it is ready, `<id>.json`."""

    name: str
    partitions: int
    directory: Path
    subject: str = ""

    @property
    def staged(self) -> Path:
        return self.directory / layout.PARTITIONS

    @property
    def placed(self) -> Placed | None:
        """When it was being placed."""
        with suppress(FileNotFoundError):
            return msgspec.json.decode((self.directory / _PLACED).read_bytes(), type=Placed)
        return None

    def write_placed(self, placed: Placed) -> None:
        """Before anything has its place. OSError."""
        layout.write_durably(self.directory / _PLACED, msgspec.json.encode(placed))

    def begin(self, partition: int) -> Path:
        """An empty directory for it. OSError."""
        (self.directory / f"{partition}.json").unlink(missing_ok=True)
        directory = self.staged / str(partition)
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        return directory

    def write(self, partition: int, staged: Staged) -> None:
        """It is ready. OSError."""
        layout.sync_directory(self.staged / str(partition))
        layout.write_durably(self.directory / f"{partition}.json", msgspec.json.encode(staged))

    def read(self, partition: int) -> Staged | None:
        """What an import has left that was interrupted."""
        with suppress(FileNotFoundError, msgspec.MsgspecError):
            return msgspec.json.decode((self.directory / f"{partition}.json").read_bytes(), type=Staged)
        return None


class Placing:
    """Into the data directory `data`, whose lock is held."""

    def __init__(self, data: Path, namespace: str, server_id: str) -> None:
        """`server_id`: that of the source; "": it has none."""
        self._data, self._namespace, self._server_id = data, namespace, server_id

    def place(self, streams: list[StagedStream], info: DirectoryInfo) -> None:
        """MigrationError; OSError, LogError, ApplyError. Until it is through no server starts on the directory."""
        if streams:
            write_info(self._data, replace(info, magic=IMPORTING))
            with OfflineMetadata(self._data) as metadata:
                try:
                    for stream in streams:
                        self._place(stream, metadata)
                except OfflineError as error:  # what is in its place has its record, the rest is staged
                    write_info(self._data, replace(info, magic=MAGIC))
                    raise MigrationError(f"the metadata of {self._data}: {error}") from error
        if streams or info.magic != MAGIC:
            write_info(self._data, replace(info, magic=MAGIC))

    def _place(self, stream: StagedStream, metadata: OfflineMetadata) -> None:
        native = home_of(metadata, self._namespace, self._server_id)
        known = topic_of(metadata.state, self._namespace, stream.name)
        before = stream.placed
        if before is not None and known is not None and known.incarnation == before.incarnation:
            return  # an interrupted import came so far
        if before is not None and Path(before.path).exists() and not stream.staged.exists():
            Path(before.path).rename(stream.staged)
        if known is not None:  # without a message, else it was left out
            metadata.submit(DeleteTopic(_ref(native), _ref(known)))
            native = metadata.state.streams[native.id]
        command = creation_of(_ref(native), stream.name, stream.subject, stream.partitions)
        incarnation = metadata.state.index + 1
        place = layout.topic_directory(self._data, native.id, created_id(metadata.state, command)) / layout.PARTITIONS
        for partition in range(stream.partitions):
            ready = stream.read(partition)
            if ready is None:
                raise MigrationError(f"{stream.directory}: partition {partition} is not ready")
            end = OPEN_END if ready.falling else 0
            complete(stream.staged / str(partition), ready.segments, incarnation, end)
        layout.sync_directory(stream.staged)
        stream.write_placed(Placed(incarnation, str(place)))
        _make_room(place)
        stream.staged.rename(place)
        for directory in (place.parent, place.parents[1], place.parents[2], place.parents[3]):
            layout.sync_directory(directory)
        try:
            metadata.submit(command)
        except OfflineError:
            place.rename(stream.staged)
            raise


def topic_of(state: State, namespace: str, name: str) -> Topic | None:
    """The topic of this name in the stream of the namespace."""
    number = state.stream_ids.get(namespace)
    stream = None if number is None else state.streams[number]
    topic = None if stream is None else stream.topic_ids.get(name)
    return None if stream is None or topic is None else stream.topics[topic]


def has_messages(partitions: Path) -> bool:
    """Whether a directory of partitions holds any."""
    logs = (path for suffix in (PLAIN.suffix, COMPRESSED.suffix) for path in partitions.rglob(f"*.{suffix}"))
    return any(path.lstat().st_size for path in logs)


def _make_room(place: Path) -> None:
    """Takes away what a deleted topic with this id has left. MigrationError, OSError."""
    if place.exists():
        if has_messages(place):
            raise MigrationError(f"{place} holds messages that the metadata do not know")
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)


def _ref(value: Stream | Topic) -> Ref:
    return Ref(value.id, value.incarnation)
