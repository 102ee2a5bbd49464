"""What a start after kill -9, or with another number of shards, finds again."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.support import wire
from tests.support.server import Server

PARTITIONS = 8
MESSAGES = 20


def fill(client: wire.Wire) -> None:
    client.create_stream("st")
    client.create_topic("st", "tp", PARTITIONS)
    for partition in range(PARTITIONS):
        messages = [wire.message(b"%d/%d" % (partition, n)) for n in range(MESSAGES)]
        client.send("st", "tp", wire.to_partition(partition), messages)


def payloads(client: wire.Wire) -> list[list[bytes]]:
    return [[message.payload for message in client.read_all("st", "tp", partition)] for partition in range(PARTITIONS)]


EXPECTED = [[b"%d/%d" % (partition, n) for n in range(MESSAGES)] for partition in range(PARTITIONS)]


def test_consumer_offsets_survive_kill9_of_everything(make_server: Callable[..., Server]) -> None:
    server = make_server()
    with wire.connect(server.address) as client:
        fill(client)
        for partition in range(PARTITIONS):
            client.store_offset("st", "tp", partition, partition + 3)
        polled = client.poll("st", "tp", 1, strategy=wire.POLL_NEXT, count=5, auto_commit=True)
        assert [message.offset for message in polled.messages] == [5, 6, 7, 8, 9]
    server.kill_supervisor()
    server.start()
    with wire.connect(server.address) as client:
        stored = [client.get_offset("st", "tp", partition) for partition in range(PARTITIONS)]
        assert stored == [9 if partition == 1 else partition + 3 for partition in range(PARTITIONS)]


def test_another_number_of_shards_serves_the_same_data(make_server: Callable[..., Server]) -> None:
    server = make_server(env={"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"})
    with wire.connect(server.address) as client:
        fill(client)
    assert server.stop() == 0
    shards = min(2, len(os.sched_getaffinity(0)))
    more = make_server(env={"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": str(shards)})  # the same directory
    with wire.connect(more.address) as client:
        assert payloads(client) == EXPECTED
        client.send("st", "tp", wire.to_partition(7), [wire.message(b"new")])
        assert [message.offset for message in client.read_all("st", "tp", 7)] == list(range(MESSAGES + 1))
