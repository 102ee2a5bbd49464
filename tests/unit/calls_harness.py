"""Workers with a stream, at any level, and topics in it that are asked from inside one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shardd.engine.calls import Place
from shardd.service.identity import Identity
from tests.unit.services_harness import Workers

LEVELS: Final = ("memory", "written", "durable")
STREAM: Final = "st"
SHARDS: Final = 2


@contextmanager
def workers_with_stream(
    data: Path, level: str = "written", settings: Mapping[str, str] | None = None
) -> Iterator[Workers]:
    values = {"system.partition.ack": level, **(settings or {})}
    with Workers(data, shards=SHARDS, settings=values) as running:
        running.connect().create_stream(STREAM)
        yield running


class InsideTopic:
    """A topic with partitions on both shards, asked from shard 0 by root."""

    def __init__(self, workers: Workers, name: str, partitions: int) -> None:
        self.workers, self.name = workers, name
        self.root = workers.connect()
        self.number = self.root.create_topic(STREAM, name, partitions)
        self.context = workers.context()
        self.engine, self.services = self.context.engine, self.context.services
        self.calls = self.services.engine_calls
        self.identity = Identity(0, workers.root_ref().incarnation)

    def places(self) -> list[Place]:
        """Where its partitions are now, by their ids."""
        state = self.context.metadata.state
        stream = state.streams[state.stream_ids[STREAM]]
        topic = stream.topics[self.number]
        homes = [self.services.partition_calls.home(stream, topic, each) for each in topic.partitions]
        return [Place(home.shard, home.namespace, home.incarnation) for home in homes]

    def first_on(self, shard: int) -> tuple[int, Place]:
        """The first partition that this shard owns."""
        return next((partition, place) for partition, place in enumerate(self.places()) if place.shard == shard)
