"""What consumers do when the history of a partition ends, when retention overtakes them, and when partitions appear."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import pytest

from shardd.client import Client, Consumer, Message, Producer, SyncClient, SyncConsumer, commands
from shardd.client.history import HistoryChangedError, Loss, MessagesLostError, Reset
from tests.client.topics import begun, make, send, taken, url
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

READERS: list[dict[str, Any]] = [
    {"name": "n"},
    {"name": "n", "commit": "manual"},
    {"name": "n", "partitions": [0]},
    {"group": "g"},
    {"group": "g", "commit": "each"},
]
SERVER: Final = Serving(env=ONE_SHARD)


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def numbers(messages: list[Message]) -> list[int]:
    return [int(each.payload) for each in messages]


async def purge(client: Client, stream: str) -> None:
    await client.purge_topic(stream, "t")


async def make_again(client: Client, stream: str) -> None:
    await client.delete_topic(stream, "t")
    await client.create_topic(stream, "t", 1)


@pytest.mark.parametrize("ends", [purge, make_again])
@pytest.mark.parametrize("options", READERS, ids=str)
def test_a_new_history_that_passed_the_place_is_read_from_its_start(
    server: Server, stream: str, options: dict[str, Any], ends: Any
) -> None:
    """50 are read; then 80 new messages lie in the same partition, offset 50 among them."""

    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream)
            await send(client, stream, range(50))
            async with Consumer(client, stream, "t", assignment_interval_ms=100, **options) as consumer:
                assert numbers(await taken(consumer, 50)) == list(range(50))
                await ends(client, stream)
                await send(client, stream, range(1000, 1080))
                assert numbers(await taken(consumer, 80)) == list(range(1000, 1080))

    asyncio.run(main())


def test_a_sync_consumer_reads_a_new_history_from_its_start(server: Server, stream: str) -> None:
    with SyncClient(url(server)) as client:
        client.create_stream(stream)
        client.create_topic(stream, "t", 1)

        def fill(numbers: range) -> None:
            async def sent() -> None:
                await send(client.client, stream, numbers)

            client.portal.run(sent())

        fill(range(50))
        with SyncConsumer(client, stream, "t", name="n") as consumer:

            def read(count: int) -> list[Message]:
                return client.portal.run(taken(consumer._consumer, count))

            assert numbers(read(50)) == list(range(50))
            client.purge_topic(stream, "t")
            fill(range(1000, 1080))
            assert numbers(read(80)) == list(range(1000, 1080))


def test_what_was_read_before_a_purge_is_not_committed_behind_it(server: Server, stream: str) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream)
            await send(client, stream, range(50))
            async with Consumer(client, stream, "t", name="n", commit="manual") as consumer:
                batch = await consumer.get_batch()
                await purge(client, stream)
                await send(client, stream, range(1000, 1080))
                await consumer.commit_to(batch[-1])
                assert await client.stored_offset("n", stream, "t", 0) is None
            async with Consumer(client, stream, "t", name="n") as consumer:
                assert numbers(await taken(consumer, 80)) == list(range(1000, 1080))

    asyncio.run(main())


@pytest.mark.parametrize("options", [{"name": "n"}, {"group": "g"}], ids=str)
def test_a_partition_that_appears_is_read_from_its_first_message(
    server: Server, stream: str, options: dict[str, Any]
) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream)
            await send(client, stream, range(5))
            options["assignment_interval_ms"] = 20
            async with Consumer(client, stream, "t", start="latest", **options) as consumer:
                await begun(consumer)
                await client.create_partitions(stream, "t", 1)
                await send(client, stream, range(100, 110), partition=1)
                assert numbers(await taken(consumer, 10)) == list(range(100, 110))

    asyncio.run(main())


def test_a_member_keeps_its_latest_place_over_a_cut_connection(server: Server, stream: str) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream)
            await send(client, stream, range(5))
            async with Consumer(client, stream, "t", group="g", start="latest") as consumer:
                await begun(consumer)
                assert consumer._session._link is not None
                consumer._session._link.abort()
                await send(client, stream, range(100, 110))
                assert numbers(await taken(consumer, 10)) == list(range(100, 110))

    asyncio.run(main())


@pytest.mark.parametrize("on_reset", ["earliest", "latest", "error"])
def test_a_reset_is_told_and_goes_on_as_set(
    server: Server, stream: str, on_reset: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        told: list[Reset] = []
        async with Client(url(server)) as client:
            await make(client, stream)
            await send(client, stream, range(50))
            async with Consumer(client, stream, "t", name="n", on_reset=on_reset, when_reset=told.append) as consumer:
                await taken(consumer, 50)
                await purge(client, stream)
                await send(client, stream, range(1000, 1080))
                if on_reset == "error":
                    with pytest.raises(HistoryChangedError) as raised:
                        await taken(consumer, 1)
                    assert [raised.value.reset] == told
                if on_reset == "latest":
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(consumer.get(), 1.0)
                    await send(client, stream, range(2000, 2005))
                    assert numbers(await taken(consumer, 5)) == list(range(2000, 2005))
                else:
                    assert numbers(await taken(consumer, 80)) == list(range(1000, 1080))
        [reset] = told
        assert (reset.partition, reset.next_offset) == (0, 50) and reset.before != reset.now
        assert "purged or made again" in caplog.text

    asyncio.run(main())


async def with_segments(client: Client, stream: str, count: int) -> None:
    """A segment has two messages."""
    await make(client, stream)
    await client.call(commands.set_topic_settings(stream, "t", {"segment_size": "1 MiB"}))
    async with Producer(client, stream, "t") as producer:
        for number in range(count):
            await producer.send_and_wait(b"%d" % number + bytes(600_000), partition=0)


@pytest.mark.parametrize("on_loss", ["skip", "error"])
@pytest.mark.parametrize("options", [{"name": "n"}, {"group": "g"}], ids=str)
def test_messages_that_retention_took_first_are_told(
    server: Server, stream: str, on_loss: Any, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        told: list[Loss] = []
        async with Client(url(server)) as client:
            await with_segments(client, stream, 12)
            before = await client.bounds(stream, "t")
            async with Consumer(
                client, stream, "t", commit="manual", batch_bytes=1, on_loss=on_loss, when_lost=told.append, **options
            ) as consumer:
                assert [each.offset for each in await taken(consumer, 2)] == [0, 1]
                await client.delete_segments(stream, "t", 0, 3)
                after = (await client.bounds(stream, "t")).partitions[0].first
                assert after > before.partitions[0].first + 2
                if on_loss == "error":
                    with pytest.raises(MessagesLostError) as raised:
                        await taken(consumer, 1)
                    assert [raised.value.loss] == told
                assert [each.offset for each in await taken(consumer, 12 - after)] == list(range(after, 12))
                assert told == [Loss(0, 2, after)] and consumer.lost == after - 2
        assert f"offsets 2 to {after - 1} of partition 0 are lost" in caplog.text

    asyncio.run(main())


def test_an_answer_has_no_more_bytes_than_one_batch(server: Server, stream: str) -> None:
    """The first of many large messages does not cost them all."""

    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream)
            async with Producer(client, stream, "t") as producer:
                for _ in range(16):
                    await producer.send(bytes(1 << 20), partition=0)
            async with Consumer(client, stream, "t", name="n") as consumer:
                batch = await consumer.get_batch()
                assert 1 <= len(batch) <= 4
                assert len(await taken(consumer, 16 - len(batch))) == 16 - len(batch)

    asyncio.run(main())


def test_a_server_that_bounds_no_bytes_is_asked_for_fewer_messages(
    server: Server, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = commands.Command(0x534400FE, b"", commands.extensions().read, True)
    monkeypatch.setattr(commands, "extensions", lambda: foreign)

    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream)
            async with Producer(client, stream, "t") as producer:
                for _ in range(300):
                    await producer.send(bytes(100_000), partition=0)
            async with Consumer(client, stream, "t", name="n", batch_bytes=1 << 20) as consumer:
                sizes, left = [], 300
                while left:
                    sizes.append(len(await consumer.get_batch()))
                    left -= sizes[-1]
                assert max(sizes) <= 32 and max(sizes[1:]) <= 10

    asyncio.run(main())


def test_a_lower_end_shows_another_history_where_none_is_told(
    server: Server, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = commands.Command(0x534400FE, b"", commands.extensions().read, True)
    monkeypatch.setattr(commands, "extensions", lambda: foreign)

    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream)
            await send(client, stream, range(50))
            async with Consumer(client, stream, "t", name="n", batch_messages=20) as consumer:
                assert numbers(await taken(consumer, 20)) == list(range(20))
                await purge(client, stream)
                await send(client, stream, range(1000, 1040))  # the place, 20, is below the new end
                assert numbers(await taken(consumer, 40)) == list(range(1000, 1040))

    asyncio.run(main())
