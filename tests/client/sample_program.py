"""A program of a user, for type checkers: `mypy --strict` (with the other tests) and pyright see no fault in it."""

from __future__ import annotations

import asyncio

from shardd.client import Client, Consumer, Message, Position, Producer, SyncClient, SyncConsumer, SyncProducer
from shardd.client.errors import ClientError, Fate, NotFoundError


async def produce(url: str) -> list[Position]:
    async with Client(url) as client, Producer(client, "shop", "orders", linger_ms=5, delivery="at_most_once") as out:
        futures = [await out.send(b"payload", key=b"key", headers={"source": "web", "retry": 1})]
        futures.append(await out.send_batch([b"one", b"two"], partition=0))
        await out.flush()
        return [await future for future in futures]


async def consume(url: str, limit: int) -> list[bytes]:
    found: list[bytes] = []
    async with Client(url) as client, Consumer(client, "shop", "orders", group="billing", commit="each") as consumer:
        async for message in consumer:
            found.append(message.payload)
            if len(found) == limit:
                break
        batch: list[Message] = await consumer.get_batch()
        await consumer.seek("earliest", *{message.partition for message in batch})
    return found


async def administrate(url: str) -> int:
    async with Client(url) as client:
        stream = await client.create_stream("shop")
        topic = await client.create_topic(stream.id, "orders", 3)
        try:
            await client.delete_topic("shop", "missing")
        except NotFoundError as error:
            print(error.status, error.retryable, error.fate is Fate.NOT_SENT)
        users = [user.name for user in await client.users()]
        return topic.partitions_count + len(users)


def with_threads(url: str) -> str:
    with SyncClient(url) as client:
        with SyncProducer(client, "shop", "orders") as out:
            position: Position = out.send_and_wait(b"payload")
        with SyncConsumer(client, "shop", "orders", name="reader") as consumer:
            message: Message = consumer.get()
        stats = client.stats()
        return f"{position.partition} {message.offset} {stats.messages_count}"


def main(url: str = "shardd://iggy:iggy@127.0.0.1:8090") -> None:
    try:
        print(asyncio.run(administrate(url)), asyncio.run(produce(url)), asyncio.run(consume(url, 1)))
        print(with_threads(url))
    except ClientError as error:
        print(f"{error}: {error.fate.name}")


if __name__ == "__main__":
    main()
