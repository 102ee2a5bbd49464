"""Runs inside the environment of a released client, `iggy-py` or `apache-iggy`:
`client_earlier.py VERSION ADDRESS PARTITION STREAM OTHER...`.

Logs in, creates STREAM, sends, polls and commits ("-": only logs in); then reads the streams of the OTHERs, which
clients of other generations have written: `NAME` or `NAME:ID:ID OF ITS TOPIC`. Prints what it saw as JSON. PARTITION:
what the first one is called.
"""

import asyncio
import inspect
import json
import os
import sys
from typing import Any

try:
    import apache_iggy as iggy  # type: ignore[import-not-found]
except ImportError:
    import iggy_py as iggy  # type: ignore[import-not-found]

TOPIC = "t"
VERSION = tuple(map(int, sys.argv[1].split(".")))
ADDRESS, PARTITION = sys.argv[2], int(sys.argv[3])
HAS_STRATEGY = hasattr(iggy, "PollingStrategy")
NUMBERED = VERSION <= (0, 2, 0)  # every id is chosen, and nothing else names a stream
CHOSEN = 40 + 2 * VERSION[1]


async def outcome(action: Any) -> Any:
    """What a call returned, or the text of its error; early releases have no coroutines."""
    try:
        result = action()
        result = await result if inspect.isawaitable(result) else result
        return None if result == () else result
    except BaseException as problem:
        return f"{type(problem).__name__}: {problem}"


async def poll(client: Any, stream: Any, topic: Any, count: int, *, commit: bool) -> Any:
    """NEXT, and FIRST without a commit: all clients are consumer 0 or 1, and have committed what they wrote."""
    kinds = iggy.PollingStrategy if HAS_STRATEGY else None
    strategy: tuple[Any, ...] = () if kinds is None else (kinds.Next() if commit else kinds.First(),)
    if VERSION >= (0, 9, 0):
        asked = {"partition_id": PARTITION, "count": count, "auto_commit": commit, "polling_strategy": strategy[0]}
        who = iggy.Consumer.Single(1)
        found = await outcome(lambda: client.poll_messages(stream, topic, consumer=who, **asked))
    else:
        found = await outcome(lambda: client.poll_messages(stream, topic, PARTITION, *strategy, count, commit))
    if not isinstance(found, list):
        return found
    return [[message.offset(), message.payload().decode()] for message in found]


async def create(client: Any, stream: str) -> tuple[Any, Any, list[Any]]:
    """How stream and topic are called from now on, and what the calls came to."""
    if NUMBERED:
        made = [await outcome(lambda: client.create_stream(CHOSEN, stream)) for _ in range(2)]
        compression = () if VERSION < (0, 2, 0) else ("none",)
        made.append(await outcome(lambda: client.create_topic(CHOSEN, CHOSEN + 1, 2, TOPIC, *compression)))
        return CHOSEN, CHOSEN + 1, made
    made = [await outcome(lambda: client.create_stream(stream)) for _ in range(2)]
    needs_compression = VERSION < (0, 2, 5)
    compression = ("none",) if needs_compression else ()
    made.append(await outcome(lambda: client.create_topic(stream, TOPIC, 2, *compression)))
    return stream, TOPIC, made


async def session(stream: str, others: list[str]) -> dict[str, Any]:
    client = iggy.IggyClient() if VERSION < (0, 2, 5) else iggy.IggyClient(ADDRESS)
    await outcome(client.connect)
    found: dict[str, Any] = {"wrong": await outcome(lambda: client.login_user("iggy", "wrong"))}
    found["login"] = await outcome(lambda: client.login_user("iggy", "iggy"))
    if stream != "-":
        place, topic, found["create"] = await create(client, stream)
        messages = [iggy.SendMessage(text) for text in ("one", "two" * 300, "three")]
        found["send"] = await outcome(lambda: client.send_messages(place, topic, PARTITION, messages))
        found["send"] = None if VERSION >= (0, 9, 0) and "Error" not in str(found["send"]) else found["send"]
        found["nowhere"] = await outcome(lambda: client.send_messages(place, topic, 99, messages))
        found["polls"] = [await poll(client, place, topic, 2, commit=True) for _ in range(3)]
    found["others"] = {}
    for name, *ids in (other.split(":") for other in others):
        if NUMBERED and ids:
            found["others"][name] = await poll(client, int(ids[0]), int(ids[1]), 10, commit=False)
        elif not NUMBERED:
            found["others"][name] = await poll(client, name, TOPIC, 10, commit=False)
    return found


if __name__ == "__main__":
    if inspect.iscoroutinefunction(iggy.IggyClient.connect) or VERSION >= (0, 4, 0):
        seen = asyncio.run(session(sys.argv[4], sys.argv[5:]))
    else:  # blocking calls, outside of any loop
        steps = session(sys.argv[4], sys.argv[5:])
        try:
            steps.send(None)
        except StopIteration as ended:
            seen = ended.value
    print(json.dumps(seen), flush=True)
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
