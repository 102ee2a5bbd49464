"""Producers and commands of a user who may send to a topic, and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from shardd.client import Client, Consumer, Producer, commands
from shardd.client.errors import DeliveryError, PermissionDeniedError
from shardd.client.values import Permissions, StreamRights, TopicRights
from tests.client.topics import make, taken
from tests.support.server import ONE_SHARD, Server

PASSWORD: Final = "sender-secret"


class Topic:
    """Of a server, with two partitions, and users who may send to it (`url`) or do nothing (`url_of_nobody`)."""

    def __init__(self, server: Server, name: str) -> None:
        self.name, self.admin = name, f"shardd://iggy:iggy@{server.address}"
        rest = f"{PASSWORD}@{server.address}?connect_timeout=60&deadline=60"
        self.url, self.url_of_nobody = f"shardd://{name}:{rest}", f"shardd://{name}n:{rest}"
        asyncio.run(self._make())

    async def _make(self) -> None:
        async with Client(self.admin) as client:
            await make(client, self.name, 2)
            found = await client.stream(self.name)
            assert found is not None
            only = Permissions(streams={found[0].id: StreamRights(topics={0: TopicRights(send_messages=True)})})
            await client.create_user(self.name, PASSWORD, permissions=only)
            await client.create_user(f"{self.name}n", PASSWORD)

    async def add(self) -> None:
        async with Client(self.admin) as client:
            await client.create_partitions(self.name, "t", 1)

    async def stored(self, count: int) -> list[tuple[int, bytes]]:
        """Partition and payload of each."""
        async with Client(self.admin) as client, Consumer(client, self.name, "t", name="all") as consumer:
            return sorted((each.partition, each.payload) for each in await taken(consumer, count))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("sends") / "data", ONE_SHARD) as made:
        yield made


@pytest.fixture
def topic(server: Server, request: pytest.FixtureRequest) -> Topic:
    return Topic(server, f"u{abs(hash(request.node.name)) % 10**9}")


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "idempotent"])
def test_producer_of_a_user_who_may_only_send_uses_all_partitions(topic: Topic, delivery: str) -> None:
    async def main() -> None:
        async with Client(topic.url) as client, Producer(client, topic.name, "t", delivery=delivery) as producer:  # type: ignore[arg-type]
            for number in range(20):
                await producer.send_and_wait(b"%02d" % number, key=b"%d" % number)
        assert {partition for partition, _ in await topic.stored(20)} == {0, 1}

    asyncio.run(main())


def test_producer_of_a_user_who_may_only_send_uses_partitions_that_are_added(topic: Topic) -> None:
    async def main() -> None:
        async with Client(topic.url) as client, Producer(client, topic.name, "t", refresh_interval_ms=50) as producer:
            await producer.send_and_wait(b"0")
            await topic.add()
            async with asyncio.timeout(60):
                while (await producer.send_and_wait(b"1")).partition != 2:
                    pass

    asyncio.run(main())


def test_producer_of_a_user_without_rights_is_told_which_right_it_needs(topic: Topic) -> None:
    async def main() -> None:
        async with Client(topic.url_of_nobody) as client, Producer(client, topic.name, "t") as producer:
            with pytest.raises(PermissionDeniedError, match=f"topic {topic.name}/t needs the right send_messages"):
                await producer.send(b"x")
            with pytest.raises(DeliveryError, match="unauthorized"):
                await producer.send_and_wait(b"x", partition=0)

    asyncio.run(main())


def test_producer_of_a_server_without_bounds_sends_to_chosen_partitions(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of Apache Iggy answers that it does not know the command."""
    plain = commands.bounds("s", "t")
    monkeypatch.setattr(commands, "bounds", lambda *_: plain._replace(code=plain.code + 0xEF))

    async def main() -> None:
        async with Client(topic.url) as client, Producer(client, topic.name, "t") as producer:
            for _ in range(2):
                assert (await producer.send_and_wait(b"x", partition=1)).partition == 1
            with pytest.raises(PermissionDeniedError, match="read_topic, too"):
                await producer.send(b"x")

    asyncio.run(main())


def test_sender_may_neither_list_segments_nor_have_them_synced(topic: Topic) -> None:
    async def main() -> None:
        async with Client(topic.url) as client:
            plain = commands.bounds(topic.name, "t")
            assert len((await client.call(plain)).partitions) == 2
            for flags in (1, 4, 5):
                with pytest.raises(PermissionDeniedError):
                    await client.call(plain._replace(payload=bytes([flags]) + plain.payload[1:]))

    asyncio.run(main())


def test_produce_command_of_a_user_who_may_only_send_stores_all(topic: Topic, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "XDG_"))}
    for url, status in ((topic.url, 0), (topic.url_of_nobody, 5)):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "shardd", "produce", topic.name, "t"],
            env=kept | {"SHARDD_URL": url, "HOME": str(tmp_path)},
            input=b"a\nb\n",
            capture_output=True,
            timeout=240,
        )
        assert done.returncode == status, done.stderr.decode()
        assert status == 0 or b"send_messages" in done.stderr
    assert [payload for _, payload in asyncio.run(topic.stored(2))] == [b"a", b"b"]
