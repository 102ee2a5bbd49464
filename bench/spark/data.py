"""Topics with rows for the measurements, sent through a real server, and the ranges of them that are sealed."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.wire import Wire, identifier
from shardd.client.blocking import BlockingLink
from shardd.client.transport import way_to
from shardd.protocol.bounds import GetPartitionBounds, TopicBounds, TopicSelection
from shardd.protocol.codes import Code
from shardd.protocol.record_layout import RECORD_HEAD
from shardd.spark.commands import partition_bounds

PARTITIONS: Final = 4
HEADER_BYTES: Final = RECORD_HEAD.size
BATCH_BYTES: Final = 1 << 20
BATCH_ROWS_MAX: Final = 10_000
USER: Final = "iggy"
SETTLE_TIMEOUT_S: Final = 60.0
ALPHABET: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 ,", np.uint8)
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def payloads(count: int, payload_bytes: int, random: np.random.Generator) -> Bytes:
    """Text of 64 signs at random: zstd makes about three quarters of it, and no two values are equal."""
    raw = np.frombuffer(random.bytes(count * payload_bytes), np.uint8)
    text: Bytes = ALPHABET[raw & 63]
    return text.reshape(count, payload_bytes)


def send_request(stream: int, topic: int, partition: int, values: Bytes, origin_us: int) -> bytes:
    """Payload of SEND_MESSAGES (docs/protocol/messages.md#batch): a message for each row of `values`; ids are the
    server's."""
    count, length = values.shape
    size = HEADER_BYTES + length
    records = np.zeros((count, size), np.uint8)
    records[:, 40:56] = np.frombuffer(struct.pack("<QII", origin_us, 0, length), np.uint8)
    records[:, HEADER_BYTES:] = values
    index = np.zeros(count, [("relative", "<u4"), ("end", "<u4"), ("timestamp", "<u8")])
    index["end"] = np.arange(1, count + 1) * size
    address = identifier(stream) + identifier(topic) + struct.pack("<BBII", 2, 4, partition, count)
    return b"".join((struct.pack("<I", len(address)), address, index.tobytes(), records.tobytes()))


def batches(rows: int, payload_bytes: int) -> Iterator[int]:
    """Sizes of the requests that make `rows`."""
    most = max(1, min(BATCH_ROWS_MAX, BATCH_BYTES // (HEADER_BYTES + payload_bytes)))
    while rows > 0:
        yield min(rows, most)
        rows -= most


@dataclass(frozen=True, slots=True)
class Rows:
    """A filled topic. `ends[p]`: offset behind the last sealed segment of partition p (or behind all); the
    measurements read up to it."""

    name: str
    payload_bytes: int
    ends: tuple[int, ...]
    address: str
    data: Path

    @property
    def count(self) -> int:
        return sum(self.ends)

    @property
    def log_bytes(self) -> int:
        return self.count * (HEADER_BYTES + self.payload_bytes)

    def options(self, **more: str) -> dict[str, str]:
        """Of format("shardd"): exactly the sealed rows."""
        places = {
            side: json.dumps({self.name: {str(n): value for n, value in enumerate(offsets)}})
            for side, offsets in (("startingOffsets", [0] * len(self.ends)), ("endingOffsets", self.ends))
        }
        return {**self.place(), **places, **more}

    def place(self) -> dict[str, str]:
        return {"servers": self.address, "username": USER, "password": USER, "subscribe": self.name}


def fill(port: int, data: Path, name: str, rows: int, payload_bytes: int, *, sealed: bool = True) -> Rows:
    """Makes the stream `name` with a topic of PARTITIONS partitions and sends `rows` in all. TimeoutError when the
    server does not bring them to its device."""
    address, random = f"127.0.0.1:{port}", np.random.default_rng(payload_bytes)
    with Wire(port) as wire:
        stream = wire.create_stream(name)
        topic = wire.create_topic(stream, "rows", PARTITIONS)
    with BlockingLink(way_to(address, USER, USER)) as connection:
        for partition in range(PARTITIONS):
            origin_us = time.time_ns() // 1000
            for count in batches(rows // PARTITIONS, payload_bytes):
                values = payloads(count, payload_bytes, random)
                connection.request(Code.SEND_MESSAGES, send_request(stream, topic, partition, values, origin_us))
        found = _settled(connection, name)
        ends = sealed_ends(found) if sealed else tuple(each.end for each in found.partitions)
    return Rows(f"{name}/rows", payload_bytes, ends, address, data)


def _settled(connection: BlockingLink, name: str) -> TopicBounds:
    request = GetPartitionBounds((TopicSelection(name, "rows"),), True)
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        found = partition_bounds(connection, request)
        if all(each.durable_end == each.end for each in found.partitions):
            return found
        time.sleep(0.05)
    raise TimeoutError(f"the durable end of '{name}' does not follow")


def sealed_ends(topic: TopicBounds) -> tuple[int, ...]:
    """ValueError when a partition has no sealed segment."""
    ends = []
    for partition in topic.partitions:
        sealed = [each.end for each in partition.segments if each.sealed]
        if not sealed:
            raise ValueError(f"partition {partition.id} of '{topic.stream}' has no sealed segment: too few rows")
        ends.append(max(sealed))
    return tuple(ends)
