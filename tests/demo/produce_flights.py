"""Runs inside the client environment: `produce_flights.py URL FLIGHTS PARTITIONS_JSON`.

Sends the lines of FLIGHTS keyed by carrier with the released client. That client can only name a partition, so the key
is hashed before: PARTITIONS_JSON maps each carrier to its partition. One request is in flight; a batch whose call
failed is sent again.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from apache_iggy import IggyClient, SendMessage  # type: ignore[import-not-found]

BATCH_ROWS = 500
ATTEMPTS_MAX = 100
RETRY_PAUSE_S = 0.1


async def send(client: Any, partition: int, messages: list[Any]) -> int:
    """Sends until the server took it; returns how often the call failed before."""
    for failures in range(ATTEMPTS_MAX):
        try:
            await client.send_messages("nyc", "flights", partition, messages)
            return failures
        except Exception as problem:
            print(f"send again after: {problem}", file=sys.stderr)
            await asyncio.sleep(RETRY_PAUSE_S)
    raise SystemExit(f"partition {partition} took no batch in {ATTEMPTS_MAX} attempts")


async def produce(url: str, flights: Path, partitions: dict[str, int]) -> dict[str, Any]:
    client = IggyClient.from_connection_string(url)
    await client.connect()
    waiting: dict[int, list[Any]] = {}
    rows = size_bytes = failures = 0
    began = time.monotonic()
    with flights.open(encoding="utf-8") as lines:
        for line in lines:
            text = line.rstrip("\n")
            partition = partitions[json.loads(text)["carrier"]]
            batch = waiting.setdefault(partition, [])
            batch.append(SendMessage(text))
            rows += 1
            size_bytes += len(text.encode())
            if len(batch) == BATCH_ROWS:
                failures += await send(client, partition, waiting.pop(partition))
    for partition, batch in waiting.items():
        failures += await send(client, partition, batch)
    return {"rows": rows, "bytes": size_bytes, "seconds": time.monotonic() - began, "failed_calls": failures}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(produce(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])))), flush=True)
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
