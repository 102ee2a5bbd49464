"""Runs inside the client environment: `spark_producer.py URL FLIGHTS ROWS_PER_SECOND`.

Sends the lines of FLIGHTS in order to the partitions of nyc/flights, in batches that take turns over the partitions.
Every row arrives once: when a call fails, the last message of the partition tells whether the server had taken the
batch.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from apache_iggy import IggyClient, PollingStrategy, SendMessage  # type: ignore[import-not-found]

BATCH_ROWS = 500
PARTITIONS = 4
ATTEMPTS_MAX = 200
RETRY_PAUSE_S = 0.1


async def last_row(client: Any, partition: int) -> int:
    """Row number of the newest message of a partition; -1 for none."""
    polled = await client.poll_messages("nyc", "flights", partition, PollingStrategy.Last(), 1, False)
    return int(json.loads(polled[-1].payload())["row"]) if polled else -1


async def send(client: Any, partition: int, lines: list[str]) -> int:
    """Sends until the server has it; returns how often a call failed."""
    last = int(json.loads(lines[-1])["row"])
    for failures in range(ATTEMPTS_MAX):
        try:
            if failures and await last_row(client, partition) == last:
                return failures
            await client.send_messages("nyc", "flights", partition, [SendMessage(line) for line in lines])
            return failures
        except Exception as problem:
            print(f"send again after: {problem}", file=sys.stderr)
            await asyncio.sleep(RETRY_PAUSE_S)
    raise SystemExit(f"partition {partition} took no batch in {ATTEMPTS_MAX} attempts")


async def produce(url: str, lines: list[str], rows_per_second: float) -> dict[str, Any]:
    client = IggyClient.from_connection_string(url)
    await client.connect()
    rows = failures = 0
    began = time.monotonic()
    for number, first in enumerate(range(0, len(lines), BATCH_ROWS)):
        batch = lines[first : first + BATCH_ROWS]
        failures += await send(client, number % PARTITIONS, batch)
        rows += len(batch)
        ahead_s = rows / rows_per_second - (time.monotonic() - began)
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
    return {"rows": rows, "seconds": time.monotonic() - began, "failed_calls": failures}


if __name__ == "__main__":
    flights = Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()
    print(json.dumps(asyncio.run(produce(sys.argv[1], flights, float(sys.argv[3])))), flush=True)
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
