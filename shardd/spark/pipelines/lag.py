"""lag: how far readers are behind: named consumers, consumer groups, and the checkpoints of streaming queries. Needs
no Spark session."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardd.protocol.primitives import Consumer, ConsumerKind
from shardd.spark.pipelines.common import PipelineError, Source
from shardd.spark.positions import Offsets


@dataclass(frozen=True, slots=True)
class Lag:
    """`position` is the next offset of the reader; None when it has not begun there."""

    reader: str
    topic: str
    partition: int
    position: int | None
    end: int
    messages: int

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def of_consumers(source: Source, consumers: list[str], groups: list[str]) -> list[Lag]:
    """Lags of readers that store their offsets at the server."""
    found = []
    server = source.server()
    try:
        for name, topic in source.bounds().items():
            for partition in topic.partitions:
                for kind, readers in ((ConsumerKind.CONSUMER, consumers), (ConsumerKind.GROUP, groups)):
                    for reader in readers:
                        stored = server.stored_offset(Consumer(kind, reader), name, partition.id)
                        position = None if stored is None else stored + 1
                        behind = partition.end - max(partition.first if position is None else position, partition.first)
                        found.append(Lag(reader, str(name), partition.id, position, partition.end, max(behind, 0)))
    finally:
        server.close()
    return found


def of_checkpoint(source: Source, checkpoint: Path) -> list[Lag]:
    """Lag of a streaming query: what its last finished batch ended with, against the ends now."""
    places = last_offsets(checkpoint).places
    found = []
    for name, topic in source.bounds().items():
        for partition in topic.partitions:
            place = places.get(name, {}).get(partition.id)
            known = place is not None and place.incarnation == partition.incarnation
            position = place.offset if place is not None and known else None
            behind = partition.end - max(partition.first if position is None else position, partition.first)
            found.append(Lag(str(checkpoint), str(name), partition.id, position, partition.end, max(behind, 0)))
    return found


def last_offsets(checkpoint: Path) -> Offsets:
    """Offsets behind the last finished batch of a query. `PipelineError`."""
    try:
        batches = sorted(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit())
        if not batches:
            raise PipelineError(f"{checkpoint} has no finished batch yet")
        lines = (checkpoint / "offsets" / str(batches[-1])).read_text().splitlines()
        return Offsets.from_json(json.loads(lines[-1]))
    except FileNotFoundError as error:
        raise PipelineError(f"{checkpoint} is no checkpoint of a streaming query") from error
    except (ValueError, KeyError, IndexError) as error:
        raise PipelineError(f"{checkpoint} is no checkpoint of the source shardd: {error}") from error
