"""The decisions that fill the engine's route table: who may send to and poll a topic (docs/ARCHITECTURE.md), and when
they end (docs/adr/0036)."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Iterator
from typing import Final, Protocol

from shardd.metadata import Metadata, Record
from shardd.metadata.concerns import OfStream, OfTopic, OfUser, concern_of
from shardd.metadata.state import State, Stream, Topic
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.namespaces import namespace
from shardd.protocol.primitives import Identifier
from shardd.runtime.slices import Slices
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity

BALANCED_COUNTERS: Final = 65_536  # native/src/base/shared.h: SHARED_COUNTERS
OWNER_WAIT_STEP_MS: Final = 5
OWNER_WAIT_MS_MAX: Final = 2_000
_STEP_PARTITIONS: Final = 1_000

_log = logging.getLogger(__name__)


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


def _incarnation(state: State, identity: Identity) -> int:
    """A route is asked for by the id of a user alone."""
    user = state.users.get(identity.user)
    return 0 if user is None else Identity(user.id, user.incarnation).owner


class RouteEngine(Protocol):
    """The part of the engine with the route table. Keys of routes are identifiers as a client wrote them; a topic is
    named by the namespace of its partition 0."""

    def route_topic_known(self, namespace: int, /) -> bool: ...
    def route_topic_put(
        self, stream_id: int, namespace: int, counter: int, incarnations: array[int], slots: array[int], /
    ) -> None: ...
    def route_put(
        self,
        user_id: int,
        stream_identifier: bytes,
        topic_identifier: bytes,
        namespace: int,
        *,
        can_send: bool,
        can_poll: bool,
        user_incarnation: int,
    ) -> None: ...
    def routes_end_user(self, user_id: int, /) -> None: ...
    def routes_end_topic(self, namespace: int, /) -> None: ...
    def routes_end_stream(self, stream_id: int, /) -> None: ...
    def routes_end_all(self) -> None: ...


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
                yield from self._know(stream, topic)
                state = self._metadata.state
                found_stream, found = base.topic_of(state, *names)
                if not self._engine.route_topic_known(_name(found_stream, found)):
                    return
                self._engine.route_put(
                    identity.user,
                    *written,
                    _name(found_stream, found),
                    can_send=base.permitted(state, identity, Rule.SEND_MESSAGES, found_stream, found),
                    can_poll=base.permitted(state, identity, Rule.POLL_MESSAGES, found_stream, found),
                    user_incarnation=_incarnation(state, identity),
                )
                entered.append(True)

            await self._slices.run(steps(), path=(str(identity.user),))

    def _know(self, stream: Stream, topic: Topic) -> Iterator[None]:
        """Enters the partitions of a topic, which all of its routes share, unless they are known or it changes
        meanwhile. Who waits behind us for the same topic finds them."""
        if self._engine.route_topic_known(_name(stream, topic)):
            return
        incarnations, slots = array("Q"), array("I")
        for begin in range(0, len(topic.partitions), _STEP_PARTITIONS):
            some = topic.partitions[begin : begin + _STEP_PARTITIONS]
            incarnations.extend([partition.incarnation for partition in some])
            slots.extend([partition.slot for partition in some])
            yield
        now = self._metadata.state.streams.get(stream.id)
        found = None if now is None else now.topics.get(topic.id)
        if found is not None and found.incarnation == topic.incarnation and found.partitions is topic.partitions:
            counter = balanced_counter(topic)
            self._engine.route_topic_put(stream.id, _name(stream, topic), counter, incarnations, slots)

    def applied(self, old: State, new: State, record: Record) -> None:
        """A record, before it is acknowledged: the decisions that it concerns end, no others."""
        try:
            concern = concern_of(old, record.command)
        except Exception:  # what should not be must not leave a right behind
            _log.exception("what record %d of the metadata concerns is not known", record.index)
            self._engine.routes_end_all()
            return
        match concern:
            case OfUser():
                self._engine.routes_end_user(concern.user_id)
            case OfTopic():
                self._engine.routes_end_topic(namespace(concern.stream_id, concern.topic_id, 0))
            case OfStream():
                self._engine.routes_end_stream(concern.stream_id)


def _name(stream: Stream, topic: Topic) -> int:
    return namespace(stream.id, topic.id, 0)
