"""Members whose group is deleted."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from shardd.client import Client, Consumer, Producer, SyncClient
from shardd.client.errors import GroupDeletedError, GroupInUseError
from tests.client.topics import make, send, taken, url
from tests.models.ways import HOST, Cut, Snare, Ways
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

CREATE_GROUP: Final = 602
SERVER: Final = Serving(env=ONE_SHARD)


def test_group_with_members_is_not_deleted_without_force(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client, Consumer(client, "used", "t", group="g") as consumer:
            await make(client, "used")
            await send(client, "used", range(1))
            await taken(consumer, 1)
            with pytest.raises(GroupInUseError, match="group g of topic used/t has 1 members"):
                await client.delete_group("used", "t", "g")
            with SyncClient(url(server)) as waiting, pytest.raises(GroupInUseError, match="has 1 members"):
                await asyncio.to_thread(waiting.delete_group, "used", "t", "g")
            assert await client.group("used", "t", "g") is not None

    asyncio.run(main())


@pytest.mark.parametrize("how", ["get", "commit"])
def test_member_of_a_deleted_group_gets_an_error_that_names_it(server: Server, how: str) -> None:
    stream = f"deleted-{how[:3]}"

    async def main() -> None:
        async with Client(url(server)) as client, Consumer(client, stream, "t", group="g", commit="manual") as consumer:
            await make(client, stream)
            await send(client, stream, range(5))
            await taken(consumer, 3)
            consumer.done()
            if how != "commit":
                await consumer.commit()
            await client.delete_group(stream, "t", "g", force=True)
            with pytest.raises(GroupDeletedError, match=f"^group g of topic {stream}/t was deleted$"):
                await (consumer.commit() if how == "commit" else taken(consumer, 6))
            assert [int(each.payload) for each in await taken(consumer, 5)] == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_nothing_that_was_done_in_a_deleted_group_is_stored_in_the_next_one(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client, Consumer(client, "next", "t", group="g", commit="manual") as consumer:
            await client.create_stream("next")
            await client.create_topic("next", "t", 3)
            async with Producer(client, "next", "t") as producer:
                for partition in range(3):
                    await (await producer.send_batch([b"%d" % partition] * 20, partition=partition))
            for _ in range(3):
                await consumer.get_batch()
            consumer.done()
            await client.delete_group("next", "t", "g", force=True)
            with pytest.raises(GroupDeletedError):
                await consumer.commit()
            await consumer.commit()
            found = [each.payload for each in await taken(consumer, 60)]
            assert sorted(found) == [b"0"] * 20 + [b"1"] * 20 + [b"2"] * 20

    asyncio.run(main())


def test_member_of_a_topic_that_is_made_again_joins_the_group_anew(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client, Consumer(client, "anew", "t", group="g") as consumer:
            await make(client, "anew")
            await send(client, "anew", range(3))
            await taken(consumer, 3)
            await client.delete_topic("anew", "t")
            await client.create_topic("anew", "t", 1)
            await send(client, "anew", range(10, 15))
            assert [int(each.payload) for each in await taken(consumer, 5)] == [10, 11, 12, 13, 14]

    asyncio.run(main())


def test_member_whose_connection_is_cut_while_it_makes_its_group_anew_goes_on(server: Server) -> None:
    """The group was made, and its answer is lost."""
    ways = Ways({"tcp": (HOST, int(server.address.rpartition(":")[2]))})

    async def main() -> None:
        host, port = ways.address("tcp")
        way = f"shardd://iggy:iggy@{host}:{port}?deadline=60"
        async with Client(url(server)) as client, Client(way) as cut, Consumer(cut, "cut", "t", group="g") as consumer:
            await make(client, "cut")
            await send(client, "cut", range(3))
            await taken(consumer, 3)
            await client.delete_topic("cut", "t")
            await client.create_topic("cut", "t", 1)
            await send(client, "cut", range(10, 15))
            ways.lay(Snare(Cut(), struct.pack("<I", CREATE_GROUP), is_passed=True))
            troubles = ways.troubles
            consumer.done()
            await consumer.commit()
            assert ways.troubles > troubles
            assert [int(each.payload) for each in await taken(consumer, 5)] == [10, 11, 12, 13, 14]

    try:
        asyncio.run(main())
    finally:
        ways.close()


def test_consume_command_whose_group_is_deleted_ends_with_its_name(server: Server, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "XDG_"))}
    with SyncClient(url(server)) as client:
        client.create_stream("command")
        client.create_topic("command", "t", 1)
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "shardd", "consume", "--follow", "--group", "g", "command", "t"],
            env=kept | {"SHARDD_URL": url(server), "HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            asyncio.run(_deleted(server))
            _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (3, b"shardd: group g of topic command/t was deleted\n")


async def _deleted(server: Server) -> None:
    """When the command has joined."""
    async with Client(url(server)) as client, asyncio.timeout(120):
        while True:
            group = await client.group("command", "t", "g")
            if group is not None and group.members_count:
                break
            await asyncio.sleep(0.05)
        await client.delete_group("command", "t", "g", force=True)
