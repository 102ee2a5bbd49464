"""Consumers and commands of a user who may poll a topic, and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from shardd.client import Client, Consumer, SyncClient, SyncConsumer
from shardd.client.errors import PermissionDeniedError
from shardd.client.values import Permissions, StreamRights, TopicRights
from tests.client.topics import make, send, taken
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

PASSWORD: Final = "reader-secret"
SENT: Final = range(5)


class Topic:
    """Of a server, with messages, and a user who may poll it. `url`: for that user."""

    def __init__(self, server: Server, name: str) -> None:
        self.name, self._admin = name, f"shardd://iggy:iggy@{server.address}"
        self.url = f"shardd://{name}:{PASSWORD}@{server.address}?connect_timeout=60&deadline=60"
        asyncio.run(self._make())

    async def _make(self) -> None:
        async with Client(self._admin) as client:
            await make(client, self.name, 2)
            found = await client.stream(self.name)
            assert found is not None
            only = Permissions(streams={found[0].id: StreamRights(topics={0: TopicRights(poll_messages=True)})})
            await client.create_user(self.name, PASSWORD, permissions=only)
            for partition in range(2):
                await send(client, self.name, SENT, partition)

    async def add(self) -> None:
        async with Client(self._admin) as client:
            await client.create_partitions(self.name, "t", 1)
            await send(client, self.name, SENT, 2)


SERVER: Final = Serving(env=ONE_SHARD)


@pytest.fixture
def topic(server: Server, request: pytest.FixtureRequest) -> Topic:
    return Topic(server, f"u{abs(hash(request.node.name)) % 10**9}")


WHO: Final[dict[str, dict[str, Any]]] = {
    "by name": {"name": "n"},
    "by name at an offset": {"name": "n", "start": 0},
    "of a partition": {"name": "n", "partitions": [0, 1]},
}


@pytest.mark.parametrize("options", WHO.values(), ids=WHO)
def test_consumer_of_a_user_who_may_only_poll_reads_all_partitions(topic: Topic, options: dict[str, Any]) -> None:
    async def main() -> list[int]:
        async with Client(topic.url) as client, Consumer(client, topic.name, "t", **options) as consumer:
            found = await taken(consumer, 2 * len(SENT))
            consumer.done()
            await consumer.commit()
            return sorted(int(each.payload) for each in found)

    assert asyncio.run(main()) == sorted([*SENT, *SENT])


def test_consumer_of_a_user_who_may_only_poll_reads_partitions_that_are_added(topic: Topic) -> None:
    async def main() -> None:
        async with (
            Client(topic.url) as client,
            Consumer(client, topic.name, "t", name="n", start="latest", assignment_interval_ms=100) as consumer,
        ):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await consumer.get()
            await topic.add()
            assert {each.partition for each in await taken(consumer, len(SENT))} == {2}

    asyncio.run(main())


def test_member_of_a_group_without_the_right_to_read_the_topic_is_told_which_rights_it_needs(topic: Topic) -> None:
    """As in Apache Iggy: the right to poll does not show who else reads."""

    async def main() -> None:
        async with Client(topic.url) as client, Consumer(client, topic.name, "t", group="g") as consumer:
            needs = f"topic {topic.name}/t needs the rights read_topic and poll_messages"
            with pytest.raises(PermissionDeniedError, match=needs):
                await consumer.get()

    asyncio.run(main())


def test_blocking_consumer_of_a_user_who_may_only_poll_reads_all_partitions(topic: Topic) -> None:
    with SyncClient(topic.url) as client, SyncConsumer(client, topic.name, "t", name="n") as consumer:
        assert sorted(int(consumer.get().payload) for _ in range(2 * len(SENT))) == sorted([*SENT, *SENT])


@pytest.mark.parametrize(
    "words",
    [["consume"], ["message", "tail", "--no-follow"], ["message", "export"]],
    ids=" ".join,
)
def test_command_of_a_user_who_may_only_poll_reads_all_partitions(
    topic: Topic, tmp_path: Path, words: list[str]
) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shardd", *words, topic.name, "t"],
        env=kept | {"SHARDD_URL": topic.url, "HOME": str(tmp_path)},
        capture_output=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 2 * len(SENT)), done.stderr.decode()
