"""Everything that gufo-liftbridge can do, in an environment of its own: with HOST:PORT it prints one JSON object, by
scenario what the client saw."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from gufo.liftbridge.client import LiftbridgeClient
from gufo.liftbridge.error import LiftbridgeError
from gufo.liftbridge.types import AckPolicy, StartPosition

TIMEOUT_S = 30.0


async def read(client: LiftbridgeClient, stream: str, count: int, **options: Any) -> list[Any]:
    found: list[Any] = []

    async def take() -> None:
        async for message in client.subscribe(stream, **options):
            found.append(message)
            if len(found) == count:
                return

    await asyncio.wait_for(take(), TIMEOUT_S)
    return found


def shown(messages: list[Any]) -> list[Any]:
    return [[each.offset, each.value.decode(), each.key.decode()] for each in messages]


async def refused(call: Any) -> str:
    try:
        await call
    except LiftbridgeError as error:
        return type(error).__name__
    return "nothing"


async def metadata(address: str) -> Any:
    async with LiftbridgeClient([address]) as client:
        empty = await client.get_metadata()
        await client.create_stream("meta", subject="meta.in", partitions=3)
        found = await client.get_metadata("meta")
        parts = [await client.get_partition_metadata("meta", number) for number in range(3)]
        again = await refused(client.create_stream("meta"))
        unknown = await refused(client.delete_stream("nowhere"))
        await client.delete_stream("meta")
        left = await client.get_metadata()
        (stream,) = found.metadata
        (broker,) = empty.brokers
        return {
            "streams": [each.name for each in empty.metadata],
            "broker": f"{broker.host}:{broker.port}",
            "stream": [stream.name, stream.subject, sorted(stream.partitions)],
            "leaders": [part.leader == broker.id and part.isr == part.replicas == [broker.id] for part in parts],
            "empty": [[part.id, part.high_watermark, part.newest_offset, part.paused] for part in parts],
            "again": again,
            "unknown": unknown,
            "left": [each.name for each in left.metadata],
        }


async def publish_and_subscribe(address: str) -> Any:
    async with LiftbridgeClient([address]) as client:
        await client.create_stream("pub", wait_for_stream=True)
        started = time.time()
        for number in range(10):
            policy = [AckPolicy.LEADER, AckPolicy.ALL, AckPolicy.NONE][number % 3]
            await client.publish(
                b"msg%d" % number, stream="pub", headers={"Number": b"%d" % number}, key=b"k", ack_policy=policy
            )
        found = await read(client, "pub", 10, start_position=StartPosition.EARLIEST)
        part = await client.get_partition_metadata("pub", 0)
        return {
            "messages": shown(found),
            "headers": [message.headers["Number"].decode() for message in found],
            "own": [sorted(message.headers) for message in found[:1]],
            "subject": found[0].subject,
            "partition": found[0].partition,
            "now": all(started - 60 < message.timestamp / 1e9 < time.time() + 60 for message in found),
            "from_5": shown(await read(client, "pub", 5, start_offset=5)),
            "latest": shown(await read(client, "pub", 1, start_position=StartPosition.LATEST)),
            "since": shown(await read(client, "pub", 10, start_timestamp=started - 3600)),
            "end": [part.high_watermark, part.newest_offset],
            "nowhere": await refused(client.publish(b"x", stream="nowhere")),
            "too_large": await refused(client.publish(b"x" * 3_000_000, stream="pub")),
        }


async def live(address: str) -> Any:
    """What is published while somebody listens from the end on."""
    async with LiftbridgeClient([address]) as client:
        await client.create_stream("live", partitions=2)
        await client.publish(b"before", stream="live", partition=1)
        found: list[Any] = []

        async def take() -> None:
            async for message in client.subscribe("live", partition=1, start_position=StartPosition.NEW_ONLY):
                found.append(message)
                if message.value == b"last":
                    return

        async with LiftbridgeClient([address]) as publisher:
            reader = asyncio.ensure_future(take())
            deadline = time.monotonic() + TIMEOUT_S
            while not found and time.monotonic() < deadline:  # nobody tells when it listens
                await publisher.publish(b"again", stream="live", partition=1)
                await asyncio.sleep(0.05)
            await publisher.publish(b"last", stream="live", partition=1)
            await asyncio.wait_for(reader, TIMEOUT_S)
        values = [message.value for message in found]
        offsets = [message.offset for message in found]
        return {
            "before": b"before" in values,
            "last": values[-1].decode(),
            "dense": offsets == list(range(offsets[0], offsets[0] + len(offsets))),
            "partition": sorted({message.partition for message in found}),
        }


async def bulk(address: str) -> Any:
    """PublishAsync: keys, one correlation id for all, compressed values, both partitions."""
    async with LiftbridgeClient([address], compression_method="lzma", compression_threshold=100) as client:
        await client.create_stream("bulk", partitions=2)
        requests = [
            client.get_publish_request(
                b"%d" % number * 200, stream="bulk", partition=number % 2, key=b"%d" % number, correlation_id="one",
                auto_compress=True,
            )
            for number in range(100)
        ]  # fmt: skip
        acks = [ack async for ack in client.publish_bulk(requests)]
        found = [await read(client, "bulk", 50, partition=part, start_offset=0) for part in range(2)]
        return {
            "acks": len(acks),
            "ids": sorted({ack.correlationId for ack in acks}),
            "errors": sum(ack.asyncError.message != "" for ack in acks),
            "offsets": [sorted(ack.ack.offset for ack in acks) == sorted([*range(50), *range(50)])],
            "values": [[message.value == message.key * 200 for message in part].count(True) for part in found],
            "keys": [[int(message.key) for message in part][:3] for part in found],
        }


async def resume(address: str) -> Any:
    async with LiftbridgeClient([address]) as client:
        await client.create_stream("resume")
        for number in range(10):
            await client.publish(b"%d" % number, stream="resume")
        await client.set_cursor(stream="resume", partition=0, cursor_id="here", offset=4)
        found = await read(client, "resume", 5, start_position=StartPosition.RESUME, cursor_id="here")
        fresh = await read(client, "resume", 10, start_position=StartPosition.RESUME, cursor_id="other")
        return {"offsets": [message.offset for message in found], "fresh": [message.offset for message in fresh]}


async def cursors(address: str) -> Any:
    async with LiftbridgeClient([address]) as client:
        await client.create_stream("cursors", wait_for_stream=True)
        await client.wait_for_cursors()
        seen = [await client.get_cursor(stream="cursors", partition=0, cursor_id="c")]
        for number in range(10):
            await client.set_cursor(stream="cursors", partition=0, cursor_id="c", offset=number)
            seen.append(await client.get_cursor(stream="cursors", partition=0, cursor_id="c"))
        return {"seen": seen}


async def settings(address: str) -> Any:
    async with LiftbridgeClient([address]) as client:
        await client.create_stream(
            "settings", subject="a.b", group="g", retention_max_age=3600, retention_max_bytes=1 << 20,
            segment_max_age=60, segment_max_bytes=1 << 16, auto_pause_time=3600, auto_pause_disable_if_subscribers=True,
            minisr=1,
        )  # fmt: skip
        return {
            "subject": (await client.get_metadata("settings")).metadata[0].subject,
            "factor": await refused(client.create_stream("three", replication_factor=3)),
            "compact": await refused(client.create_stream("compact", enable_compact=True)),
        }


async def main(address: str) -> None:
    scenarios = (metadata, publish_and_subscribe, live, bulk, resume, cursors, settings)
    print(json.dumps({scenario.__name__: await scenario(address) for scenario in scenarios}))


asyncio.run(main(sys.argv[1]))
