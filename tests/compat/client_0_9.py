"""Runs inside the environment of the released client 0.9: `client_0_9.py ADDRESS CONNECTION_STRING`.

Does what its API has for streams, topics, messages, groups and users and prints what came back as JSON.
"""

import asyncio
import datetime
import json
import os
import sys
from typing import Any

from apache_iggy import (  # type: ignore[import-not-found]
    AutoCommit,
    AutoCommitWhen,
    Consumer,
    Durability,
    HeaderKey,
    HeaderValue,
    IggyClient,
    Partitioning,
    PollingStrategy,
    SendMessage,
)

STREAM, TOPIC, GROUP = "orders", "placed", "readers"
PARTITIONS = 3
WAIT_S = 60.0
SOON = datetime.timedelta(milliseconds=5)
CONSUMER = Consumer.Single(7)


async def refusal(action: Any) -> str:
    """The text of the error that a call raises; empty when it does not."""
    try:
        await asyncio.wait_for(action, WAIT_S)
    except Exception as problem:
        return str(problem) or type(problem).__name__
    return ""


def shown(messages: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "offset": item.offset(),
            "payload": item.payload().hex(),
            "timestamp_us": item.timestamp(),
            "id": str(item.id()),
            "partition": item.partition_id(),
        }
        for item in messages
    ]


async def poll(client: Any, strategy: Any, count: int = 10, *, commit: bool = False, **options: Any) -> Any:
    options = {"consumer": CONSUMER, "partition_id": 1, "stream": STREAM, "topic": TOPIC} | options
    stream, topic = options.pop("stream"), options.pop("topic")
    return shown(
        await client.poll_messages(stream, topic, polling_strategy=strategy, count=count, auto_commit=commit, **options)
    )


async def polls(client: Any) -> dict[str, Any]:
    """Every strategy on partition 1, whose ten messages came in two batches of five."""
    everything = await poll(client, PollingStrategy.First())
    second_batch_us = everything[5]["timestamp_us"]
    return {
        "first": everything,
        "offset": await poll(client, PollingStrategy.Offset(value=7)),
        "beyond": await poll(client, PollingStrategy.Offset(value=10)),
        "last": await poll(client, PollingStrategy.Last(), 3),
        "timestamp": await poll(client, PollingStrategy.Timestamp(value=second_batch_us)),
        "next": [await poll(client, PollingStrategy.Next(), 4, commit=True) for _ in range(4)],
        "empty": await poll(client, PollingStrategy.First(), partition_id=0),
        "other": await poll(client, PollingStrategy.First(), partition_id=2),
        "by_number": await poll(client, PollingStrategy.First(), 2, stream=0, topic=0),
    }


async def errors(client: Any) -> dict[str, str]:
    message = [SendMessage("x")]
    first = PollingStrategy.First()
    return {
        "stream_exists": await refusal(client.create_stream(STREAM)),
        "topic_exists": await refusal(client.create_topic(STREAM, TOPIC, 1)),
        "topic_without_stream": await refusal(client.create_topic("nowhere", "t", 1)),
        "too_many_partitions": await refusal(client.create_topic(STREAM, "wide", 1001)),
        "unknown_option": await refusal(client.create_topic(STREAM, "wide", 1, options={"unheard": "1"})),
        "segment_size": await refusal(client.create_topic(STREAM, "wide", 1, segment_size=1 << 20)),
        "messages_to_save": await refusal(client.create_topic(STREAM, "wide", 1, messages_required_to_save=10)),
        "preallocate": await refusal(client.create_topic(STREAM, "wide", 1, preallocate_segments=True)),
        "bad_value": await refusal(client.create_topic(STREAM, "wide", 1, options={"message_expiry": "x"})),
        "send_without_stream": await refusal(client.send_messages("nowhere", TOPIC, 0, message)),
        "send_without_topic": await refusal(client.send_messages(STREAM, "nowhere", 0, message)),
        "send_without_partition": await refusal(client.send_messages(STREAM, TOPIC, 99, message)),
        "poll_without_partition": await refusal(poll(client, first, partition_id=99)),
        "poll_without_stream": await refusal(poll(client, first, stream="nowhere")),
        "poll_of_a_stranger": await refusal(poll(client, first, consumer=Consumer.Group(GROUP), partition_id=None)),
        "still_works": await refusal(client.ping()),
    }


async def large(client: Any) -> dict[str, Any]:
    """Batches that become records in place, in a block of their own, and answers of several windows."""
    await client.create_topic(STREAM, "large", 1, compression_algorithm="none")
    described = {HeaderKey.String("k"): HeaderValue.String("v")}
    sent = [(f"{n} " * (n % 50 + 1)).encode() for n in range(1000)]
    for first in range(0, 1000, 100):
        batch = [SendMessage(sent[n], id=n + 1) for n in range(first, first + 100)]
        await client.send_messages(STREAM, "large", 0, batch)
    big = [os.urandom(300_000) for _ in range(5)]
    await client.send_messages(STREAM, "large", 0, [SendMessage(each, user_headers=described) for each in big])
    own: dict[str, Any] = {"topic": "large", "partition_id": 0}
    small = await poll(client, PollingStrategy.First(), 1000, **own)
    last = await poll(client, PollingStrategy.Offset(value=1000), 10, **own)
    everything = await poll(client, PollingStrategy.First(), 2000, **own)
    return {
        "small": [item["payload"] for item in small] == [each.hex() for each in sent],
        "ids": [item["id"] for item in small] == [str(n + 1) for n in range(1000)],
        "big": [item["payload"] for item in last] == [each.hex() for each in big],
        "offsets": [item["offset"] for item in everything] == list(range(1005)),
    }


async def groups(client: Any, other: Any) -> dict[str, Any]:
    await client.create_consumer_group(STREAM, TOPIC, GROUP)
    empty = await client.get_consumer_group(STREAM, TOPIC, GROUP)
    await client.join_consumer_group(STREAM, TOPIC, GROUP)
    member = Consumer.Group(GROUP)
    seen: list[Any] = []
    for _ in range(2 * PARTITIONS):
        seen += await poll(client, PollingStrategy.Next(), 20, commit=True, consumer=member, partition_id=None)
    await other.join_consumer_group(STREAM, TOPIC, GROUP)
    both = await client.get_consumer_group(STREAM, TOPIC, GROUP)
    await client.send_messages(STREAM, TOPIC, Partitioning.balanced(), [SendMessage("later")])
    later: list[Any] = []
    for _ in range(2 * PARTITIONS):
        for each in (client, other):
            later += await poll(each, PollingStrategy.Next(), 20, commit=True, consumer=member, partition_id=None)
    await other.leave_consumer_group(STREAM, TOPIC, GROUP)
    alone = await client.get_consumer_group(STREAM, TOPIC, GROUP)
    await client.leave_consumer_group(STREAM, TOPIC, GROUP)
    again = await refusal(client.leave_consumer_group(STREAM, TOPIC, GROUP))
    listed = [each.name for each in await client.get_consumer_groups(STREAM, TOPIC)]
    await client.delete_consumer_group(STREAM, TOPIC, GROUP)
    return {
        "empty": [empty.members_count, empty.partitions_count],
        "seen": sorted(item["payload"] for item in seen),
        "both": sorted(each.partitions_count for each in both.members),
        "later": [item["payload"] for item in later],
        "alone": [each.partitions_count for each in alone.members],
        "not_a_member": again,
        "listed": listed,
        "gone": await client.get_consumer_group(STREAM, TOPIC, GROUP) is None,
    }


async def high_level(client: Any) -> dict[str, Any]:
    """The producer makes what is missing; the consumer reads until it has everything, and commits."""
    producer = await client.producer("made", "t", Partitioning.balanced(), topic_partitions_count=2)
    for n in range(10):
        await producer.send([SendMessage(f"made {n}")])
    consumer = await client.consumer_group(
        "hands",
        "made",
        "t",
        polling_strategy=PollingStrategy.Next(),
        batch_length=5,
        auto_commit=AutoCommit.When(AutoCommitWhen.ConsumingEachMessage()),
        poll_interval=SOON,
    )
    got: list[str] = []
    done = asyncio.Event()

    async def take(message: Any) -> None:
        got.append(message.payload().decode())
        if len(got) == 10:
            done.set()

    await asyncio.wait_for(consumer.consume_messages(take, done), WAIT_S)
    offset = await refusal(consumer.store_offset(1, 0))
    deleted = await refusal(consumer.delete_offset(0))
    return {"got": sorted(got), "store": offset, "delete": deleted}


async def users(client: Any, address: str) -> dict[str, Any]:
    made = await client.create_user("reader", "password1")
    again = await refusal(client.create_user("reader", "password1"))
    await client.update_user("reader", username="reader2")
    await client.change_password("reader2", "password1", "password2")
    other = IggyClient(address)
    await other.connect()
    await other.login_user("reader2", "password2")
    forbidden = await refusal(other.create_stream("forbidden"))
    await other.logout_user()
    after = await refusal(other.get_streams())
    listed = [each.username for each in await client.get_users()]
    await client.update_permissions("reader2", None)
    await client.delete_user("reader2")
    return {
        "made": made.username,
        "again": again,
        "forbidden": forbidden,
        "after_logout": after,
        "listed": listed,
        "gone": await client.get_user("reader2") is None,
    }


async def changes(client: Any) -> dict[str, Any]:
    await client.create_stream("passing")
    await client.create_topic("passing", "t", 1, durability=Durability.PERSISTED)
    await client.create_stream("levels")
    await client.create_topic("levels", "offsets", 1, consumer_offset_durability=Durability.PERSISTED)
    await client.create_topic("levels", "text", 1, options={"durability": "persisted"})
    await client.create_topic("levels", "plain", 1)
    await client.update_stream("passing", "passed")
    await client.update_topic("passed", "t", "u", compression_algorithm="gzip")
    await client.create_partitions("passed", "u", 2)
    await client.delete_partitions("passed", "u", 1)
    await client.send_messages("passed", "u", Partitioning.messages_key("k"), [SendMessage("x")])
    topic = await client.get_topic("passed", "u")
    await client.purge_topic("passed", "u")
    purged = await client.get_topic("passed", "u")
    await client.purge_stream("passed")
    topics = [each.name for each in await client.get_topics("passed")]
    await client.delete_topic("passed", "u")
    await client.delete_stream("passed")
    return {
        "topic": [topic.partitions_count, topic.messages_count],
        "compression": str(topic.compression_algorithm),
        "purged": purged.messages_count,
        "topics": topics,
        "gone": await client.get_stream("passed") is None,
        "streams": sorted(each.name for each in await client.get_streams()),
    }


async def session(address: str, url: str) -> dict[str, Any]:
    plain = IggyClient(address)
    await plain.connect()
    await plain.ping()
    wrong_password = await refusal(plain.login_user("iggy", "wrong"))
    before_login = await refusal(plain.create_stream("early"))
    await plain.login_user("iggy", "iggy")
    client = IggyClient.from_connection_string(url)
    await client.connect()
    missing = await client.get_stream(STREAM) is None and await client.get_topic(STREAM, TOPIC) is None
    await client.create_stream(STREAM)
    await client.create_topic(STREAM, TOPIC, PARTITIONS)
    stream, topic = await plain.get_stream(STREAM), await plain.get_topic(STREAM, TOPIC)
    by_number = await plain.get_topic(stream.id, topic.id)
    confirmed = []
    for half in (0, 5):
        batch = [SendMessage(f"message {n}") for n in range(half, half + 5)]
        answer = await client.send_messages(STREAM, TOPIC, 1, batch)
        confirmed += [[each.partition_id, each.base_offset] for each in answer.confirmations]
        await asyncio.sleep(0.01)
    await client.send_messages(stream.id, topic.id, 2, [SendMessage(bytes(range(256)) * 400), SendMessage("zürich ✈")])
    polled = await polls(plain)
    refused = await errors(client)
    stream, topic = await plain.get_stream(STREAM), await plain.get_topic(STREAM, TOPIC)
    return {
        "wrong_password": wrong_password,
        "before_login": before_login,
        "missing_is_none": missing,
        "stream": [stream.id, stream.name, stream.topics_count, stream.messages_count],
        "topic": [topic.id, topic.name, topic.partitions_count, topic.messages_count],
        "topic_by_number": by_number.name,
        "confirmed": confirmed,
        "polls": polled,
        "errors": refused,
        "large": await large(client),
        "groups": await groups(client, plain),
        "high_level": await high_level(client),
        "users": await users(client, address),
        "changes": await changes(client),
        "described": {each.key: str(each.default_value) for each in await client.describe_options("topic")},
        "stats": (await client.get_stats()).streams_count,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(session(sys.argv[1], sys.argv[2]))), flush=True)
    os._exit(0)  # the threads of the client sometimes abort the shutdown of the interpreter
