"""A topic `t` in a stream of a test's own, and what is sent to it and read from it."""

from __future__ import annotations

import asyncio
import contextlib

from shardd.client import Client, Consumer, Message, Producer
from tests.support.server import Server


def url(server: Server) -> str:
    return f"shardd://iggy:iggy@{server.address}"


async def make(client: Client, stream: str, partitions: int = 1) -> None:
    await client.create_stream(stream)
    await client.create_topic(stream, "t", partitions)


async def send(client: Client, stream: str, numbers: range, partition: int = 0) -> None:
    async with Producer(client, stream, "t") as producer:
        await (await producer.send_batch([b"%d" % number for number in numbers], partition=partition))


async def taken(consumer: Consumer, count: int) -> list[Message]:
    async with asyncio.timeout(60):
        return [await consumer.get() for _ in range(count)]


async def begun(consumer: Consumer) -> None:
    """It has its places, and nothing to read there."""
    async with asyncio.timeout(60):
        while not consumer.partitions:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(consumer.get(), 1.0)
