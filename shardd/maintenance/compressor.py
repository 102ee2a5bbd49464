"""Job `compressing`: gives sealed segments of topics that ask for it a compressed file in place of their .log."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from shardd.config.codecs import split_codec
from shardd.config.schema import System
from shardd.engine import Engine
from shardd.log import layout
from shardd.log.blocks import Codec
from shardd.log.compressing import Outcome, Prepared, discard, drop_plain, prepare, put_in_place
from shardd.log.layout import PartitionIds
from shardd.log.segment_layout import COMPRESSED
from shardd.maintenance.damage_surveys import Owned
from shardd.maintenance.job import Job, JobThread, Turn
from shardd.maintenance.scheduler import JobScheduler
from shardd.metadata.state import State, Topic
from shardd.protocol.namespaces import namespace
from shardd.protocol.record_layout import LAYOUT_COMPRESSED, LAYOUT_PLAIN
from shardd.protocol.topic_setting_table import codec_of

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 10.0  # between two looks for segments; what could not be put in place is tried again then
_THREAD: Final = JobThread("sealing", nice=19)  # that of the sealer: both write manifests of sealed segments

_Segment = tuple[PartitionIds, int, int]  # with incarnation and start offset


class Compressor:
    """Lives on the loop thread. What would not become smaller, or is not what was sealed, is not tried again with the
    same algorithm before the next start."""

    def __init__(
        self, engine: Engine, data: Path, owned: Owned, state: Callable[[], State], system: System, jobs: JobScheduler
    ) -> None:
        self._engine, self._data, self._owned, self._state, self._system = engine, data, owned, state, system
        self._left_plain: dict[_Segment, Codec] = {}
        self._in_place: dict[_Segment, Prepared] = {}  # files whose .log is still read
        self._figures = {"segments": 0, "plain_bytes": 0, "stored_bytes": 0, "left_plain": 0, "damaged": 0, "errors": 0}
        rate = system.compression.rate_bytes
        jobs.add(
            Job(
                "compressing", self._work, INTERVAL_S, first_s=INTERVAL_S, thread=_THREAD, per_second=rate,
                unit="bytes", gives_way=lambda: True,
            )
        )  # fmt: skip

    def counters(self) -> dict[str, int]:
        """Segments compressed, their bytes before and after; those that stayed plain, were not whole, had an error."""
        return dict(self._figures)

    async def _work(self, turn: Turn) -> None:
        for key in list(self._in_place):
            await self._tried(key, self._finish(turn, key))
        plain: dict[_Segment, Codec] = {}
        await turn.on_loop(self._look(plain))
        for key in plain:
            codec = self._codec_now(key)  # the run takes as long as all segments before this one
            wanted = codec is not None and self._left_plain.get(key) != codec
            if codec is not None and wanted and not await self._tried(key, self._compress(turn, key, codec)):
                self._left_plain[key] = codec
        self._left_plain = {key: codec for key, codec in self._left_plain.items() if key in plain}

    def _look(self, plain: dict[_Segment, Codec]) -> Iterator[None]:
        """Notes the sealed segments that are not compressed, of topics that ask for it."""
        for stream in self._state().streams.values():
            for topic in stream.topics.values():
                yield
                codec = self._codec(topic)
                for partition in () if codec is None else topic.partitions:
                    yield
                    ids = (stream.id, topic.id, partition.id)
                    if codec is not None and self._owned.incarnation_of(ids) == partition.incarnation:
                        plain.update(((ids, partition.incarnation, start), codec) for start in self._plain(ids))

    async def _tried(self, key: _Segment, step: Awaitable[None]) -> bool:
        """False: it has failed."""
        ids, _, start = key
        try:
            await step
        except (FileNotFoundError, KeyError):  # deleted, or closed, while a thread was at work
            _log.debug("segment %d of %s is gone", start, ids)
        except (OSError, ValueError) as error:
            self._figures["errors"] += 1
            _log.error("partition %s: segment %d cannot be compressed: %s", ids, start, error)
            return False
        return True

    def _codec(self, topic: Topic) -> Codec | None:
        chosen = split_codec(codec_of(topic.settings, topic.compression, self._system))
        return None if chosen is None else Codec(*chosen)

    def _codec_now(self, key: _Segment) -> Codec | None:
        """What is wanted of the segment at this moment; None: nothing, or it is gone."""
        (stream_id, topic_id, number), incarnation, _ = key
        stream = self._state().streams.get(stream_id)
        topic = None if stream is None else stream.topics.get(topic_id)
        if topic is None or number >= len(topic.partitions) or topic.partitions[number].incarnation != incarnation:
            return None
        return self._codec(topic) if self._owned.incarnation_of(key[0]) == incarnation else None

    def _plain(self, ids: PartitionIds) -> list[int]:
        """Start offsets of the sealed segments that are not compressed."""
        segments = self._engine.partition_segments(namespace(*ids))[:-1]
        return [each.start_offset for each in segments if each.layout == LAYOUT_PLAIN and each.records]

    async def _compress(self, turn: Turn, key: _Segment, codec: Codec) -> None:
        if key in self._in_place:
            return
        ids, incarnation, start = key
        directory = layout.partition_directory(self._data, *ids)
        found = await turn.beside(prepare, directory, start, incarnation, codec, turn.throttle)
        if found.outcome in (Outcome.STAYS, Outcome.DAMAGED):
            self._left_plain[key] = codec
            self._figures["left_plain" if found.outcome is Outcome.STAYS else "damaged"] += 1
        if found.outcome is not Outcome.READY or self._owned.incarnation_of(ids) != incarnation:
            return
        if self._codec_now(key) != codec:  # what is wanted by now is seen to in the next run
            discard(directory, start)
        elif put_in_place(directory, start):
            self._in_place[key] = found
            await self._finish(turn, key)

    async def _finish(self, turn: Turn, key: _Segment) -> None:
        """The names are synced; then the engine reads the new file and the .log leaves, in one step of the loop: a
        partition that is purged gets files with the same names. While somebody reads the .log both stay until the next
        look."""
        ids, incarnation, start = key
        directory = layout.partition_directory(self._data, *ids)
        if self._owned.incarnation_of(ids) == incarnation:
            await turn.beside(layout.sync_directory, directory)
        there = self._owned.incarnation_of(ids) == incarnation and start in self._plain(ids)
        if not there or not layout.segment_file(directory, start, COMPRESSED.suffix).exists():
            del self._in_place[key]  # it was deleted, or the half of it that could be
        elif self._engine.partition_change_layout(namespace(*ids), incarnation, start, LAYOUT_COMPRESSED):
            done = self._in_place.pop(key)
            drop_plain(directory, start)
            self._figures["segments"] += 1
            self._figures["plain_bytes"] += done.plain_bytes
            self._figures["stored_bytes"] += done.stored_bytes
