"""lag: how far readers are behind: named consumers, consumer groups, and the checkpoints of streaming queries. Needs
no Spark session."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardd.config.digits import number_of
from shardd.protocol.bounds import PartitionBounds
from shardd.protocol.primitives import Consumer, ConsumerKind
from shardd.spark.pipelines.common import PipelineError, Source
from shardd.spark.positions import Offsets, TopicName
from shardd.spark.server import Server


@dataclass(frozen=True, slots=True)
class Lag:
    """`position` is the next offset of the reader; None when it has not begun there. `seconds`: for how long the first
    message that it has not read is stored, by the clock of this machine; 0 when it has read all."""

    reader: str
    topic: str
    partition: int
    position: int | None
    end: int
    messages: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class _Looks:
    """At one topic, for all readers: each message is asked for once."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._now_us = time.time_ns() // 1000
        self._known: dict[tuple[TopicName, int, int], float] = {}

    def lag(self, reader: str, name: TopicName, partition: PartitionBounds, position: int | None) -> Lag:
        begin = max(partition.first if position is None else position, partition.first)
        behind = max(partition.end - begin, 0)
        seconds = self._age_s(name, partition.id, begin) if behind else 0.0
        return Lag(reader, str(name), partition.id, position, partition.end, behind, seconds)

    def _age_s(self, name: TopicName, partition: int, offset: int) -> float:
        key = (name, partition, offset)
        if key not in self._known:
            stored_us = self._server.stored_at_us(name, partition, offset)
            self._known[key] = 0.0 if stored_us is None else round(max(self._now_us - stored_us, 0) / 1e6, 3)
        return self._known[key]


def of_readers(source: Source, consumers: list[str], groups: list[str], checkpoints: list[Path]) -> list[Lag]:
    """Lags of readers that store their offsets at the server, and of streaming queries: what their last finished batch
    ended with. All against the same ends. `PipelineError`."""
    known = [(each, last_offsets(each).places) for each in checkpoints]
    found, server = [], source.server()
    try:
        looks = _Looks(server)
        for name, topic in source.bounds().items():
            for partition in topic.partitions:
                for kind, readers in ((ConsumerKind.CONSUMER, consumers), (ConsumerKind.GROUP, groups)):
                    for reader in readers:
                        stored = server.stored_offset(Consumer(kind, reader), name, partition.id)
                        found.append(looks.lag(reader, name, partition, None if stored is None else stored + 1))
                for checkpoint, places in known:
                    place = places.get(name, {}).get(partition.id)
                    same = place is not None and place.incarnation == partition.incarnation
                    position = place.offset if place is not None and same else None
                    found.append(looks.lag(str(checkpoint), name, partition, position))
    finally:
        server.close()
    return found


def totals(lags: list[Lag]) -> list[dict[str, Any]]:
    """One entry for each reader: all its messages, and the partition that is furthest behind in time."""
    readers: dict[str, list[Lag]] = {}
    for each in lags:
        readers.setdefault(each.reader, []).append(each)
    return [
        {
            "reader": reader,
            "messages": sum(each.messages for each in found),
            "seconds": max(each.seconds for each in found),
        }
        for reader, found in readers.items()
    ]


def last_offsets(checkpoint: Path) -> Offsets:
    """Offsets behind the last finished batch of a query. `PipelineError`."""
    try:
        batches = sorted(
            found for each in (checkpoint / "commits").iterdir() if (found := number_of(each.name)) is not None
        )
        if not batches:
            raise PipelineError(f"{checkpoint} has no finished batch yet")
        lines = (checkpoint / "offsets" / str(batches[-1])).read_text().splitlines()
        return Offsets.from_json(json.loads(lines[-1]))
    except FileNotFoundError as error:
        raise PipelineError(f"{checkpoint} is no checkpoint of a streaming query") from error
    except (ValueError, KeyError, IndexError) as error:
        raise PipelineError(f"{checkpoint} is no checkpoint of the source shardd: {error}") from error
