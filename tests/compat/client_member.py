"""Runs inside the environment of a released client that has groups, `apache-iggy` 0.5 and later:
`client_member.py ADDRESS STREAM TOPIC GROUP`. One member: prints every message that it gets, `PARTITION OFFSET`, until
its standard input ends.
"""

import asyncio
import datetime
import inspect
import os
import sys
from typing import Any

from apache_iggy import AutoCommit, AutoCommitWhen, IggyClient, PollingStrategy  # type: ignore[import-not-found]

SOON = datetime.timedelta(milliseconds=5)
BATCH = 5


async def member(address: str, stream: str, topic: str, group: str) -> None:
    client = IggyClient(address)
    await client.connect()
    await client.login_user("iggy", "iggy")
    consumer = client.consumer_group(
        group,
        stream,
        topic,
        polling_strategy=PollingStrategy.Next(),
        batch_length=BATCH,
        auto_commit=AutoCommit.When(AutoCommitWhen.ConsumingEachMessage()),
        poll_interval=SOON,
        polling_retry_interval=SOON,
    )
    if inspect.isawaitable(consumer):  # since 0.7
        consumer = await consumer
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, sys.stdin.read).add_done_callback(lambda _ended: over.set())

    async def show(message: Any) -> None:
        print(message.payload().decode(), flush=True)

    await consumer.consume_messages(show, over)


if __name__ == "__main__":
    print("begins", flush=True)
    asyncio.run(member(*sys.argv[1:5]))
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
