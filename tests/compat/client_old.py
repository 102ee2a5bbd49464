"""Runs inside the environment of an older client: `client_old.py ADDRESS`. Prints what each call came to as JSON."""

import asyncio
import json
import os
import sys
from typing import Any

from apache_iggy import IggyClient, PollingStrategy, SendMessage  # type: ignore[import-not-found]

WAIT_S = 60.0


async def outcome(action: Any) -> str:
    """The text of the error; empty without one."""
    try:
        await asyncio.wait_for(action, WAIT_S)
    except Exception as problem:
        return str(problem) or type(problem).__name__
    return ""


async def session(address: str) -> dict[str, str]:
    client = IggyClient(address)
    await client.connect()
    first = PollingStrategy.First()
    return {
        "wrong password": await outcome(client.login_user("iggy", "wrong")),
        "login": await outcome(client.login_user("iggy", "iggy")),
        "missing stream": await outcome(client.get_stream("nowhere")),
        "create stream": await outcome(client.create_stream("old")),
        "create topic": await outcome(client.create_topic("old", "t", 2)),
        "get topic": await outcome(client.get_topic("old", "t")),
        "send": await outcome(client.send_messages("old", "t", 1, [SendMessage("hello")])),
        "poll": await outcome(client.poll_messages("old", "t", 1, first, 10, False)),
        "ping": await outcome(client.ping()),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(session(sys.argv[1]))), flush=True)
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
