"""The client on what the released Iggy 0.8.0 answered and on the data directory that it wrote."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from shardd.client import Client, Consumer, commands
from tests.support import data_fixture, golden
from tests.support.server import Server

DATA: Final = Path(__file__).parents[1] / "golden" / "data"
# code -> how the client reads its answer; those of hosts and of all clients are recorded in parts
READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    each.code: each.read
    for each in (
        commands.me(),
        commands.connected(1),
        commands.user("x"),
        commands.users(),
        commands.tokens(),
        commands.stream("x"),
        commands.streams(),
        commands.topic("x", "y"),
        commands.topics("x"),
        commands.group("x", "y", "z"),
        commands.groups("x", "y"),
        commands.stored_offset("z", "x", "y", 0),
        commands.poll("z", "x", "y", 0),
    )
}


def test_every_recorded_answer_that_holds_something_is_read() -> None:
    read: Counter[int] = Counter()
    for name in ("classic-0.8.0", "segments-0.8.0"):
        for scenario in golden.load(DATA / f"{name}.jsonl.xz"):
            for step in scenario.steps:
                code = golden.command_code(step)
                whole = all(end is not None for _start, end, _reason in step.get("mask", ()))
                if code in READERS and step.get("status") == 0 and step.get("reply_hex") and whole:
                    READERS[code](bytes.fromhex(step["reply_hex"]))
                    read[code] += 1
    assert set(read) == set(READERS) and sum(read.values()) > 350, read


def test_everything_in_the_recorded_directory_is_listed_and_consumed(tmp_path: Path) -> None:
    content = data_fixture.description()

    async def run(url: str) -> int:
        count = 0
        async with Client(url) as client:
            assert [each.name for each in await client.streams()] == [each["name"] for each in content["streams"]]
            for stream in content["streams"]:
                for topic in stream["topics"]:
                    found = await client.topic(stream["name"], topic["name"])
                    assert found is not None and len(found.partitions) == len(topic["partitions"])
                    expiry_us = topic["message_expiry"]
                    assert found.message_expiry_us in (expiry_us, expiry_us or data_fixture.NEVER)
                    count += await consume(client, stream["name"], topic)
        return count

    async def consume(client: Client, stream: str, topic: dict[str, Any]) -> int:
        """How many messages it has; each is what the rules of the record say."""
        place, origin_us = f"{stream}/{topic['name']}", content["rules"]["origin_timestamp"]
        for partition in topic["partitions"]:
            number, left = partition["id"], partition["messages"]
            consumer = Consumer(client, stream, topic["name"], name="of the record", partitions=[number])
            async with consumer:
                while left:
                    for message in await asyncio.wait_for(consumer.get_batch(), 60):
                        expected = data_fixture.expected_message(place, number, message.offset, origin_us)
                        id_ = message.id.to_bytes(16, "little")
                        assert (id_, message.payload, message.headers, message.origin_timestamp_us) == expected
                        left -= 1
            assert left == 0
        return sum(each["messages"] for each in topic["partitions"])

    with Server(data_fixture.unpack(tmp_path), {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}) as server:
        assert asyncio.run(run(f"shardd://iggy:iggy@{server.address}")) > 1000
