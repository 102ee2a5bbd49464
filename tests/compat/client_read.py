"""Runs inside the environment of a released client: `client_read.py CONNECTION_STRING STREAM TOPIC`.

Prints the payloads of partition 0 as a JSON list of hex texts.
"""

import asyncio
import json
import os
import sys

from apache_iggy import IggyClient, PollingStrategy  # type: ignore[import-not-found]


async def read(url: str, stream: str, topic: str) -> list[str]:
    client = IggyClient.from_connection_string(url)
    await client.connect()
    messages = await client.poll_messages(stream, topic, 0, PollingStrategy.First(), 100, False)
    return [item.payload().hex() for item in messages]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(read(*sys.argv[1:4]))), flush=True)
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
