"""`readMode` archive: a Parquet archive answers what the driver asks the server, so that a topic can be read when it,
or the whole server, is gone. The newest incarnation of each partition is read; others are named in a warning."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow.fs as pafs

from shardd.client.marks import Mark
from shardd.protocol.bounds import PartitionBounds, TopicBounds
from shardd.spark import archive_listing, archive_times
from shardd.spark.archive_listing import History, file_system
from shardd.spark.positions import TopicName
from shardd.spark.server import Place, Server, TopicMissingError

_log = logging.getLogger(__name__)


class ArchiveServer(Server):
    """The questions of `Server` that planning asks, answered by names of files. It has no connection."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.connections = 0

    def close(self) -> None:
        """Nothing is held."""

    @contextmanager
    def within(self, limit_s: float) -> Iterator[None]:
        """Files are read for as long as it takes."""
        yield

    def matching(self, pattern: str) -> tuple[TopicName, ...]:
        """Topics of the archive whose "stream/topic" matches as a whole, by name."""
        names = [
            TopicName(stream, topic)
            for stream in self._directories_of(self._root)
            for topic in self._directories_of(f"{self._root.rstrip('/')}/{archive_listing.escape(stream)}")
        ]
        return tuple(sorted(name for name in names if re.fullmatch(pattern, str(name))))

    def _directories_of(self, directory: str) -> list[str]:
        system, inner = file_system(directory)
        found = []
        for each in system.get_file_info(pafs.FileSelector(inner, allow_not_found=True)):
            name = archive_listing.unescape(each.base_name) if each.type == pafs.FileType.Directory else None
            if name is not None and archive_listing.escape(name) == each.base_name:
                found.append(name)
        return found

    def bounds(
        self, topics: Mapping[TopicName, tuple[int, ...]], *, segments: bool = False
    ) -> dict[TopicName, TopicBounds]:
        """From the first to the last archived offset of each partition. `TopicMissingError`."""
        return {name: self._archived_bounds(name, partitions) for name, partitions in topics.items()}

    def _archived_bounds(self, name: TopicName, wanted: tuple[int, ...]) -> TopicBounds:
        newest = self._newest(name)
        if not newest:
            raise TopicMissingError(f"the archive {self._root} has no topic '{name}'")
        missing = [each for each in wanted if each not in newest]
        if missing:
            raise TopicMissingError(f"the archive {self._root} has no partition {missing[0]} of '{name}'")
        partitions = tuple(
            _bounds_of(number, *newest[number]) for number in sorted(newest) if not wanted or number in wanted
        )
        return TopicBounds(0, 0, name.stream, name.topic, partitions)

    def _newest(self, name: TopicName) -> dict[int, tuple[int, History]]:
        newest: dict[int, tuple[int, History]] = {}
        for (partition, incarnation), history in sorted(archive_listing.list_topic(self._root, name).items()):
            if not history.files:
                continue
            if partition in newest:
                _log.warning(
                    "the archive has several incarnations of partition %d of '%s': it was purged, made anew or"
                    " restored, or another server was archived here, too (then neither is known to be newer); %d is"
                    " read, not %d",
                    partition,
                    name,
                    incarnation,
                    newest[partition][0],
                )
            newest[partition] = (incarnation, history)
        return newest

    def offset_at(self, name: TopicName, partition: int, timestamp_us: int) -> int | None:
        """First archived offset whose append time is not before `timestamp_us`; None when there is none."""
        _, history = self._newest(name)[partition]
        return archive_times.offset_at(history.files, timestamp_us)

    def marks_at(self, offsets: Mapping[Place, int]) -> dict[Place, Mark]:
        """Nothing: files of an archive are never replaced by others."""
        return {}

    def stored_at_us(self, name: TopicName, partition: int, offset: int) -> int | None:
        """Append time of the first archived message from `offset` on; None when there is none."""
        _, history = self._newest(name)[partition]
        return archive_times.time_at(history.files, offset)

    def store_progress(self, consumer: str, name: TopicName, partition: int, last_offset: int) -> None:
        """Nobody is there to be told."""


def _bounds_of(number: int, incarnation: int, history: History) -> PartitionBounds:
    first, end = history.files[0].start, max(each.end for each in history.files)
    return PartitionBounds(number, 0, incarnation, first, end, end, 0, end - first)
