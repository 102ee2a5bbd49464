"""Runs inside the environment of `apache-iggy` 0.7 or 0.8: `client_limits.py ADDRESS`.

Makes topics with every limit that the client can set, fills them, and prints as JSON what it sees of them, at once and
when the limits have had their effect. Clients of these versions cannot change a topic.
"""

import asyncio
import datetime
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from apache_iggy import IggyClient, PollingStrategy, SendMessage  # type: ignore[import-not-found]

STREAM, MESSAGES, EXPIRY_S, WAIT_S = "limits", 60, 6, 90.0
TOPICS: dict[str, dict[str, Any]] = {
    "plain": {},
    "expiring": {"message_expiry": datetime.timedelta(seconds=EXPIRY_S)},
    "small": {"max_topic_size": 50_000},
    "packed": {"compression_algorithm": "gzip"},
}


async def offsets(client: Any, topic: str) -> list[int]:
    found = await client.poll_messages(STREAM, topic, 0, PollingStrategy.First(), 1000, False)
    return [message.offset() for message in found]


async def seen(client: Any, topic: str) -> list[Any]:
    """Number of messages as the topic shows it, and the offsets that it serves."""
    served = await offsets(client, topic)
    return [(await client.get_topic(STREAM, topic)).messages_count, served]


async def until(client: Any, topic: str, condition: Callable[[list[Any]], bool]) -> list[Any]:
    deadline = time.monotonic() + WAIT_S
    while True:
        found = await seen(client, topic)
        if condition(found) or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.1)


async def session() -> dict[str, Any]:
    client = IggyClient(sys.argv[1])
    await client.connect()
    await client.login_user("iggy", "iggy")
    await client.create_stream(STREAM)
    for topic, limits in TOPICS.items():
        await client.create_topic(STREAM, topic, 1, **limits)
    before: dict[str, Any] = {}
    for topic in TOPICS:
        for number in range(MESSAGES):
            await client.send_messages(STREAM, topic, 0, [SendMessage(f"{number:04} " * 187)])
        before[topic] = await seen(client, topic)
    after = {
        "expiring": await until(client, "expiring", lambda found: found == [0, []]),
        "small": await until(client, "small", lambda found: 0 < found[0] < MESSAGES * 3 // 4),
    }
    for topic in ("plain", "packed"):
        after[topic] = await seen(client, topic)
    return {"before": before, "after": after}


print(json.dumps(asyncio.run(session())))
