"""Runs inside the environment of `apache-iggy`: `iggy_sends.py CONNECTION_STRING COUNT`.

Single sends of 100 B to one partition, 32 on the way; prints the seconds that they took."""

import asyncio
import sys
import time
from collections.abc import Iterator

from apache_iggy import IggyClient, SendMessage  # type: ignore[import-not-found]

IN_FLIGHT, PAYLOAD = 32, b"x" * 100


async def send(client: IggyClient, numbers: Iterator[int]) -> None:
    for _ in numbers:
        await client.send_messages("bench", "iggy", 0, [SendMessage(PAYLOAD)])


async def main() -> None:
    client = IggyClient.from_connection_string(sys.argv[1])
    await client.connect()
    numbers = iter(range(int(sys.argv[2])))
    begun = time.perf_counter()
    await asyncio.gather(*(send(client, numbers) for _ in range(IN_FLIGHT)))
    print(time.perf_counter() - begun)


asyncio.run(main())
