"""Runs inside the client environment: `consume_flights.py URL DIRECTORY PARTITIONS_JSON`.

Reads the partitions with the released client while they grow, each from offset 0 on, and writes the payloads to
DIRECTORY/<partition>.jsonl. Ends when the file DIRECTORY/produced exists and nothing more comes.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from apache_iggy import IggyClient, PollingStrategy  # type: ignore[import-not-found]

POLL_COUNT = 1000
IDLE_PAUSE_S = 0.02
FAILURES_MAX = 300


async def poll(client: Any, partition: int, next_offset: int) -> list[Any]:
    for _ in range(FAILURES_MAX):
        try:
            strategy = PollingStrategy.Offset(value=next_offset)
            found: list[Any] = await client.poll_messages("nyc", "flights", partition, strategy, POLL_COUNT, False)
            return found
        except Exception as problem:
            print(f"poll again after: {problem}", file=sys.stderr)
            await asyncio.sleep(0.1)
    raise SystemExit(f"partition {partition} answered no poll in {FAILURES_MAX} attempts")


async def consume(url: str, directory: Path, partitions: list[int]) -> dict[str, int]:
    client = IggyClient.from_connection_string(url)
    await client.connect()
    next_offsets = dict.fromkeys(partitions, 0)
    files = {partition: (directory / f"{partition}.jsonl").open("wb") for partition in partitions}
    while True:
        all_produced, idle = (directory / "produced").exists(), True
        for partition in partitions:
            for message in await poll(client, partition, next_offsets[partition]):
                if message.offset() != next_offsets[partition]:
                    raise SystemExit(
                        f"partition {partition}: offset {message.offset()}, {next_offsets[partition]} is due"
                    )
                files[partition].write(message.payload() + b"\n")
                next_offsets[partition] += 1
                idle = False
        if idle and all_produced:
            break
        if idle:
            await asyncio.sleep(IDLE_PAUSE_S)
    for file in files.values():
        file.close()
    return {str(partition): offset for partition, offset in next_offsets.items()}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(consume(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])))), flush=True)
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
