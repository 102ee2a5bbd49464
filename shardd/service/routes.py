"""The decisions that fill the engine's route table: who may send to and poll a topic (docs/ARCHITECTURE.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, Protocol

from shardd.metadata import Metadata
from shardd.metadata.state import Stream, Topic
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier
from shardd.runtime.slices import Slices
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity

BALANCED_COUNTERS: Final = 65_536  # native/src/base/shared.h: SHARED_COUNTERS
OWNER_WAIT_STEP_MS: Final = 5
OWNER_WAIT_MS_MAX: Final = 2_000


def balanced_counter(topic: Topic) -> int:
    return topic.incarnation % BALANCED_COUNTERS


async def wait_for_owner(attempt: int) -> None:
    """`attempt` > 0: the owner did not know the partition yet, so it gets 5 ms * attempt to apply the record that made
    it, 2 s in all. `ShardError` 11001."""
    if attempt == 0:
        return
    if OWNER_WAIT_STEP_MS * attempt * (attempt - 1) // 2 >= OWNER_WAIT_MS_MAX:
        raise ShardError(Status.SHARD_COMMUNICATION_ERROR, "the owner does not know the partition")
    await asyncio.sleep(OWNER_WAIT_STEP_MS * attempt / 1000)


class RouteEngine(Protocol):
    """The part of the engine with the route table. Its keys are identifiers as a client wrote them."""

    def route_put(
        self,
        user_id: int,
        stream_identifier: bytes,
        topic_identifier: bytes,
        *,
        can_send: bool,
        can_poll: bool,
        counter: int,
        partitions: list[tuple[int, int]],
    ) -> None: ...


class RouteService:
    """Lives on the loop thread."""

    def __init__(self, metadata: Metadata, engine: RouteEngine) -> None:
        self._metadata = metadata
        self._engine = engine
        self._slices = Slices()

    async def enter(
        self,
        identity: Identity,
        rule: Rule,
        names: tuple[Identifier, Identifier],
        written: tuple[bytes, bytes],
        attempt: int,
    ) -> None:
        """Decides what a user may do with a topic and enters it into the engine's route table. `names` of stream and
        topic, and the same as `written` by the client.

        `attempt`: as in `wait_for_owner`. Raises `ShardError` 1009, 2010, 41, 11001.
        """
        await wait_for_owner(attempt)
        entered: list[bool] = []
        while not entered:  # again when the topic changes meanwhile
            stream, topic = base.topic_of(self._metadata.state, *names)
            base.require(self._metadata.state, identity, rule, stream, topic)

            def steps(stream: Stream = stream, topic: Topic = topic) -> Iterator[None]:
                partitions = []
                for partition in topic.partitions:
                    partitions.append((base.partition_namespace(stream, topic, partition), partition.incarnation))
                    yield
                state = self._metadata.state
                if base.topic_of(state, *names)[1] is not topic:
                    return
                self._engine.route_put(
                    identity.user,
                    *written,
                    can_send=base.permitted(state, identity, Rule.SEND_MESSAGES, stream, topic),
                    can_poll=base.permitted(state, identity, Rule.POLL_MESSAGES, stream, topic),
                    counter=balanced_counter(topic),
                    partitions=partitions,
                )
                entered.append(True)

            await self._slices.run(steps())
