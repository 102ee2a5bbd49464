"""Runs inside the environment of a released client: `client_import.py CONNECTION_STRING STREAM TOPIC`.

Prints the number of messages of partition 0, and first and last payload, as one JSON list.
"""

import asyncio
import json
import os
import sys

from apache_iggy import IggyClient, PollingStrategy  # type: ignore[import-not-found]


async def read(url: str, stream: str, topic: str) -> list[object]:
    client = IggyClient.from_connection_string(url)
    await client.connect()
    found: list[str] = []
    while messages := await client.poll_messages(
        stream, topic, 0, PollingStrategy.Offset(value=len(found)), 400, False
    ):
        found += [item.payload().decode() for item in messages]
    return [len(found), found[0], found[-1]]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(read(*sys.argv[1:4]))), flush=True)
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
