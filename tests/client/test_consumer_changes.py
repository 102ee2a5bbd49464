"""Consumers that are cancelled, cut off or overtaken while they learn which partitions they have and where they are."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from shardd.client import Client, Consumer, Message
from shardd.client.history import HistoryChangedError, Loss
from tests.client.topics import begun, make, send, taken, url
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

SERVER: Final = Serving(env=ONE_SHARD)


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:80]


def cut(consumer: Consumer) -> None:
    assert consumer._session._link is not None
    consumer._session._link.abort()


def test_partitions_of_a_cancelled_assignment_are_told(server: Server, stream: str) -> None:
    async def main() -> None:
        assigned: list[int] = []
        revoked: list[int] = []
        reached, goes_on = asyncio.Event(), asyncio.Event()
        async with Client(url(server)) as client:
            await make(client, stream, 3)
            consumer = Consumer(client, stream, "t", group="g", on_assigned=assigned.extend, on_revoked=revoked.extend)
            placed = consumer._membership.placed

            async def slow(number: int, history: Any) -> Any:
                if number == 2:
                    reached.set()
                    await goes_on.wait()
                return await placed(number, history)

            consumer._membership.placed = slow  # type: ignore[method-assign]
            waiting = asyncio.ensure_future(consumer.get())
            async with asyncio.timeout(60):
                await reached.wait()
            waiting.cancel()
            await asyncio.wait([waiting])
            goes_on.set()
            await send(client, stream, range(1), partition=2)
            await taken(consumer, 1)
            assert sorted(assigned) == [0, 1, 2] and not revoked
            cut(consumer)
            await send(client, stream, range(1, 2), partition=2)
            await taken(consumer, 1)
            assert sorted(assigned) == [0, 0, 1, 1, 2, 2] and sorted(revoked) == [0, 1, 2]
            await consumer.close()

    asyncio.run(main())


def test_reset_of_each_partition_of_a_member_is_raised(server: Server, stream: str) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream, 3)
            for partition in range(3):
                await send(client, stream, range(10), partition)
            async with Consumer(client, stream, "t", group="g", on_reset="error") as consumer:
                await taken(consumer, 30)
                consumer.done()
                await consumer.commit()
                await client.purge_topic(stream, "t")
                cut(consumer)
                for partition in range(3):
                    await send(client, stream, range(20), partition)
                raised: list[int] = []
                found: list[Message] = []
                async with asyncio.timeout(60):
                    while len(found) < 60:
                        try:
                            found.append(await consumer.get())
                        except HistoryChangedError as error:
                            raised.append(error.reset.partition)
                assert sorted(raised) == [0, 1, 2]
                assert {(each.partition, each.offset) for each in found} == {
                    (p, n) for p in range(3) for n in range(20)
                }

    asyncio.run(main())


def test_member_that_began_at_the_latest_reads_a_new_history_whole_over_a_cut_connection(
    server: Server, stream: str
) -> None:
    """Nothing is stored yet, and the end that it began at belongs to the history before."""

    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream, 1)
            await send(client, stream, range(50))
            options: dict[str, Any] = {"start": "latest", "commit": "manual", "batch_messages": 10}
            async with Consumer(client, stream, "t", group="g", **options) as consumer:
                await begun(consumer)
                await send(client, stream, range(50, 51))
                assert [each.offset for each in await taken(consumer, 1)] == [50]
                await client.purge_topic(stream, "t")
                await send(client, stream, range(60))
                assert [each.offset for each in await taken(consumer, 10)] == list(range(10))
                cut(consumer)
                seen = {each.offset for each in await taken(consumer, 50)}
                assert set(range(10, 50)) <= seen

    asyncio.run(main())


def test_book_that_was_moved_forward_is_no_loss(server: Server, stream: str) -> None:
    async def main() -> None:
        lost: list[Loss] = []
        async with Client(url(server)) as client:
            await make(client, stream, 1)
            await send(client, stream, range(5))
            async with Consumer(client, stream, "t", name="n", when_lost=lost.append) as consumer:
                await taken(consumer, 5)
                may_wait, moved = consumer._polls.may_wait, asyncio.Event()

                async def moving() -> bool:
                    """Between the poll that found nothing and the one that waits."""
                    if not moved.is_set():
                        await send(client, stream, range(5, 15))
                        await client.store_offset("n", stream, "t", 0, 9)
                        moved.set()
                    return await may_wait()

                consumer._polls.may_wait = moving  # type: ignore[method-assign]
                assert [each.offset for each in await taken(consumer, 10)] == list(range(5, 15))
                assert moved.is_set() and not lost and not consumer.lost

    asyncio.run(main())
