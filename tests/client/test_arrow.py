"""Batches of a consumer as Arrow tables."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shardd.client import Client, Consumer, Producer
from shardd.client.arrow import SCHEMA, record_batch
from shardd.client.messages import Message
from tests.support.server import ONE_SHARD, Server


def test_rows_are_the_messages_of_the_batch(tmp_path: Path) -> None:
    async def run(url: str) -> tuple[list[Message], int]:
        async with Client(url) as client:
            await client.create_stream("arrow")
            await client.create_topic("arrow", "events", 1)
            async with Producer(client, "arrow", "events") as producer:
                await producer.send_and_wait(b"", headers={"text": "a", "raw": b"\0\1", "number": 7})
                await (await producer.send_batch([b"\xff" * 10, b"x"]))
            async with Consumer(client, "arrow", "events", name="reader") as consumer:
                messages = await asyncio.wait_for(consumer.get_batch(), 60)
                while len(messages) < 3:
                    messages += await asyncio.wait_for(consumer.get_batch(), 60)
        return messages, len(messages)

    with Server(tmp_path / "data", ONE_SHARD) as server:
        messages, count = asyncio.run(run(f"shardd://iggy:iggy@{server.address}"))
    batch = record_batch(messages)
    assert batch.schema == SCHEMA and batch.num_rows == count == 3
    assert batch.column("payload").to_pylist() == [b"", b"\xff" * 10, b"x"]
    assert batch.column("offset").to_pylist() == [0, 1, 2]
    assert dict(batch.column("headers")[0].as_py()) == {"text": b"a", "raw": b"\0\1", "number": b"7"}
    assert batch.column("headers")[1].as_py() == []
    assert [int.from_bytes(each, "little") for each in batch.column("id").to_pylist()] == [each.id for each in messages]
    stamps = [int(each.timestamp() * 1_000_000) for each in batch.column("timestamp").to_pylist()]
    assert all(abs(stamp - each.timestamp_us) <= 1 for stamp, each in zip(stamps, messages, strict=True))


def test_no_messages_are_an_empty_table() -> None:
    assert record_batch([]).num_rows == 0 and record_batch([]).schema == SCHEMA
