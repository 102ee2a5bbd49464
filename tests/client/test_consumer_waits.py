"""A consumer that has nothing to read waits at the server, where the server offers that; otherwise it asks again."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from typing import Any

import pytest

from shardd.client import Client, Consumer, Producer, commands
from shardd.client.errors import of_status
from shardd.client.messages import Polled
from tests.support.server import Server

FOREIGN = commands.Command(0x534400FE, b"", commands.extensions().read, True)  # this server does not have it, either
ROUNDS = 20


def kind_of(command: commands.Command[Any]) -> int:
    """A poll that asks for positions counts as what it is without them."""
    if command.code != commands.POLL_POSITION:
        return command.code
    wait_ms, _bytes_max = struct.unpack("<II", command.payload[-8:])
    return commands.POLL_AND_WAIT if wait_ms else commands.POLL


class Observed:
    """What a consumer asks: how often each code, and by which one its messages came."""

    def __init__(self, consumer: Consumer, refuse: int = 0) -> None:
        self.asked: Counter[int] = Counter()
        self.brought: Counter[int] = Counter()
        self.waiting = asyncio.Event()
        self._call, self._refuse = consumer._session.call, refuse
        consumer._session.call = self.call  # type: ignore[method-assign]

    async def call(self, command: commands.Command[Any], deadline_s: float | None = None, **more: Any) -> Any:
        code = kind_of(command)
        self.asked[code] += 1
        if code == commands.POLL_AND_WAIT:
            self.waiting.set()
            if self._refuse:
                raise of_status(self._refuse)
        found = await self._call(command, deadline_s, **more)
        if isinstance(found, Polled):
            self.brought[code] += len(found.messages)
        return found


async def read_slowly(server: Server, stream: str, partitions: int, **options: Any) -> Observed:
    """Messages come one by one, each while the consumer waits."""
    async with Client(f"shardd://iggy:iggy@{server.address}") as client:
        await client.create_stream(stream)
        await client.create_topic(stream, "t", partitions)
        refuse = options.pop("refuse", 0)
        waits = options.pop("waits", True)
        async with (
            asyncio.timeout(120),
            Producer(client, stream, "t") as producer,
            Consumer(client, stream, "t", **options) as consumer,
        ):
            observed = Observed(consumer, refuse)
            for number in range(ROUNDS):
                next_one = asyncio.ensure_future(consumer.get())
                observed.waiting.clear()
                if waits:
                    await observed.waiting.wait()
                await asyncio.sleep(0.02)
                await producer.send_and_wait(b"%d" % number, partition=number % partitions)
                message = await next_one
                assert (message.payload, message.partition) == (b"%d" % number, number % partitions)
    return observed


@pytest.mark.parametrize(
    ("partitions", "options"),
    [
        (1, {"name": "c"}),
        (1, {"name": "c", "commit": "manual"}),
        (1, {"name": "c", "start": "latest"}),
        (3, {"name": "c"}),
        (1, {"group": "g"}),
        (4, {"group": "g"}),
        (4, {"group": "g", "commit": "each"}),
        (4, {"group": "g", "commit": "manual"}),
    ],
    ids=str,
)
def test_messages_come_to_who_waits(
    server: Server, partitions: int, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    observed = asyncio.run(read_slowly(server, request.node.name, partitions, **options))
    assert observed.brought[commands.POLL_AND_WAIT] > 0
    assert observed.brought.total() >= ROUNDS
    assert observed.asked[commands.extensions().code] == 1


def test_a_member_waits_for_all_its_partitions_at_once(server: Server) -> None:
    """It would find most of them in a later round otherwise."""

    async def main() -> None:
        observed = await read_slowly(server, "all", 4, group="g", poll_interval_ms=60_000)
        assert observed.brought[commands.POLL_AND_WAIT] >= ROUNDS // 2

    asyncio.run(main())


@pytest.mark.parametrize(("deadline", "longest"), [("30", 1.0), ("2", 0.5)])
def test_what_comes_behind_a_wait_keeps_most_of_its_time(deadline: str, longest: float) -> None:
    async def main() -> None:
        client = Client(f"shardd://iggy:iggy@127.0.0.1:1?deadline={deadline}")
        assert Consumer(client, "s", "t", name="c")._polls.wait_max_s == longest

    asyncio.run(main())


def test_a_server_that_offers_no_waits_is_asked_for_none(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "extensions", lambda: FOREIGN)
    observed = asyncio.run(read_slowly(server, "foreign", 2, name="c", waits=False))
    assert observed.asked[commands.POLL_AND_WAIT] == 0
    assert observed.asked[FOREIGN.code] == 1
    assert observed.brought[commands.POLL] == ROUNDS


@pytest.mark.parametrize("status", [3, 5, 2015])
def test_where_no_more_polls_may_wait_it_asks_again(server: Server, status: int) -> None:
    observed = asyncio.run(read_slowly(server, f"refused-{status}", 2, group="g", refuse=status, waits=False))
    assert observed.asked[commands.POLL_AND_WAIT] > 0
    assert observed.brought[commands.POLL] == ROUNDS


def test_a_purge_and_another_book_lose_nothing(server: Server) -> None:
    """The server's book says something else than what the consumer has read: it goes on where the partition does."""

    async def main() -> None:
        async with Client(f"shardd://iggy:iggy@{server.address}") as client:
            await client.create_stream("book")
            await client.create_topic("book", "t", 1)
            async with (
                asyncio.timeout(120),
                Producer(client, "book", "t") as producer,
                Consumer(client, "book", "t", name="c") as consumer,
            ):
                observed = Observed(consumer)
                for number in range(5):
                    await producer.send_and_wait(b"%d" % number, partition=0)
                assert [(await consumer.get()).offset for _ in range(5)] == list(range(5))
                next_one = asyncio.ensure_future(consumer.get())
                await observed.waiting.wait()
                await client.delete_offset("c", "book", "t", 0)
                await asyncio.sleep(0.2)
                await producer.send_and_wait(b"behind", partition=0)
                assert (await next_one).payload == b"behind"  # not the first ones again
                observed.waiting.clear()
                next_one = asyncio.ensure_future(consumer.get())
                await observed.waiting.wait()
                await client.purge_topic("book", "t")
                await producer.send_and_wait(b"after", partition=0)
                message = await next_one
                assert (message.payload, message.offset) == (b"after", 0)

    asyncio.run(main())


def test_who_is_cancelled_while_it_waits_loses_nothing(server: Server) -> None:
    async def main() -> None:
        async with Client(f"shardd://iggy:iggy@{server.address}") as client:
            await client.create_stream("cancelled")
            await client.create_topic("cancelled", "t", 2)
            async with (
                asyncio.timeout(120),
                Producer(client, "cancelled", "t") as producer,
                Consumer(client, "cancelled", "t", group="g") as consumer,
            ):
                observed = Observed(consumer)
                for number in range(ROUNDS):
                    observed.waiting.clear()
                    waiting = asyncio.ensure_future(consumer.get())
                    await observed.waiting.wait()
                    waiting.cancel()
                    await producer.send_and_wait(b"%d" % number, partition=number % 2)
                    assert (await consumer.get()).payload == b"%d" % number

    asyncio.run(main())
