"""A consumer that a size limit has overtaken is told so: while it reads, and when it comes back to its stored offset
(docs/adr/0128-sizes-win.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest

from shardd.client import Client, Consumer
from shardd.client.history import Loss, MessagesLostError
from tests.client.test_consumer_changes import cut
from tests.client.topics import taken, url
from tests.server.test_retention import ENV, SEGMENT_BYTES, create_topic, offsets, send, total_bytes, until
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving
from tests.support.wire import Wire

SIZE: Final = 10 * SEGMENT_BYTES
FIRST, MORE = 20, 250
OPTIONS: Final = [{"name": "slow"}, {"group": "g"}]
SERVER: Final = Serving(env=ENV | ONE_SHARD)


@pytest.fixture
def root(server: Server) -> Iterator[Wire]:
    with wire.connect(server.address) as connection:
        connection.create_stream("s")
        create_topic(connection, size_bytes=SIZE)
        send(connection, FIRST)
        yield connection
        connection.delete_stream("s")


def overtake(server: Server, root: Wire) -> int:
    """More than two times the size; the first message that is left."""
    send(root, MORE)
    until(lambda: total_bytes(root) < SIZE * 9 // 10, server)
    first = offsets(root)[0]
    assert first > FIRST
    return first


async def read_to_the_end(consumer: Consumer) -> list[int]:
    read: list[int] = []
    while not read or read[-1] < FIRST + MORE - 1:
        read += [each.offset for each in await taken(consumer, 1)]
    return read


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_consumer_at_work_is_told_what_the_size_has_taken(
    server: Server, root: Wire, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        told: list[Loss] = []
        async with (
            Client(url(server)) as client,
            Consumer(client, "s", "t", batch_bytes=1, commit="manual", when_lost=told.append, **options) as consumer,
        ):
            read = [each.offset for each in await taken(consumer, 2)]
            await consumer.commit()
            await asyncio.to_thread(overtake, server, root)
            read += await read_to_the_end(consumer)
        require_told(read, told, consumer, caplog)

    asyncio.run(main())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_consumer_that_comes_back_is_told_what_the_size_has_taken_meanwhile(
    server: Server, root: Wire, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        told: list[Loss] = []
        async with Client(url(server)) as client:
            async with Consumer(client, "s", "t", **options) as consumer:
                read = [each.offset for each in await taken(consumer, 3)]
            first = await asyncio.to_thread(overtake, server, root)
            async with Consumer(client, "s", "t", when_lost=told.append, **options) as consumer:
                read += await read_to_the_end(consumer)
        assert told == [Loss(0, 3, first)]
        require_told(read, told, consumer, caplog)

    asyncio.run(main())


def test_member_that_has_stored_nothing_and_joins_again_is_told_what_the_size_has_taken_meanwhile(
    server: Server, root: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins anew at the first message that there is, and had a place in this history before."""

    async def main() -> None:
        told: list[Loss] = []
        async with (
            Client(url(server)) as client,
            Consumer(client, "s", "t", group="g", batch_messages=1, commit="manual", when_lost=told.append) as consumer,
        ):
            read = [each.offset for each in await taken(consumer, 3)]
            first = await asyncio.to_thread(overtake, server, root)
            cut(consumer)
            read += await read_to_the_end(consumer)
            assert told == [Loss(0, 3, first)]
            require_told(read, told, consumer, caplog)

    asyncio.run(main())


def require_told(read: list[int], told: list[Loss], consumer: Consumer, caplog: pytest.LogCaptureFixture) -> None:
    """Each offset was read, or told as lost, once."""
    assert told and consumer.lost == sum(each.end - each.begin for each in told)
    gone = [offset for each in told for offset in range(each.begin, each.end)]
    assert sorted(read + gone) == list(range(FIRST + MORE))
    for loss in told:
        assert f"offsets {loss.begin} to {loss.end - 1} of partition 0 are lost" in caplog.text


def test_a_consumer_that_wants_an_error_gets_it_with_the_offsets(server: Server, root: Wire) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            async with Consumer(client, "s", "t", name="strict") as consumer:
                await taken(consumer, 3)
            first = await asyncio.to_thread(overtake, server, root)
            async with Consumer(client, "s", "t", name="strict", on_loss="error") as consumer:
                with pytest.raises(MessagesLostError, match=f"offsets 3 to {first - 1} of partition 0 are gone"):
                    await taken(consumer, 1)
                assert [each.offset for each in await taken(consumer, 1)] == [first]

    asyncio.run(main())
