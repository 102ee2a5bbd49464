"""Runs inside the environment of a released client: `client_session.py ADDRESS CONNECTION_STRING`.

Does everything that the Python client offers for streams, topics and messages and prints what came back as JSON.
"""

import asyncio
import json
import os
import sys
from typing import Any

from apache_iggy import IggyClient, PollingStrategy, SendMessage  # type: ignore[import-not-found]

STREAM, TOPIC = "orders", "placed"
PARTITIONS = 3


async def refusal(action: Any) -> str:
    """The text of the error that a call raises; empty when it does not."""
    try:
        await action
    except Exception as problem:
        return str(problem)
    return ""


def shown(messages: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "offset": item.offset(),
            "payload": item.payload().hex(),
            "timestamp_us": item.timestamp(),
            "id": str(item.id()),
            "checksum": item.checksum(),
            "length": item.length(),
            "partition": item.partition_id(),
        }
        for item in messages
    ]


async def errors(client: Any) -> dict[str, str]:
    message = [SendMessage("x")]
    first = PollingStrategy.First()
    return {
        "stream_exists": await refusal(client.create_stream(STREAM)),
        "topic_exists": await refusal(client.create_topic(STREAM, TOPIC, 1)),
        "topic_without_stream": await refusal(client.create_topic("nowhere", "t", 1)),
        "too_many_partitions": await refusal(client.create_topic(STREAM, "wide", 1001)),
        "send_without_stream": await refusal(client.send_messages("nowhere", TOPIC, 0, message)),
        "send_without_topic": await refusal(client.send_messages(STREAM, "nowhere", 0, message)),
        "send_without_partition": await refusal(client.send_messages(STREAM, TOPIC, 99, message)),
        "poll_without_partition": await refusal(client.poll_messages(STREAM, TOPIC, 99, first, 1, False)),
        "poll_without_stream": await refusal(client.poll_messages("nowhere", TOPIC, 0, first, 1, False)),
        "still_works": await refusal(client.ping()),
    }


async def polls(client: Any) -> dict[str, Any]:
    """Every strategy on partition 1, whose ten messages came in two batches of five."""

    async def poll(strategy: Any, count: int = 10, *, commit: bool = False, partition: int = 1) -> list[dict[str, Any]]:
        return shown(await client.poll_messages(STREAM, TOPIC, partition, strategy, count, commit))

    everything = await poll(PollingStrategy.First())
    second_batch_us = everything[5]["timestamp_us"]
    return {
        "first": everything,
        "offset": await poll(PollingStrategy.Offset(value=7)),
        "beyond": await poll(PollingStrategy.Offset(value=10)),
        "last": await poll(PollingStrategy.Last(), 3),
        "timestamp": await poll(PollingStrategy.Timestamp(value=second_batch_us)),
        "next": [await poll(PollingStrategy.Next(), 4, commit=True) for _ in range(4)],
        "empty": await poll(PollingStrategy.First(), partition=0),
        "other": await poll(PollingStrategy.First(), partition=2),
        "by_number": shown(await client.poll_messages(0, 0, 1, PollingStrategy.First(), 2, False)),
    }


async def session(address: str, url: str) -> dict[str, Any]:
    plain = IggyClient(address)
    await plain.connect()
    await plain.ping()
    wrong_password = await refusal(plain.login_user("iggy", "wrong"))
    before_login = await refusal(plain.create_stream("early"))
    await plain.login_user("iggy", "iggy")

    client = IggyClient.from_connection_string(url)
    await client.connect()
    missing = await client.get_stream(STREAM) is None and await client.get_topic(STREAM, TOPIC) is None
    await client.create_stream(STREAM)
    await client.create_topic(STREAM, TOPIC, PARTITIONS)
    stream, topic = await plain.get_stream(STREAM), await plain.get_topic(STREAM, TOPIC)
    by_number = await plain.get_topic(stream.id, topic.id)
    for half in (0, 5):
        await client.send_messages(STREAM, TOPIC, 1, [SendMessage(f"message {n}") for n in range(half, half + 5)])
        await asyncio.sleep(0.01)
    await client.send_messages(stream.id, topic.id, 2, [SendMessage(bytes(range(256)) * 400), SendMessage("zürich ✈")])
    polled = await polls(plain)
    refused = await errors(client)
    stream, topic = await plain.get_stream(STREAM), await plain.get_topic(STREAM, TOPIC)
    return {
        "wrong_password": wrong_password,
        "before_login": before_login,
        "missing_is_none": missing,
        "stream": [stream.id, stream.name, stream.topics_count, stream.messages_count],
        "topic": [topic.id, topic.name, topic.partitions_count, topic.messages_count],
        "topic_by_number": by_number.name,
        "polls": polled,
        "errors": refused,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(session(sys.argv[1], sys.argv[2]))), flush=True)
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
