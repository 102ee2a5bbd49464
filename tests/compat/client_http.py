"""A released client over HTTP: argument 1 is the connection string. Prints what it polled. Its threads may abort the
interpreter at its end, when everything was done: so it ends without one."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from apache_iggy import IggyClient, PollingStrategy, SendMessage  # type: ignore[import-not-found]


async def main(url: str) -> None:
    client = IggyClient.from_connection_string(url)
    await client.connect()
    await client.login_user("iggy", "iggy")
    await client.ping()
    await client.create_stream("w")
    await client.create_topic(stream="w", name="t", partitions_count=1)
    topic = await client.get_topic("w", "t")
    await client.send_messages("w", "t", 0, [SendMessage("hello"), SendMessage("x" * 70_000)])
    first = await client.poll_messages("w", "t", 0, PollingStrategy.First(), 1, True)
    rest = await client.poll_messages("w", "t", 0, PollingStrategy.Next(), 10, True)
    polled = [[message.offset(), len(message.payload())] for message in (*first, *rest)]
    print(json.dumps([topic.name, topic.partitions_count, polled]))


asyncio.run(main(sys.argv[1]))
sys.stdout.flush()
os._exit(0)
