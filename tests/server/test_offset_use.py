"""Stored offsets say who stored them: entries of the file have the user's incarnation, the name and a time. Stores and
polls with auto-commit of classic connections, with positions and without, here and forwarded to the other shard."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from shardd.log import layout
from shardd.log.offsets_table import StoredOffset, decode_table
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.protocol.bounds import GetPartitionBounds, TopicSelection, decode_reply
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.positions import PollPosition, StorePosition
from shardd.protocol.primitives import Consumer, ConsumerKind, PollingKind
from tests.server.test_revocation import EVERYTHING, create_user
from tests.support import wire
from tests.support.server import Server

SETTINGS = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}  # some requests go to the owner on the other shard
PARTITIONS = 4


def stored(data: Path, partition: int) -> dict[tuple[int, int], StoredOffset]:
    path = layout.partition_directory(data, 0, 0, partition) / layout.CONSUMER_OFFSETS
    return {(each.kind, each.id): each for each in decode_table(path.read_bytes(), None).offsets}


def named(name: str) -> bytes:
    return b"\x01" + wire.identifier(name)


def name_hash(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode())


def store(client: wire.Wire, partition: int, who: bytes | int) -> None:
    client.store_offset(0, 0, partition, 3, who)


def commit(client: wire.Wire, partition: int, who: bytes | int) -> None:
    client.poll(0, 0, partition, count=4, auto_commit=True, who=who)


def consumer_of(who: bytes | int) -> Consumer:
    return Consumer(ConsumerKind.CONSUMER, who if isinstance(who, int) else "job")


def store_position(client: wire.Wire, partition: int, who: bytes | int) -> None:
    question = GetPartitionBounds((TopicSelection(0, 0),), epochs=True)
    [topic] = decode_reply(client.request(ExtensionCode.GET_PARTITION_BOUNDS, question.encode()), epochs=True)
    incarnation = topic.partitions[partition].incarnation
    stored = StorePosition(consumer_of(who), 0, 0, partition, 3, incarnation=incarnation, epoch=0)
    assert client.status(ExtensionCode.STORE_POSITION, stored.encode()) == 0


def commit_position(client: wire.Wire, partition: int, who: bytes | int) -> None:
    polled = PollPosition(consumer_of(who), 0, 0, partition, PollingKind.OFFSET, 0, 4, True, 0, 1 << 20)
    client.request(ExtensionCode.POLL_POSITION, polled.encode())


@pytest.mark.parametrize("store", [store, commit, store_position, commit_position])
def test_an_offset_has_the_incarnation_of_its_user_on_every_shard(
    tmp_path: Path, store: Callable[[wire.Wire, int, bytes | int], None]
) -> None:
    before_us = time.time_ns() // 1000
    with Server(tmp_path, SETTINGS) as server, wire.connect(server.address) as root:
        root.create_topic(root.create_stream("s"), "t", PARTITIONS)
        create_user(root, "reader", EVERYTHING)
        reader = wire.Wire(server.address)
        reader.login("reader", "secret")
        for partition in range(PARTITIONS):
            root.send(0, 0, wire.to_partition(partition), [wire.message(b"%d" % n) for n in range(10)])
            for client, who in ((reader, named("job")), (root, 5)):
                store(client, partition, who)
        reader.close()
    after_us = time.time_ns() // 1000
    incarnation = load_state(tmp_path / FILE_NAME).users[1].incarnation
    for partition in range(PARTITIONS):
        found = stored(tmp_path, partition)
        (job,) = [each for each in found.values() if each.name]
        assert (job.value, job.owner, job.name) == (3, incarnation, name_hash("job"))
        assert (found[1, 5].value, found[1, 5].owner, found[1, 5].name) == (3, 0, 0)  # root's count for no user
        assert all(before_us <= each.used_us <= after_us for each in found.values())
