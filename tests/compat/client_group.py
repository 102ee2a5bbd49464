"""Runs inside the environment of a released client: `client_group.py CONNECTION_STRING`.

Does everything that its consumers (always members of a group) and its other options offer, and prints what it saw as
JSON. Every wait is bounded.
"""

import asyncio
import contextlib
import datetime
import json
import os
import sys
from typing import Any

from apache_iggy import (  # type: ignore[import-not-found]
    AutoCommit,
    AutoCommitAfter,
    AutoCommitWhen,
    IggyClient,
    PollingStrategy,
    SendMessage,
)

STREAM, TOPIC = "groups", "t"
PARTITIONS, MESSAGES, BATCH = 2, 10, 5
WAIT_S = 60.0
SOON = datetime.timedelta(milliseconds=5)
INTERVAL = datetime.timedelta(milliseconds=30)
MODES = {
    "interval": AutoCommit.Interval(INTERVAL),
    "when-polling": AutoCommit.When(AutoCommitWhen.PollingMessages()),
    "when-all": AutoCommit.When(AutoCommitWhen.ConsumingAllMessages()),
    "when-each": AutoCommit.When(AutoCommitWhen.ConsumingEachMessage()),
    "when-every-5th": AutoCommit.When(AutoCommitWhen.ConsumingEveryNthMessage(5)),
    "interval-or-when": AutoCommit.IntervalOrWhen(INTERVAL, AutoCommitWhen.ConsumingAllMessages()),
    "interval-or-after": AutoCommit.IntervalOrAfter(INTERVAL, AutoCommitAfter.ConsumingAllMessages()),
    "after-all": AutoCommit.After(AutoCommitAfter.ConsumingAllMessages()),
    "after-each": AutoCommit.After(AutoCommitAfter.ConsumingEachMessage()),
    "after-every-5th": AutoCommit.After(AutoCommitAfter.ConsumingEveryNthMessage(5)),
}


async def refusal(action: Any) -> str:
    try:
        await asyncio.wait_for(action, WAIT_S)
    except Exception as problem:
        return str(problem) or type(problem).__name__
    return ""


async def consumer(client: Any, name: str, commit: Any, partition: int | None = None, **options: Any) -> Any:
    return await client.consumer_group(
        name,
        STREAM,
        TOPIC,
        partition_id=partition,
        polling_strategy=options.pop("strategy", PollingStrategy.Next()),
        batch_length=BATCH,
        auto_commit=commit,
        poll_interval=SOON,
        polling_retry_interval=SOON,
        **options,
    )


async def take(members: list[Any], count: int) -> list[list[Any]]:
    """[member, partition, offset, payload] of the next messages of all members together, through callbacks."""
    seen: list[list[Any]] = []
    enough = [asyncio.Event() for _ in members]

    async def consume(number: int) -> None:
        async def note(message: Any) -> None:
            seen.append([number, message.partition_id(), message.offset(), message.payload().decode()])
            if len(seen) >= count:
                for event in enough:
                    event.set()

        await members[number].consume_messages(note, enough[number])

    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.gather(*map(consume, range(len(members)))), WAIT_S)
    return seen


async def by_hand(client: Any) -> dict[str, Any]:
    """No auto-commit: the offset is stored after each message, by partition id and for the current partition."""
    member = await consumer(client, "by-hand", AutoCommit.Disabled())
    before = [member.name(), member.stream(), member.topic(), member.partition_id()]
    before += [member.get_last_consumed_offset(0), member.get_last_stored_offset(0)]
    seen: list[list[int]] = []

    async def iterate() -> None:
        async for message in member.iter_messages():
            seen.append([message.partition_id(), message.offset()])
            await member.store_offset(message.offset(), message.partition_id() if len(seen) % 2 else None)
            if len(seen) == PARTITIONS * MESSAGES:
                return

    await asyncio.wait_for(iterate(), WAIT_S)
    consumed = [member.get_last_consumed_offset(partition) for partition in range(PARTITIONS)]
    stored = [member.get_last_stored_offset(partition) for partition in range(PARTITIONS)]
    deleted = [await refusal(member.delete_offset(0)) for _ in range(2)]
    return {"before": before, "seen": seen, "consumed": consumed, "stored": stored, "deleted": deleted}


async def session(url: str) -> dict[str, Any]:
    client, other = (IggyClient.from_connection_string(url) for _ in range(2))
    await client.connect()
    await other.connect()
    await client.create_stream(STREAM)
    await client.create_topic(STREAM, TOPIC, PARTITIONS)
    hour = datetime.timedelta(hours=1)
    await client.create_topic(STREAM, "options", 1, "gzip", 2, hour, 2 << 30)
    for partition in range(PARTITIONS):
        await client.send_messages(STREAM, TOPIC, partition, [SendMessage(f"{partition}.{n}") for n in range(MESSAGES)])
    everything = PARTITIONS * MESSAGES
    found: dict[str, Any] = {"by_hand": await by_hand(client)}
    found["modes"] = {}
    for name, mode in MODES.items():
        # these releases never commit in this mode when callbacks consume, so NEXT gives each first batch alone
        count = PARTITIONS * BATCH if name == "after-all" else everything
        found["modes"][name] = await take([await consumer(client, name, mode)], count)
    shared = [await consumer(each, "shared", MODES["when-polling"]) for each in (client, other)]
    found["shared"] = await take(shared, everything)
    found["one_partition"] = await take([await consumer(client, "one", MODES["when-each"], 1)], MESSAGES)
    strategies = {
        "first": PollingStrategy.First(),
        "last": PollingStrategy.Last(),
        "offset": PollingStrategy.Offset(value=5),
        "timestamp": PollingStrategy.Timestamp(value=0),
    }
    found["strategies"] = {
        name: await take([await consumer(client, f"by-{name}", AutoCommit.Disabled(), 0, strategy=strategy)], 5)
        for name, strategy in strategies.items()
    }
    missing = consumer(client, "missing", MODES["interval"], create_consumer_group_if_not_exists=False)
    found["missing_group"] = await refusal(missing)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(session(sys.argv[1]))), flush=True)
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
