"""Two names of consumers with one number: stored offsets of the one are not those of the other (docs/adr/0131)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import xxhash

from shardd.client import Client, Consumer, Producer, SyncClient
from shardd.client.errors import ConsumerNameTakenError
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.positions import PollPosition, StorePosition
from shardd.protocol.primitives import Consumer as Named
from shardd.protocol.primitives import ConsumerKind, PollingKind
from tests.cli.transcript import Shell
from tests.client.topics import url
from tests.support import wire
from tests.support.server import UP_TO_TWO_SHARDS, Server
from tests.support.serving import Serving

FIRST, SECOND = "reader-82706", "reader-153118"
PARTITIONS = 8  # on both shards
SERVER: Final = Serving(env=UP_TO_TWO_SHARDS)


@pytest.fixture
def stream(server: Server, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)[:60]
    with wire.connect(server.address) as root:
        root.create_stream(name)
        root.create_topic(name, "t", PARTITIONS)
        for partition in range(PARTITIONS):
            root.send(name, "t", wire.to_partition(partition), [wire.message(b"%d" % each) for each in range(10)])
    return name


def test_names_of_this_test_have_one_number() -> None:
    assert xxhash.xxh32_intdigest(FIRST.encode()) == xxhash.xxh32_intdigest(SECOND.encode())
    assert xxhash.xxh3_64_intdigest(FIRST.encode()) != xxhash.xxh3_64_intdigest(SECOND.encode())


def test_second_consumer_of_one_number_is_refused_and_moves_nothing(server: Server, stream: str) -> None:
    async def read(client: Client, name: str, count: int) -> list[bytes]:
        async with Consumer(client, stream, "t", name=name, partitions=[0], start="earliest") as consumer:
            got = [(await consumer.get()).payload for _ in range(count)]
            consumer.done()
            await consumer.commit()
            return got

    async def main() -> None:
        async with Client(url(server)) as client:
            assert await read(client, FIRST, 4) == [b"0", b"1", b"2", b"3"]
            with pytest.raises(ConsumerNameTakenError, match="take another name"):
                await read(client, SECOND, 1)
            assert await read(client, FIRST, 2) == [b"4", b"5"]
            await client.delete_offset(FIRST, stream, "t", 0)
            assert await read(client, SECOND, 1) == [b"0"]

    asyncio.run(main())


def test_consumer_that_began_first_and_stores_second_is_refused(server: Server, stream: str) -> None:
    async def main() -> None:
        async with Client(url(server)) as client, Producer(client, stream, "t") as producer:
            await producer.send_and_wait(b"more", partition=1)
            async with Consumer(client, stream, "t", name=SECOND, partitions=[1], commit="manual") as late:
                await late.get()
                async with Consumer(client, stream, "t", name=FIRST, partitions=[1], commit="manual") as early:
                    await early.get()
                    early.done()
                    await early.commit()
                late.done()
                with pytest.raises(ConsumerNameTakenError):
                    await late.commit()

    asyncio.run(main())


def test_calls_about_a_stored_offset_are_refused_for_another_name(server: Server, stream: str) -> None:
    calls: list[Callable[[SyncClient], object]] = [
        lambda client: client.stored_offset(SECOND, stream, "t", 2),
        lambda client: client.store_offset(SECOND, stream, "t", 2, 7),
        lambda client: client.delete_offset(SECOND, stream, "t", 2),
    ]
    with SyncClient(url(server)) as client:
        client.store_offset(FIRST, stream, "t", 2, 5)
        for call in calls:
            with pytest.raises(ConsumerNameTakenError):
                call(client)
        found = client.stored_offset(FIRST, stream, "t", 2)
        assert found is not None and found.stored == 5
        number = xxhash.xxh32_intdigest(FIRST.encode())
        by_number = client.stored_offset(number, stream, "t", 2)
        assert by_number is not None and by_number.stored == 5


def test_commands_about_a_stored_offset_refuse_another_name(server: Server, stream: str, tmp_path: Path) -> None:
    with SyncClient(url(server)) as client:
        client.store_offset(FIRST, stream, "t", 4, 5)
    shell = Shell(server.address, tmp_path)
    for line in ("get {} 4", "update {} 4 7", "delete {} 4 --yes", "list {}"):
        said = shell.run(f"shardd offset {line.format(f'{stream} t {SECOND}')} --consumer")
        assert said.endswith("[1]\n") and said.count("\n") == 2 and "take another name" in said, said
    with SyncClient(url(server)) as client:
        found = client.stored_offset(FIRST, stream, "t", 4)
        assert found is not None and found.stored == 5


def test_every_shard_compares_names_and_a_purge_sets_the_number_free(server: Server, stream: str) -> None:
    with wire.connect(server.address) as client:

        def store(name: str, partition: int, incarnation: int) -> int:
            who = Named(ConsumerKind.CONSUMER, name)
            asked = StorePosition(who, stream, "t", partition, 1, incarnation=incarnation, epoch=0)
            return client.status(ExtensionCode.STORE_POSITION, asked.encode())

        def poll(name: str, partition: int, kind: PollingKind, wait_ms: int = 0) -> int:
            who = Named(ConsumerKind.CONSUMER, name)
            asked = PollPosition(who, stream, "t", partition, kind, 0, 1, False, wait_ms, 0)
            return client.status(ExtensionCode.POLL_POSITION, asked.encode())

        with SyncClient(url(server)) as asking:

            def incarnation(partition: int) -> int:
                return asking.bounds(stream, "t", (partition,)).partitions[0].incarnation

            for partition in range(PARTITIONS):
                assert poll(SECOND, partition, PollingKind.NEXT) == 0
                assert store(FIRST, partition, incarnation(partition)) == 0
                for kind in PollingKind:
                    for wait_ms in (0, 60_000):
                        assert poll(SECOND, partition, kind, wait_ms) == Status.CONSUMER_NAME_TAKEN
                assert store(SECOND, partition, incarnation(partition)) == Status.CONSUMER_NAME_TAKEN
                assert poll(FIRST, partition, PollingKind.NEXT) == 0
            client.purge_topic(stream, "t")
            for partition in range(PARTITIONS):
                client.send(stream, "t", wire.to_partition(partition), [wire.message(b"x")] * 3)
                assert poll(SECOND, partition, PollingKind.NEXT) == 0
                assert store(SECOND, partition, incarnation(partition)) == 0


def test_names_are_told_apart_over_a_restart(server: Server, stream: str) -> None:
    with SyncClient(url(server)) as client:
        client.store_offset(FIRST, stream, "t", 3, 5)
    server.stop()
    server.start()
    with SyncClient(url(server)) as client:
        with pytest.raises(ConsumerNameTakenError):
            client.stored_offset(SECOND, stream, "t", 3)
        found = client.stored_offset(FIRST, stream, "t", 3)
        assert found is not None and found.stored == 5
