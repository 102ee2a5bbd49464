"""Runs inside the environment of `apache-iggy` 0.5, 0.6 or 0.9: `client_shards.py ADDRESS STREAM FIRST_PARTITION`.

One connection sends to every partition of a topic and polls them in turn, so that whoever owns it, another shard's are
among them. Prints what it saw as JSON.
"""

import asyncio
import json
import os
import sys
from typing import Any

import apache_iggy as iggy  # type: ignore[import-not-found]
from apache_iggy import IggyClient, PollingStrategy, SendMessage

TOPIC, PARTITIONS, LARGE_BYTES = "t", 6, 150_000
ADDRESS, STREAM, FIRST = sys.argv[1], sys.argv[2], int(sys.argv[3])


def texts(partition: int) -> list[str]:
    """A small one, many more, and some that need several windows."""
    small = [f"{partition}/{number} " * (number % 7) + "." for number in range(300)]
    return small + [f"{partition}" * LARGE_BYTES for _ in range(5)]


async def poll(client: Any, partition: int, offset: int, count: int) -> list[list[Any]]:
    strategy = PollingStrategy.Offset(value=offset)
    if hasattr(iggy, "Consumer"):  # from 0.9 on
        named = {"consumer": iggy.Consumer.Single(7), "partition_id": partition, "polling_strategy": strategy}
        found = await client.poll_messages(STREAM, TOPIC, count=count, auto_commit=False, **named)
    else:
        found = await client.poll_messages(STREAM, TOPIC, partition, strategy, count, False)
    return [[message.offset(), message.payload().decode()] for message in found]


async def read_all(client: Any, partition: int) -> list[list[Any]]:
    """An answer of an earlier client may be shorter than asked for."""
    found: list[list[Any]] = []
    while part := await poll(client, partition, len(found), 400):
        found += part
    return found


async def session() -> dict[str, Any]:
    client = IggyClient(ADDRESS)
    await client.connect()
    await client.login_user("iggy", "iggy")
    await client.create_stream(STREAM)
    await client.create_topic(STREAM, TOPIC, PARTITIONS)
    partitions = range(FIRST, FIRST + PARTITIONS)
    for partition in partitions:
        all_of_them = texts(partition)
        for first in range(0, len(all_of_them), 61):
            await client.send_messages(
                STREAM, TOPIC, partition, [SendMessage(text) for text in all_of_them[first : first + 61]]
            )
    single = [[await poll(client, partition, 299, 1) for partition in partitions] for _ in range(3)]
    whole = [await read_all(client, partition) for partition in partitions]
    return {
        "single": [
            [found == [[299, texts(at)[299]]] for at, found in zip(partitions, lap, strict=True)] for lap in single
        ],
        "whole": [
            found == [[n, text] for n, text in enumerate(texts(at))]
            for at, found in zip(partitions, whole, strict=True)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(session())), flush=True)
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
