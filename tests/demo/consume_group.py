"""Runs inside the client environment: `consume_group.py URL DIRECTORY NAME`.

A member of the group "readers" through the released client. Writes each message's number to DIRECTORY/NAME.out as it
comes; its offset is committed when it is consumed. Ends when DIRECTORY/NAME.stop exists; closing the connection is
leaving the group.
"""

import asyncio
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from apache_iggy import (  # type: ignore[import-not-found]
    AutoCommit,
    AutoCommitWhen,
    IggyClient,
    PollingStrategy,
)

BATCH = 100
STOP_CHECK_S = 0.05
GRACE_S = 1.0  # without a message; with a producer at work one comes earlier


def is_over(stop: Path) -> bool:
    return stop.exists()


async def following(messages: Any, stop: Path) -> Any:
    """The next message, None when there is none and the end is near.

    The client commits a message when it hands it out, so one that was asked for must not be left behind.
    """
    waiting, grace_ends = asyncio.ensure_future(messages.__anext__()), float("inf")
    while not waiting.done():
        await asyncio.wait({waiting}, timeout=STOP_CHECK_S)
        if is_over(stop):
            grace_ends = min(grace_ends, time.monotonic() + GRACE_S)
        if time.monotonic() > grace_ends and not waiting.done():
            return None
    return waiting.result()


async def consume(url: str, directory: Path, name: str) -> int:
    client = IggyClient.from_connection_string(url)
    await client.connect()
    consumer = await client.consumer_group(
        "readers",
        "groups",
        "numbers",
        polling_strategy=PollingStrategy.Next(),
        batch_length=BATCH,
        auto_commit=AutoCommit.When(AutoCommitWhen.ConsumingEachMessage()),
        create_consumer_group_if_not_exists=False,
        poll_interval=timedelta(milliseconds=2),
    )
    count, stop = 0, directory / f"{name}.stop"
    messages = consumer.iter_messages().__aiter__()
    with (directory / f"{name}.out").open("wb", buffering=0) as out:
        while not is_over(stop):
            message = await following(messages, stop)
            if message is not None:
                out.write(message.payload() + b"\n")
                count += 1
    return count


if __name__ == "__main__":
    print(
        json.dumps(asyncio.run(asyncio.wait_for(consume(sys.argv[1], Path(sys.argv[2]), sys.argv[3]), 300))), flush=True
    )
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
