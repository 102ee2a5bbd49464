"""A server that has used everything that leaves a file in its data directory, and what polls of it have to give."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from shardd.log import spool
from shardd.protocol import account_requests
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, ProducerEpoch, send_once_head
from shardd.protocol.topic_settings import SetTopicSettings
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.wire import Wire

ENV: Final = ONE_SHARD | {
    "SHARDD_SYSTEM_SEGMENT_SIZE": str(64 << 10),
    "IGGY_DATA_MAINTENANCE_MESSAGES_CLEANER_ENABLED": "true",
    "IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms",
}
KEPT: Final = ("plain", "packed")  # topics whose messages stay
BATCHES, BATCH, PAYLOAD_BYTES = 40, 10, 500
WAIT_S: Final = 60.0
METADATA_RECORDS: Final = 2_200  # a snapshot is written behind 2,000


def payload(number: int) -> bytes:
    return (b"%d " % number * PAYLOAD_BYTES)[:PAYLOAD_BYTES]


def partition_of(data: Path, topic: int) -> Path:
    return data / "streams/0/topics" / str(topic) / "partitions/0"


def fill(server: Server) -> ProducerEpoch:
    """Everything; the server runs. The producer has sent one batch to `plain`."""
    with wire.connect(server.address) as root:
        root.create_stream("s")
        for topic in (*KEPT, "archived", "gone"):
            root.create_topic("s", topic, 1)
        _set(root, "plain", message_deduplication="on")
        _set(root, "packed", compression="lz4")
        _set(root, "archived", archive="required")
        root.create_token("machine")
        root.request(Code.CREATE_USER, account_requests.CreateUserRequest("other", "secret", 1, None).encode())
        for topic in (*KEPT, "archived", "gone"):
            _send(root, topic)
            root.store_offset("s", topic, 0, 3)
        who = _producer(root)
        for _ in range(METADATA_RECORDS):
            who = _producer(root, who.producer)
        send_once(root, who, 0, [BATCHES * BATCH])
        _expire(root, "archived")
        root.request(Code.DELETE_TOPIC, wire.identifier("s") + wire.identifier("gone"))
        _wait(lambda: any(partition_of(server.data_dir, 1).glob("*.blocks")), "nothing is compressed", server)
        _wait(lambda: any(_entries(server.data_dir)), "nothing waits for its archive", server)
        _wait((server.data_dir / "state.snapshot").exists, "there is no snapshot", server)
        _wait((server.data_dir / "retention.clock").exists, "there is no clock", server)
    return who


def send_once(root: Wire, who: ProducerEpoch, sequence: int, numbers: list[int]) -> int:
    """The status."""
    send = wire.batch("s", "plain", wire.to_partition(0), [wire.message(payload(each)) for each in numbers])
    return root.status(ExtensionCode.SEND_ONCE, send_once_head(who.producer, who.epoch, sequence) + send)


def numbers_in(root: Wire, topic: str) -> list[int]:
    """Those of the messages that the topic serves; each has to be as it was sent."""
    found = []
    for each in root.read_all("s", topic, 0):
        number = int(each.payload.split()[0])
        assert each.payload == payload(number)
        found.append(number)
    return found


def expected(topic: str) -> list[int]:
    return list(range(BATCHES * BATCH + (topic == "plain")))


def _entries(data: Path) -> Iterator[Path]:
    return spool.entries(spool.spool_directory(data))


def _set(root: Wire, topic: str, **values: str) -> None:
    root.request(ExtensionCode.SET_TOPIC_SETTINGS, SetTopicSettings("s", topic, tuple(values.items())).encode())


def _send(root: Wire, topic: str) -> None:
    for first in range(0, BATCHES * BATCH, BATCH):
        messages = [wire.message(payload(number)) for number in range(first, first + BATCH)]
        root.send("s", topic, wire.to_partition(0), messages)


def _producer(root: Wire, producer: int = 0) -> ProducerEpoch:
    answer = root.request(ExtensionCode.INIT_PRODUCER, InitProducer(producer, 0, False).encode())
    return ProducerEpoch.read(Reader(answer))


def _expire(root: Wire, topic: str) -> None:
    place = wire.identifier("s") + wire.identifier(topic)
    root.request(Code.UPDATE_TOPIC, place + struct.pack("<BQQB", 1, 1_000, 0, 0) + wire.str8(topic))


def _wait(holds: Callable[[], bool], sentence: str, server: Server) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"{sentence}:\n{server.log()}"
        time.sleep(0.02)
