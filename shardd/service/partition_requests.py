"""Appends, reads and stored offsets of callers that are no connections (docs/protocol/messages.md): the same native
path as that of a connection's request, without its route table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shardd.engine import owner
from shardd.engine.calls import EngineCalls, OutcomeUnknownError, Place, PlaceUnknownError, TooManyCallsError
from shardd.metadata import Metadata
from shardd.metadata.state import Partition, State, Stream, Topic
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier
from shardd.security import Rule
from shardd.service import base
from shardd.service.given_up import GivenUpCalls
from shardd.service.identity import Identity
from shardd.service.routes import wait_for_owner

T = TypeVar("T")
Choose = Callable[[Topic], Partition]


class PartitionRequests:
    """Lives on the loop thread."""

    def __init__(
        self, metadata: Metadata, calls: EngineCalls, given_up: GivenUpCalls, shards: int, timeout_s: float
    ) -> None:
        self._metadata = metadata
        self.calls = calls
        self._given_up = given_up
        self._shards = shards
        self.timeout_s = timeout_s

    async def ask(
        self,
        identity: Identity,
        rule: Rule,
        names: tuple[Identifier, Identifier],
        choose: Choose,
        call: Callable[[Place, Partition], Awaitable[T]],
        batch_bytes: int = 0,
    ) -> T:
        """What `call`, with so many bytes of records, answers for the partition that `choose` takes of a topic.

        `ShardError` 1009, 2010, 41 and what `choose` raises; 11001 when the owner is not there, there are too many
        calls, or too many of the asker's earlier ones still wait for the owner: nothing has happened; 12001 when nobody
        knows what has happened.
        """
        attempt = 0
        try:
            async with asyncio.timeout(self.timeout_s):
                while True:
                    await wait_for_owner(attempt)
                    place, partition = self._find(identity, rule, names, choose)
                    try:
                        with self._given_up.begun(place.shard, batch_bytes):
                            return await call(place, partition)
                    except PlaceUnknownError:
                        attempt += 1
        except TooManyCallsError:
            raise ShardError(Status.SHARD_COMMUNICATION_ERROR, "too many calls are under way") from None
        except (OutcomeUnknownError, TimeoutError):
            raise ShardError(Status.TASK_TIMEOUT, "nobody knows how it ended", close=True) from None

    def _find(
        self, identity: Identity, rule: Rule, names: tuple[Identifier, Identifier], choose: Choose
    ) -> tuple[Place, Partition]:
        state = self._metadata.state
        stream, topic = base.topic_of(state, *names)
        _require_user(state, identity)
        base.require(state, identity, rule, stream, topic)
        partition = choose(topic)
        return self._place(stream, topic, partition), partition

    def _place(self, stream: Stream, topic: Topic, partition: Partition) -> Place:
        packed = base.partition_namespace(stream, topic, partition)
        return Place(owner(packed, self._shards), packed, partition.incarnation)


def _require_user(state: State, identity: Identity) -> None:
    """41 for a user who was deleted, though its id may be in use again."""
    user = state.users.get(identity.user)
    if user is None or user.incarnation != identity.incarnation:
        raise ShardError(Status.UNAUTHORIZED)


def require_numbers(maximum: int, *values: Identifier | None) -> None:
    """`ShardError` 3 for a number that the wire could not carry; names are not judged here."""
    if not all(0 <= value <= maximum for value in values if isinstance(value, int)):
        raise ShardError(Status.INVALID_COMMAND, "a number is out of its range")


def raise_refusal(status: int) -> None:
    """`ShardError` for every status but success."""
    if status != Status.OK:
        raise ShardError(Status(status))
