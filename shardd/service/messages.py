"""Messages outside the warm path: FLUSH_UNSAVED_BUFFER (102), polls that the native engine does not take, and the
decisions that fill its route table (docs/protocol/messages.md; docs/ARCHITECTURE.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from shardd.metadata.state import Stream, Topic
from shardd.protocol import requests
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import ConsumerKind, Reader
from shardd.security import Rule
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext
from shardd.service.groups import GroupService
from shardd.service.partition_calls import PartitionCalls

BALANCED_COUNTERS = 65_536  # native/src/base/shared.h: SHARED_COUNTERS
OWNER_WAIT_STEP_MS = 5
OWNER_WAIT_MS_MAX = 2_000


async def flush_unsaved_buffer(
    context: ShardContext, caller: Caller, request: requests.FlushUnsavedBuffer, *, calls: PartitionCalls
) -> bytes:
    """1009, 2010, 41, 3007, then the owner writes its index and, with `fsync`, waits for the device."""
    stream, topic = base.topic_of(context.metadata.state, request.stream, request.topic)
    base.require(context, caller, Rule.SEND_MESSAGES, stream, topic)
    partition = base.partition_of(topic, request.partition)
    await calls.flush(calls.home(stream, topic, partition), fsync=request.fsync)
    return b""


async def poll_messages(
    context: ShardContext, caller: Caller, request: requests.PollMessages, *, groups: GroupService
) -> bytes | None:
    """A poll as consumer group; None when the engine answers it.

    Well-formed polls of plain consumers never come here: the engine executes them and asks for a route.
    """
    if request.consumer.kind is not ConsumerKind.GROUP:
        raise RuntimeError("the engine handed out a poll that it should execute")
    return await groups.poll(context, caller, request)


async def route(
    context: ShardContext,
    caller: Caller,
    code: int,
    stream_identifier: bytes,
    topic_identifier: bytes,
    attempt: int,
) -> None:
    """Decides what a user may do with a topic and enters it into the engine's route table.

    `attempt` > 0: the owner did not know the partition yet, so it gets 5 ms * attempt to apply the record that made it,
    2 s in all. Raises `ShardError` 3, 1009, 2010, 41, 11001.
    """
    if attempt > 0:
        if OWNER_WAIT_STEP_MS * attempt * (attempt - 1) // 2 >= OWNER_WAIT_MS_MAX:
            raise ShardError(Status.SHARD_COMMUNICATION_ERROR, "the owner does not know the partition")
        await asyncio.sleep(OWNER_WAIT_STEP_MS * attempt / 1000)
    names = Reader(stream_identifier).identifier(), Reader(topic_identifier).identifier()
    rule = Rule.SEND_MESSAGES if code == Code.SEND_MESSAGES else Rule.POLL_MESSAGES
    entered: list[bool] = []
    while not entered:  # again when the topic changes meanwhile
        stream, topic = base.topic_of(context.metadata.state, *names)
        base.require(context, caller, rule, stream, topic)

        def enter(stream: Stream = stream, topic: Topic = topic) -> Iterator[None]:
            partitions = []
            for partition in topic.partitions:
                partitions.append((base.partition_namespace(stream, topic, partition), partition.incarnation))
                yield
            if base.topic_of(context.metadata.state, *names)[1] is not topic:
                return
            context.engine.route_put(
                caller.user,
                stream_identifier,
                topic_identifier,
                can_send=base.permitted(context, caller, Rule.SEND_MESSAGES, stream, topic),
                can_poll=base.permitted(context, caller, Rule.POLL_MESSAGES, stream, topic),
                counter=topic.incarnation % BALANCED_COUNTERS,
                partitions=partitions,
            )
            entered.append(True)

        await context.routing.run(enter())
