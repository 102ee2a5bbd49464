"""Connections that are silent, refused, cancelled or lead nowhere, and producers whose topic grows."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any, Final

import pytest

from shardd.client import Client, Consumer, Producer, statuses
from shardd.client.errors import ConnectionLostError, DeliveryError, Fate, SettingsError
from tests.support import wire
from tests.support.ports import free_port
from tests.support.relay import Relay
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving
from tests.support.stalls import stopped

SERVER: Final = Serving(env=ONE_SHARD)


def url(server: Server, options: str = "") -> str:
    return f"shardd://iggy:iggy@{server.address}{options}"


def test_a_silent_connection_is_left_long_before_the_deadline(server: Server) -> None:
    async def main() -> None:
        async with Relay(server.address) as relay:
            address = f"shardd://iggy:iggy@127.0.0.1:{relay.port}?deadline=3600&request_timeout=1"
            async with Client(address) as client:
                await client.create_stream("silent")
                await client.create_topic("silent", "t", 1)
                async with Producer(client, "silent", "t") as producer:
                    await producer.send_and_wait(b"0")
                    relay.silent |= set(range(relay.connections))
                    async with asyncio.timeout(60):
                        assert len(await client.streams()) == 1
                        await producer.send_and_wait(b"1")

    asyncio.run(main())


def test_an_answer_that_keeps_coming_is_no_silence(server: Server) -> None:
    """8 MB at 2 MB/s, with a deadline of one second."""

    async def main() -> None:
        async with Client(url(server)) as client:
            await client.create_stream("slow")
            await client.create_topic("slow", "t", 1)
            async with Producer(client, "slow", "t") as producer:
                await producer.send_and_wait(bytes(8_000_000))
        async with Relay(server.address, rate=2_000_000) as relay:
            address = f"shardd://iggy:iggy@127.0.0.1:{relay.port}?deadline=1"
            async with Client(address) as client, Consumer(client, "slow", "t", name="n") as consumer:
                async with asyncio.timeout(60):
                    assert len((await consumer.get()).payload) == 8_000_000

    asyncio.run(main())


def test_a_refused_first_connection_is_told_at_once() -> None:
    async def main() -> None:
        async with Client(f"shardd://iggy:iggy@127.0.0.1:{free_port()}?deadline=3600") as client:
            async with asyncio.timeout(60):
                with pytest.raises(ConnectionLostError, match="cannot connect"):
                    await client.connect()
                with pytest.raises(ConnectionLostError, match="cannot connect"):
                    await client.streams()

    asyncio.run(main())


def test_short_waits_for_a_message_connect_in_the_end(server: Server) -> None:
    """Each of them is shorter than a connection takes."""

    async def main() -> None:
        async with Client(url(server)) as client:
            await client.create_stream("short")
            await client.create_topic("short", "t", 1)
            async with Producer(client, "short", "t") as producer:
                await producer.send_and_wait(b"here")
        async with (
            Relay(server.address, delay_s=0.3) as relay,
            Client(f"shardd://iggy:iggy@127.0.0.1:{relay.port}") as client,
            Consumer(client, "short", "t", name="n") as consumer,
            asyncio.timeout(60),
        ):
            while True:
                with contextlib.suppress(TimeoutError):
                    assert (await asyncio.wait_for(consumer.get(), 0.01)).payload == b"here"
                    break

    asyncio.run(main())


def test_the_second_address_of_a_name_is_tried_beside_a_black_hole(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is a listener whose queue is full: its connections are never made."""
    hole = socket.socket()
    hole.bind(("127.0.0.1", 0))
    hole.listen(0)
    full = [socket.socket() for _ in range(4)]
    for each in full:
        each.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            each.connect(hole.getsockname())
    port = int(server.address.rpartition(":")[2])
    addresses = [hole.getsockname(), ("127.0.0.1", port)]

    async def main() -> None:
        async def resolve(*_: object, **__: object) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in addresses]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        async with Client(f"shardd://iggy:iggy@two.example:{port}?connect_timeout=30&deadline=35") as client:
            assert await client.streams() is not None
            assert client.session._link is not None

    asyncio.run(main())
    for each in (*full, hole):
        each.close()


@pytest.mark.parametrize("partition", [-1, 1 << 32])
def test_a_partition_that_no_topic_has_is_refused(server: Server, partition: int) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            with contextlib.suppress(Exception):
                await client.create_stream("wrong")
                await client.create_topic("wrong", "t", 1)
            async with asyncio.timeout(60), Producer(client, "wrong", "t") as producer:
                with pytest.raises(SettingsError, match="is not between 0 and 4294967295"):
                    await producer.send(b"x", partition=partition)

    asyncio.run(main())


def test_a_running_producer_uses_partitions_that_were_added(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await client.create_stream("grows")
            await client.create_topic("grows", "t", 1)
            async with Producer(client, "grows", "t", refresh_interval_ms=10) as producer:
                await producer.send_and_wait(b"0")
                await client.create_partitions("grows", "t", 3)
                used: set[int] = set()
                async with asyncio.timeout(60):
                    while len(used) < 4:
                        used.add((await producer.send_and_wait(b"x")).partition)

    asyncio.run(main())


def test_producer_whose_partition_was_deleted_asks_for_the_others(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await client.create_stream("shrinks")
            await client.create_topic("shrinks", "t", 3)
            async with Producer(client, "shrinks", "t", refresh_interval_ms=3_600_000) as producer:
                await producer.send_and_wait(b"0")
                await client.delete_partitions("shrinks", "t", 2)
                refused = 0
                for number in range(10):
                    try:
                        assert (await producer.send_and_wait(b"x", key=b"%d" % number)).partition == 0
                    except DeliveryError as error:
                        assert (error.status, error.fate) == (statuses.PARTITION_NOT_FOUND, Fate.NOT_SENT)
                        refused += 1
                assert refused == 1

    asyncio.run(main())


def test_connections_are_kept_alive_by_the_kernel(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await client.ping()
            assert client.session._link is not None
            transport = client.session._link._transport
            assert transport is not None
            made = transport.get_extra_info("socket")
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30

    asyncio.run(main())


def test_token_of_the_server_with_a_slash_logs_in(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            made = [await client.create_token(f"token{number}") for number in range(40)]
            token = next(each for each in made if "/" in each)
        async with Client(f"shardd://{token}@{server.address}") as client:
            assert (await client.me()).user_id == 0

    asyncio.run(main())


def test_members_know_which_of_them_has_partition_0(server: Server) -> None:
    """Two members, one partition: one has it, the other one none."""

    async def main() -> None:
        async with Client(url(server)) as client:
            await client.create_stream("two")
            await client.create_topic("two", "t", 1)
            members = [Consumer(client, "two", "t", group="g", assignment_interval_ms=10) for _ in range(2)]
            async with asyncio.timeout(60):
                told: list[tuple[int, ...]] = []
                for _ in range(5):
                    for each in members:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(each.get(), 0.2)
                told = sorted(each.partitions for each in members)
                assert told == [(), (0,)]
            for each in members:
                await each.close()

    asyncio.run(main())


def test_message_of_a_server_that_stalls_longer_than_a_request_may_take_is_stored_once(tmp_path: Path) -> None:
    """A new connection would wait as the old one does, so there is no reason to send the message again."""

    async def main(server: Server) -> None:
        async with Client(url(server, "?request_timeout=1&connect_timeout=2&deadline=120")) as client:
            await client.create_stream("stall")
            await client.create_topic("stall", "t", 1)
            async with Producer(client, "stall", "t") as producer:
                await producer.send_and_wait(b"0")
                with stopped(server, server.worker_pids()[0]):
                    sent = await producer.send(b"1")
                    await asyncio.sleep(5.0)
                    assert not sent.done()
                await asyncio.wait_for(sent, 60)
                await producer.send_and_wait(b"2")
        with wire.connect(server.address) as root:
            assert [each.payload for each in root.read_all("stall", "t", 0)] == [b"0", b"1", b"2"]

    with Server(tmp_path / "data", ONE_SHARD) as server:
        asyncio.run(main(server))
