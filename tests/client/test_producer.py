"""The producer on a real server: positions, batches, back-pressure, the window, killed workers and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest
import xxhash

from shardd.client import Client, Producer
from shardd.client.errors import (
    ClientError,
    ClosedError,
    DeliveryError,
    Fate,
    NotFoundError,
    SettingsError,
)
from shardd.client.messages import headers_of
from shardd.client.partitioning import xxh32
from shardd.client.producer import BATCH_BYTES_MAX, Delivery
from tests.support import wire
from tests.support.server import Server

PARTITIONS = 4


def url(server: Server) -> str:
    return f"shardd://iggy:iggy@{server.address}"


async def made_topic(client: Client, stream: str, partitions: int = PARTITIONS) -> None:
    await client.create_stream(stream)
    await client.create_topic(stream, "t", partitions)


def stored(server: Server, stream: str, partitions: int = PARTITIONS) -> list[list[bytes]]:
    with wire.connect(server.address) as root:
        return [[each.payload for each in root.read_all(stream, "t", number)] for number in range(partitions)]


def test_hashes_are_those_of_the_server() -> None:
    for size in range(70):
        data = os.urandom(size)
        assert xxh32(data) == xxhash.xxh32_intdigest(data)


@pytest.mark.io_engine
def test_messages_are_where_the_position_says(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await made_topic(client, "a")
            async with Producer(client, "a", "t") as producer:
                by_key = await producer.send_and_wait(b"1", key=b"key", headers={"h": 5})
                assert by_key.partition == xxhash.xxh32_intdigest(b"key") % PARTITIONS
                assert (await producer.send_and_wait(b"2", partition=2)).partition == 2
                first, second = [await (await producer.send_batch([b"3", b"4"])) for _ in range(2)]
                assert first.partition != second.partition  # without a key: one after the other
            found = stored(server, "a")
            assert b"1" in found[by_key.partition] and b"2" in found[2]
            assert found[first.partition][-2:] == found[second.partition][-2:] == [b"3", b"4"]
            polled = await client.poll("c", "a", "t", by_key.partition)
            assert [headers_of(each.headers) for each in polled.messages if each.payload == b"1"] == [{"h": 5}]

    asyncio.run(main())


def test_send_that_waits_for_room_while_its_topic_is_deleted_ends_with_a_sentence(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await made_topic(client, "gone")
            async with Producer(client, "gone", "t", buffer_bytes=2000) as producer:
                await producer.send_and_wait(b"1")
                await client.delete_topic("gone", "t")
                first = await producer.send(bytes(1500))
                with pytest.raises(NotFoundError):
                    await producer.send(bytes(1500))
                with pytest.raises(DeliveryError):
                    await first

    asyncio.run(main())


def test_a_producer_may_share_the_connection_of_its_client(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await made_topic(client, "shared")
            before = len(await client.all_connected())
            async with Producer(client, "shared", "t", shares_connection=True) as producer:
                await producer.send_and_wait(b"1", partition=0)
                assert len(await client.all_connected()) == before
            await client.ping()  # it stays open
            with pytest.raises(ClosedError):
                await producer.send(b"2")
        assert stored(server, "shared")[0] == [b"1"]

    asyncio.run(main())


def test_what_is_refused_is_told_and_the_rest_goes_on(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await made_topic(client, "b")
            with pytest.raises(SettingsError):
                Producer(client, "b", "t", delivery="idempotent", batch_bytes=(2 << 20) + 1)
            with pytest.raises(SettingsError):
                Producer(client, "b", "t", batch_bytes=0)
            with pytest.raises(NotFoundError):
                await Producer(client, "b", "none").send(b"x")
            async with Producer(client, "b", "t") as producer:
                missing, there = await producer.send(b"x", partition=99), await producer.send(b"y", partition=0)
                await there
                with pytest.raises(DeliveryError) as raised:
                    await missing
                assert (raised.value.status, raised.value.fate) == (3007, Fate.NOT_SENT)
                with pytest.raises(SettingsError, match="too large"):
                    await producer.send_batch([b"x" * (BATCH_BYTES_MAX // 2)] * 2)
                with pytest.raises(SettingsError):
                    await producer.send(b"x", key=b"")
            with pytest.raises(ClosedError):
                await producer.send(b"late")
            assert sum(map(len, stored(server, "b"))) == 1

    asyncio.run(main())


@pytest.mark.io_engine
def test_who_sends_too_much_waits_and_a_cancelled_one_sends_nothing(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await made_topic(client, "c", 1)
            async with Producer(client, "c", "t", buffer_bytes=2000, linger_ms=50) as producer:
                await producer.send(b"x" * 1500)
                waiting = asyncio.ensure_future(producer.send(b"y" * 1500))
                await asyncio.sleep(0)
                assert not waiting.done()
                waiting.cancel()
                await (await producer.send(b"z" * 1500))
            assert [each[:1] for each in stored(server, "c", 1)[0]] == [b"x", b"z"]

    asyncio.run(main())


def test_a_wrong_password_ends_what_waits(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as good, Client(f"shardd://iggy:wrong@{server.address}") as bad:
            await made_topic(good, "d", 1)
            producer = Producer(bad, "d", "t")
            producer._topic_size.count = 1  # as if it had worked before
            future = await producer.send(b"x")
            await producer.close()
            with pytest.raises(DeliveryError) as raised:
                await future
            assert (raised.value.status, raised.value.fate) == (42, Fate.NOT_SENT)

    asyncio.run(main())


async def _load(
    client: Client, stream: str, delivery: Delivery, server: Server, kills: int, seed: int
) -> dict[bytes, str]:
    """What became of each message while workers are killed."""
    chance, fates = random.Random(seed), {}
    producer = Producer(client, stream, "t", delivery=delivery, batch_bytes=600, in_flight=8, deadline_s=60.0)
    stopped = asyncio.Event()

    async def send() -> None:
        number = 0
        futures: dict[bytes, asyncio.Future[object]] = {}
        while not stopped.is_set() or number < 2000:
            payload = f"{number:08d}".encode()
            futures[payload] = await producer.send(payload + b"x" * 100, partition=number % PARTITIONS)  # type: ignore[assignment]
            number += 1
            if number % 50 == 0:
                await asyncio.sleep(0.002)
        await producer.flush()
        for payload, future in futures.items():
            error = future.exception()
            assert error is None or isinstance(error, ClientError)
            fates[payload] = "stored" if error is None else error.fate.value

    async def kill() -> None:
        for _ in range(kills):
            pids = await asyncio.to_thread(server.worker_pids)
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            with contextlib.suppress(ProcessLookupError):  # one that is being replaced
                os.kill(chance.choice(pids), signal.SIGKILL)
            await asyncio.sleep(chance.uniform(0.0, 0.5))
        stopped.set()

    await asyncio.gather(send(), kill())
    await producer.close()
    return fates


@pytest.mark.io_engine
@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "idempotent"])
def test_killed_workers_cost_what_delivery_allows_and_no_order(delivery: Delivery, tmp_path: Path) -> None:
    async def main(server: Server) -> dict[bytes, str]:
        async with Client(url(server)) as client:
            await made_topic(client, "k")
            return await _load(client, "k", delivery, server, kills=4, seed=random.randrange(1 << 30))

    with Server(tmp_path / "data", {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}) as server:
        fates = asyncio.run(main(server))
        server.worker_pids()
        found = [[payload[:8] for payload in part] for part in stored(server, "k")]
    times: dict[bytes, int] = {}
    for part in found:
        firsts = list(dict.fromkeys(part))
        assert firsts == sorted(firsts)
        for payload in part:
            times[payload] = times.get(payload, 0) + 1
    ends = list(fates.values())
    print({end: ends.count(end) for end in set(ends)}, "twice:", sum(each > 1 for each in times.values()))
    for payload, end in fates.items():
        assert end != "stored" or times.get(payload), payload
        assert end != "not sent" or payload not in times, payload
    if delivery == "idempotent":
        assert set(ends) == {"stored"} and set(times.values()) == {1}
    elif delivery == "at_most_once":
        assert max(times.values()) == 1
    else:
        assert set(ends) <= {"stored", "not sent"}  # not sent: only where sending again would be out of order
