"""Topics with known rows, and the options that read them."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

from shardd.log import layout
from shardd.protocol.bounds import GetPartitionBounds, PartitionBounds, TopicSelection
from shardd.spark.commands import partition_bounds
from shardd.spark.pipelines.common import Source
from tests.support import wire
from tests.support.links import root_link
from tests.support.server import Server

DEADLINE_S = 60.0
DELETE_SEGMENTS = 503


@dataclass
class Topic:
    """`payloads[partition][offset]` is what was sent."""

    server: Server
    stream: str
    connection: wire.Wire
    payloads: dict[int, list[bytes]] = field(default_factory=dict)
    topic: str = "rows"

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.topic}"

    def send(self, partition: int, count: int) -> None:
        """Messages with a payload of their own each; every tenth has a user header."""
        known = self.payloads.setdefault(partition, [])
        for first in range(0, count, 500):
            batch = []
            for n in range(first, min(first + 500, count)):
                payload = f"{partition}:{len(known)}:".encode() + b"x" * (len(known) % 90)
                known.append(payload)
                batch.append(wire.message(payload, header("kind", str(n % 3)) if n % 10 == 0 else b""))
            self.connection.send(self.stream, self.topic, wire.to_partition(partition), batch)

    def options(self, **more: str) -> dict[str, str]:
        head = {"servers": self.server.address, "username": "iggy", "password": "iggy", "subscribe": self.name}
        return {**head, **more}

    def rows(self) -> set[tuple[int, int, bytes]]:
        return {(p, n, payload) for p, each in self.payloads.items() for n, payload in enumerate(each)}

    def bounds(self, *, segments: bool = True) -> tuple[PartitionBounds, ...]:
        with root_link(self.server.address) as connection:
            request = GetPartitionBounds((TopicSelection(self.stream, self.topic),), segments)
            return partition_bounds(connection, request).partitions


def header(key: str, value: str) -> bytes:
    """One user header, both of kind string (docs/protocol/primitives.md#user-headers)."""
    parts = (struct.pack("<BI", 2, len(each)) + each.encode() for each in (key, value))
    return b"".join(parts)


def settle(topic: Topic) -> None:
    """Waits until all that was sent is on the device: the source reads to the durable end."""
    deadline = time.monotonic() + DEADLINE_S
    while any(each.durable_end < len(topic.payloads.get(each.id, ())) for each in topic.bounds(segments=False)):
        assert time.monotonic() < deadline, "the durable end does not follow"
        time.sleep(0.05)


def source_of(topic: Topic, **options: str) -> Source:
    given = {name: value for name, value in topic.options(**options).items() if name != "subscribe"}
    return Source(topic.name, given)


def delete_sealed(topic: Topic, partition: int) -> None:
    """DELETE_SEGMENTS: only the active segment stays."""
    count = len(topic.bounds()[partition].segments) - 1
    address = wire.identifier(topic.stream) + wire.identifier(topic.topic)
    topic.connection.request(DELETE_SEGMENTS, address + partition.to_bytes(4, "little") + count.to_bytes(4, "little"))


def segment_path(topic: Topic, partition: int, number: int) -> Path:
    """The .log of a segment."""
    with root_link(topic.server.address) as connection:
        request = GetPartitionBounds((TopicSelection(topic.stream, topic.topic),), True)
        found = partition_bounds(connection, request)
    directory = layout.partition_directory(topic.server.data_dir, found.stream_id, found.topic_id, partition)
    return layout.segment_log(directory, found.partitions[partition].segments[number].start)


def flip(path: Path, position: int) -> None:
    """Turns one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
