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
from shardd.client.errors import (
    DeliveryError,
    InvalidRequestError,
    PermissionDeniedError,
    RightNeededError,
    UnavailableError,
)
from shardd.client.partitioning import by_key
from shardd.client.values import PartitionBounds, Permissions, StreamRights, TopicRights
from shardd.engine import owner
from shardd.protocol.namespaces import namespace
from tests.client.topics import make, taken
from tests.server.given_up import give_up_shard_1
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

PASSWORD: Final = "sender-secret"


class Topic:
    """Of a server, and users who may send to it (`url`) or do nothing (`url_of_nobody`)."""

    def __init__(self, server: Server, name: str, partitions: int = 2, *, deadline_s: int = 60) -> None:
        self.name, self.admin = name, f"shardd://iggy:iggy@{server.address}"
        rest = f"{PASSWORD}@{server.address}?connect_timeout=60&deadline={deadline_s}"
        self.url, self.url_of_nobody = f"shardd://{name}:{rest}", f"shardd://{name}n:{rest}"
        asyncio.run(self._make(partitions))

    async def _make(self, partitions: int) -> None:
        async with Client(self.admin) as client:
            await make(client, self.name, partitions)
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


SERVER: Final = Serving(env=ONE_SHARD)


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
    monkeypatch.setattr(commands, "bounds", lambda *_, **__: plain._replace(code=plain.code + 0xEF))

    async def main() -> None:
        async with Client(topic.url) as client, Producer(client, topic.name, "t") as producer:
            for _ in range(2):
                assert (await producer.send_and_wait(b"x", partition=1)).partition == 1
            with pytest.raises(PermissionDeniedError, match="t needs the right read_topic, too"):
                await producer.send(b"x")

    asyncio.run(main())


def test_producer_whose_question_for_bounds_is_refused_blames_no_right(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the command, and takes no such flags (status 4)."""
    plain = commands.bounds(topic.name, "t")
    monkeypatch.setattr(commands, "bounds", lambda *_, **__: plain._replace(payload=b"\x80" + plain.payload[1:]))

    async def main() -> None:
        async with Client(topic.url) as client, Producer(client, topic.name, "t") as producer:
            assert (await producer.send_and_wait(b"x", partition=1)).partition == 1
            with pytest.raises(InvalidRequestError, match="invalid_format"):
                await producer.send(b"x")

    asyncio.run(main())


@pytest.mark.parametrize("may_poll", [True, False])
def test_producer_of_a_server_that_knows_no_sender_asks_as_a_reader(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, may_poll: bool
) -> None:
    """A shardd with an earlier version of the command takes no such flag (status 4), and asks for the right to poll."""
    monkeypatch.setattr(commands, "_FOR_SENDER", 0x80)

    async def main() -> None:
        async with Client(topic.admin) as admin:
            found = await admin.stream(topic.name)
            assert found is not None
            rights = TopicRights(poll_messages=may_poll, send_messages=True)
            await admin.call(
                commands.update_permissions(
                    topic.name, Permissions(streams={found[0].id: StreamRights(topics={0: rights})})
                )
            )
        async with Client(topic.url) as client, Producer(client, topic.name, "t") as producer:
            if may_poll:
                assert {(await producer.send_and_wait(b"x")).partition for _ in range(2)} == {0, 1}
            else:
                with pytest.raises(RightNeededError, match="at an older shardd poll_messages or read_topic"):
                    await producer.send(b"x")

    asyncio.run(main())


PARTITIONS: Final = 8
OPEN, CLOSED = ([each for each in range(PARTITIONS) if owner(namespace(0, 0, each), 2) == shard] for shard in (0, 1))
OPEN_KEYS: Final = [key for key in (b"%d" % each for each in range(40)) if by_key(key, b"", PARTITIONS) in OPEN]


@pytest.fixture
def partly_open(tmp_path: Path) -> Iterator[Topic]:
    """The shard of the other partitions was given up before the topic was made."""
    with Server(tmp_path / "data", {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}) as server:
        give_up_shard_1(server)
        yield Topic(server, "partly", PARTITIONS, deadline_s=5)


def test_producer_of_a_user_who_may_only_send_uses_open_partitions_beside_those_that_are_not_open(
    partly_open: Topic,
) -> None:
    async def main() -> None:
        async with Client(partly_open.url) as client, Producer(client, "partly", "t") as producer:
            assert (await producer.send_and_wait(b"x", partition=OPEN[0])).partition == OPEN[0]
            for key in OPEN_KEYS:
                assert (await producer.send_and_wait(b"x", key=key)).partition == by_key(key, b"", PARTITIONS)
            found = (await client.call(commands.bounds("partly", "t", for_sender=True))).partitions
            assert [each.id for each in found] == [*range(PARTITIONS)]
            assert [each for each in found if not each.incarnation] == [
                PartitionBounds(each, 0, 0, 0, 0, 0, 0, 0) for each in CLOSED
            ]
            assert sum(each.end for each in found) == 1 + len(OPEN_KEYS)

    asyncio.run(main())


def test_producer_whose_question_for_bounds_stays_unanswered_sends_to_chosen_partitions(partly_open: Topic) -> None:
    """A user with the right to poll is told the bounds of open partitions only (status 11001)."""

    async def main() -> None:
        both = TopicRights(send_messages=True, poll_messages=True)
        async with Client(partly_open.admin) as client:
            rights = Permissions(streams={0: StreamRights(topics={0: both})})
            await client.create_user("both", PASSWORD, permissions=rights)
        async with (
            Client(partly_open.url.replace("//partly:", "//both:")) as client,
            Producer(client, "partly", "t") as producer,
        ):
            with pytest.raises(UnavailableError):
                await client.call(commands.bounds("partly", "t", for_sender=True), 1.0)
            for _ in range(2):
                assert (await producer.send_and_wait(b"x", partition=OPEN[0])).partition == OPEN[0]

    asyncio.run(main())


def test_sender_may_neither_list_segments_nor_have_them_synced(topic: Topic) -> None:
    async def main() -> None:
        async with Client(topic.url) as client:
            plain = commands.bounds(topic.name, "t", for_sender=True)
            assert len((await client.call(plain)).partitions) == 2
            for flags in (0, 1, 2, 4, 5):
                with pytest.raises(PermissionDeniedError):
                    await client.call(plain._replace(payload=bytes([flags]) + plain.payload[1:]))
                if flags & 5:
                    with pytest.raises(InvalidRequestError, match="invalid_format"):
                        await client.call(plain._replace(payload=bytes([8 | flags]) + plain.payload[1:]))

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
