"""Topics with a consumer group, and what members of it ask for over TCP."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shardd.protocol.codes import Code
from tests.support import wire
from tests.support.wire import Polled, Wire
from tests.unit.services_harness import Workers

PARTITIONS = 6
NEXT, FIRST = 5, 3


@contextmanager
def topic_with_group(workers: Workers, test: str) -> Iterator[str]:
    """A stream and topic of that name, six partitions with ten messages each, and group "cg"."""
    name = f"s{abs(hash(test)) % 10**9}"
    with Wire(workers.addresses[0]) as root:
        root.login()
        root.create_stream(name)
        root.create_topic(name, name, PARTITIONS)
        for partition in range(PARTITIONS):
            root.send(name, name, wire.to_partition(partition), [wire.message(b"%d" % n) for n in range(10)])
        root.request(Code.CREATE_CONSUMER_GROUP, place(name) + wire.str8("cg"))
        yield name
        if name in root.streams():
            root.delete_stream(name)


def place(topic: str) -> bytes:
    return wire.identifier(topic) + wire.identifier(topic)


def group(topic: str) -> bytes:
    return place(topic) + wire.identifier("cg")


def member(workers: Workers, shard: int, topic: str) -> Wire:
    connection = workers.connect(shard)
    connection.request(Code.JOIN_CONSUMER_GROUP, group(topic))
    return connection


def details(connection: Wire, topic: str) -> dict[int, list[int]]:
    """Partitions by member id."""
    reply = connection.request(Code.GET_CONSUMER_GROUP, group(topic))
    _, _, members_count, name_bytes = struct.unpack_from("<IIIB", reply)
    position, members = 13 + name_bytes, {}
    for _ in range(members_count):
        member_id, count = struct.unpack_from("<II", reply, position)
        members[member_id] = list(struct.unpack_from(f"<{count}I", reply, position + 8))
        position += 8 + 4 * count
    assert position == len(reply)
    return members


def poll(
    connection: Wire, topic: str, partition: int | None = None, *, count: int = 3, kind: int = NEXT, commit: bool = True
) -> Polled:
    who = wire.group("cg")
    how = struct.pack("<BQIB", kind, 0, count, commit)
    reply = connection.request(Code.POLL_MESSAGES, who + place(topic) + wire.optional_partition(partition) + how)
    return wire.parse_polled(reply)


def store(connection: Wire, topic: str, partition: int | None, offset: int) -> int:
    who = wire.group("cg")
    payload = who + place(topic) + wire.optional_partition(partition) + struct.pack("<Q", offset)
    return connection.status(Code.STORE_CONSUMER_OFFSET, payload)


def stored(connection: Wire, topic: str, partition: int) -> int | None:
    who = wire.group("cg")
    reply = connection.request(Code.GET_CONSUMER_OFFSET, who + place(topic) + wire.optional_partition(partition))
    return int(struct.unpack_from("<Q", reply, 12)[0]) if reply else None


def within(seconds: float, fits: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not fits():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)
