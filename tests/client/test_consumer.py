"""The consumer on a real server: where it begins, what it commits, cancelling, groups and killed workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from shardd.client import Client, Consumer, Message, Producer, SyncClient, SyncConsumer, SyncProducer
from shardd.client.errors import NotFoundError, SettingsError
from shardd.client.positions import strategy_of
from tests.client.topics import begun
from tests.support.server import Server

PARTITIONS = 4


def url(server: Server) -> str:
    return f"shardd://iggy:iggy@{server.address}"


async def filled(client: Client, stream: str, count: int, partitions: int = PARTITIONS) -> None:
    await client.create_stream(stream)
    await client.create_topic(stream, "t", partitions)
    async with Producer(client, stream, "t") as producer:
        for number in range(count):
            await producer.send(str(number).encode(), partition=number % partitions)


async def taken(consumer: Consumer, count: int) -> list[Message]:
    async with asyncio.timeout(60):
        return [await consumer.get() for _ in range(count)]


def numbers(messages: list[Message]) -> list[int]:
    return sorted(int(each.payload) for each in messages)


@pytest.mark.parametrize("bad", ["late", "time:", "time:x", -1, "time:-5"])
def test_a_start_that_makes_no_sense_is_refused(bad: str | int) -> None:
    with pytest.raises(SettingsError):
        strategy_of(bad)


def test_arguments_that_make_no_sense_are_refused(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            for arguments in (
                {},
                {"group": "g", "name": "n"},
                {"group": "g", "partitions": [1]},
                {"name": "n", "commit": "x"},
            ):
                with pytest.raises(SettingsError):
                    Consumer(client, "s", "t", **arguments)
            async with Consumer(client, "missing", "t", name="n") as consumer:
                with pytest.raises(NotFoundError):
                    await consumer.get()

    asyncio.run(main())


@pytest.mark.io_engine
def test_a_named_consumer_reads_all_in_order_and_goes_on_where_it_was(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await filled(client, "a", 40)
            async with Consumer(client, "a", "t", name="c", batch_messages=3) as consumer:
                first = await taken(consumer, 20)
            async with Consumer(client, "a", "t", name="c") as consumer:
                rest = await taken(consumer, 20)
            assert numbers(first + rest) == list(range(40))
            for partition in range(PARTITIONS):
                offsets = [each.offset for each in first + rest if each.partition == partition]
                assert offsets == list(range(10))
            async with Consumer(client, "a", "t", name="other", partitions=[2]) as consumer:
                assert numbers(await taken(consumer, 10)) == list(range(2, 40, 4))

    asyncio.run(main())


@pytest.mark.parametrize(("commit", "stored"), [("after", 4), ("each", 6), ("manual", None)])
def test_what_is_stored_after_a_crash_depends_on_commit(server: Server, commit: str, stored: int | None) -> None:
    """Batches of five; the eighth message is in work when it ends: offset 4 ended a batch, 6 was done."""

    async def main() -> None:
        async with Client(url(server)) as client:
            stream = f"b-{commit}"
            await filled(client, stream, 20, 1)
            consumer = Consumer(client, stream, "t", name="c", commit=commit, batch_messages=5)  # type: ignore[arg-type]
            await taken(consumer, 8)
            await consumer._session.close()  # no orderly end
            found = await client.stored_offset("c", stream, "t", 0)
            assert (None if found is None else found.stored) == stored

    asyncio.run(main())


def test_an_error_in_the_body_leaves_the_message_undone(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await filled(client, "e", 10, 1)
            with contextlib.suppress(ValueError):
                async with Consumer(client, "e", "t", name="c") as consumer:
                    async for message in consumer:
                        if message.offset == 4:
                            raise ValueError
            async with Consumer(client, "e", "t", name="c") as consumer:
                assert (await consumer.get()).offset == 4

    asyncio.run(main())


def test_manual_commits_batches_seeks_and_pauses(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await filled(client, "m", 20, 2)
            async with Consumer(client, "m", "t", name="c", commit="manual", batch_messages=4) as consumer:
                batch = await consumer.get_batch()
                assert len(batch) == 4 and len({each.partition for each in batch}) == 1
                consumer.done()
                await consumer.commit()
                found = await client.stored_offset("c", "m", "t", batch[0].partition)
                assert found is not None and found.stored == 3
                await consumer.seek(8)
                assert numbers(await taken(consumer, 4)) == [16, 17, 18, 19]
                await consumer.seek("earliest", 1)
                consumer.pause(0)
                assert numbers(await taken(consumer, 10)) == list(range(1, 20, 2))
                consumer.resume()
                assert consumer.partitions == (0, 1)
                moment = time.time_ns() // 1000
                await client.flush("m", "t", 0)
                async with Producer(client, "m", "t") as producer:
                    await producer.send_and_wait(b"99", partition=1)
                await consumer.seek(f"time:{moment}")
                assert numbers(await taken(consumer, 1)) == [99]

    asyncio.run(main())


def test_latest_begins_behind_what_is_there_and_cancelling_loses_nothing(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await filled(client, "l", 8)
            async with Consumer(client, "l", "t", name="c", start="latest") as consumer:
                await begun(consumer)
                sent = 0
                seen: list[Message] = []
                async with Producer(client, "l", "t") as producer:
                    while len(seen) < 200:
                        if sent < 200:
                            await producer.send(str(1000 + sent).encode())
                            sent += 1
                        with contextlib.suppress(TimeoutError):
                            seen.append(await asyncio.wait_for(consumer.get(), random.choice((0.0001, 0.002, 0.05))))
                assert numbers(seen) == list(range(1000, 1200))

    asyncio.run(main())


def test_a_purge_begins_anew(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await filled(client, "p", 10, 1)
            async with Consumer(client, "p", "t", name="c") as consumer:
                await taken(consumer, 10)
                await client.purge_topic("p", "t")
                async with Producer(client, "p", "t") as producer:
                    waiting = asyncio.ensure_future(taken(consumer, 1))
                    await asyncio.sleep(0.5)  # it has to meet the empty partition
                    await producer.send_and_wait(b"77")
                assert numbers(await waiting) == [77]

    asyncio.run(main())


def test_members_of_a_group_share_partitions_and_hand_them_over(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await filled(client, "g", 400)
            changes: list[tuple[str, tuple[int, ...]]] = []
            first = Consumer(
                client,
                "g",
                "t",
                group="g",
                assignment_interval_ms=100,
                batch_messages=10,
                on_assigned=lambda each: changes.append(("+", each)),
                on_revoked=lambda each: changes.append(("-", each)),
            )
            seen = await taken(first, 50)
            assert first.partitions == (0, 1, 2, 3)
            second = Consumer(client, "g", "t", group="g", assignment_interval_ms=100, batch_messages=10)

            async def until_all(consumer: Consumer) -> None:
                while len({each.payload for each in seen}) < 400:
                    with contextlib.suppress(TimeoutError):
                        seen.append(await asyncio.wait_for(consumer.get(), 0.1))

            async with asyncio.timeout(60):
                await asyncio.gather(until_all(first), until_all(second))
            while len(second.partitions) != 2 or len(first.partitions) != 2:
                for consumer in (first, second):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(consumer.get(), 0.1)
            assert set(first.partitions) | set(second.partitions) == {0, 1, 2, 3}
            assert changes[0] == ("+", (0, 1, 2, 3)) and any(sign == "-" for sign, _ in changes)
            assert numbers(seen) == list(range(400))  # each once: what moved was committed
            await first.close()
            async with asyncio.timeout(60):
                while len(second.partitions) != PARTITIONS:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(second.get(), 0.1)
            await second.close()

    asyncio.run(main())


@pytest.mark.io_engine
def test_killed_workers_leave_no_gap(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with Client(url(server)) as client:
            await filled(client, "k", 0)
            stopped = asyncio.Event()
            sent: list[bytes] = []
            seen: dict[bytes, int] = {}

            async def produce() -> None:
                async with Producer(client, "k", "t", deadline_s=60.0) as producer:
                    number, answers = 0, []
                    while not stopped.is_set() or number < 1000:
                        answers.append((str(number).encode(), await producer.send(str(number).encode())))
                        number += 1
                        await asyncio.sleep(0.001)
                    await producer.flush()
                    sent.extend(payload for payload, answer in answers if answer.exception() is None)

            async def consume() -> None:
                async with Consumer(client, "k", "t", group="g", assignment_interval_ms=100) as consumer:
                    last: dict[int, int] = {}
                    while not (stopped.is_set() and sent and all(each in seen for each in sent)):
                        with contextlib.suppress(TimeoutError):
                            message = await asyncio.wait_for(consumer.get(), 0.5)
                            assert message.offset <= last.get(message.partition, -1) + 1  # again, perhaps; no gap
                            last[message.partition] = message.offset
                            seen[message.payload] = seen.get(message.payload, 0) + 1

            async def kill() -> None:
                for _ in range(4):
                    pids = await asyncio.to_thread(server.worker_pids)
                    await asyncio.sleep(random.uniform(0.1, 0.4))
                    with contextlib.suppress(ProcessLookupError):  # one that is being replaced
                        os.kill(random.choice(pids), signal.SIGKILL)
                    await asyncio.sleep(random.uniform(0.0, 0.5))
                stopped.set()

            async with asyncio.timeout(120):
                await asyncio.gather(produce(), consume(), kill())

    with Server(tmp_path / "data", {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}) as server:
        asyncio.run(main(server))


@pytest.mark.io_engine
def test_threads_produce_and_consume(server: Server) -> None:
    with SyncClient(url(server)) as client:
        client.create_stream("y")
        client.create_topic("y", "t", 2)
        with SyncProducer(client, "y", "t", linger_ms=5) as producer:
            futures = [producer.send(str(number).encode()) for number in range(50)]
            assert producer.send_and_wait(b"50", key=b"k").topic == "t"
            assert {future.result(30).stream for future in futures} == {"y"}
            assert producer.send_batch([b"51", b"52"]).result(30)
        with SyncConsumer(client, "y", "t", group="g") as consumer:
            found = []
            for message in consumer:
                found.append(int(message.payload))
                if len(found) == 53:
                    break
            assert sorted(found) == list(range(53)) and consumer.partitions == (0, 1)


def test_partitions_that_go_during_a_poll_take_nothing_of_others_with_them(server: Server) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            await filled(client, "n", 0)
            async with Consumer(client, "n", "t", name="c", partitions=[0, 1]) as consumer:
                await consumer._assign()
                message = Message(1, 0, 0, b"kept", b"", 0, 0, 0)

                async def poll() -> list[Message]:
                    await asyncio.sleep(0)
                    consumer._lose([0])
                    return [message]

                consumer._poll_some = poll  # type: ignore[method-assign]
                async with asyncio.timeout(10):
                    assert await consumer.get() == message

    asyncio.run(main())
