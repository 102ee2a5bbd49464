"""A released client over WebSocket: argument 1 is the connection string. Prints the lengths of what it polled."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from apache_iggy import IggyClient, PollingStrategy, SendMessage  # type: ignore[import-not-found]


async def main(url: str) -> None:
    client = IggyClient.from_connection_string(url)
    await client.connect()
    await client.ping()
    await client.create_stream("w")
    await client.create_topic(stream="w", name="t", partitions_count=1)
    await client.send_messages("w", "t", 0, [SendMessage("hello"), SendMessage("x" * 70_000)])
    polled = await client.poll_messages("w", "t", 0, PollingStrategy.First(), 10, False)
    print(json.dumps([len(message.payload()) for message in polled]))


asyncio.run(main(sys.argv[1]))
sys.stdout.flush()
os._exit(0)  # the client's own threads may abort the interpreter at its end
