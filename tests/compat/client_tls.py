"""Runs inside the environment of a released client: `client_tls.py CONNECTION_STRING`.

Connects, sends and reads one message; prints what came back, or the text of the error, as JSON.
"""

import asyncio
import json
import os
import sys

from apache_iggy import IggyClient, PollingStrategy, SendMessage  # type: ignore[import-not-found]


async def main() -> None:
    client = IggyClient.from_connection_string(sys.argv[1])
    try:
        await asyncio.wait_for(client.connect(), 15)
        await client.create_stream("tls")
        await client.create_topic("tls", "t", partitions_count=1)
        await client.send_messages("tls", "t", 0, [SendMessage("over tls")])
        seen = await client.poll_messages("tls", "t", 0, PollingStrategy.First(), 10, False)
        print(json.dumps([item.payload().decode() for item in seen]))
    except Exception as problem:
        print(json.dumps(f"{type(problem).__name__}: {problem}"))


asyncio.run(main())
sys.stdout.flush()
os._exit(0)  # its threads abort at the end of the interpreter
