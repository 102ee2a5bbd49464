"""Waiting for messages, for callers without a connection: instead of polling again and again
(docs/adr/0057-polls-that-wait.md)."""

from __future__ import annotations

import asyncio
from typing import Final

from shardd.engine.calls import Answer, Place
from shardd.metadata.state import Partition
from shardd.protocol import limits
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.poll_requests import WaitForMessages
from shardd.runtime.crowds import FullError, SharedRoom
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.partition_requests import PartitionRequests, raise_refusal, require_numbers

WAITS_MAX: Final = 1024  # of a worker: a quarter of the calls that its engine carries out; one user has half of them
WAIT_MAX_MS: Final = 60_000  # of one request
_SLICE_S: Final = 5.0  # of a wait that rests at one place; half of a request's time where that is less
_PAUSE_S: Final = 0.02  # after something that was none of the messages: no look for each send before them


class MessageWaits:
    """Lives on the loop thread."""

    def __init__(self, asked: PartitionRequests) -> None:
        self._requests = asked
        self._slice_s = min(_SLICE_S, asked.timeout_s / 2)
        self._room = SharedRoom(WAITS_MAX, of_addresses=False)

    async def wait_for_messages(self, identity: Identity, request: WaitForMessages) -> bool:
        """True when the partition has a message at or behind the offset, False after the timeout.

        What the user may do and where the partition is are looked at anew whenever something has happened.
        `ShardError` 3; 5 when too many wait; 1009, 2010, 41, 3007, 4027, 10002.
        """
        require_numbers(limits.U32_MAX, request.partition)
        require_numbers(limits.U64_MAX, request.offset, request.timeout_ms)
        try:
            place = self._room.enter(identity.user, "", _stays, at_work=True)
        except FullError:
            raise ShardError(Status.FEATURE_UNAVAILABLE, "too many wait for messages") from None
        try:
            return await self._wait(identity, request)
        finally:
            self._room.leave(place)

    async def _wait(self, identity: Identity, request: WaitForMessages) -> bool:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(request.timeout_ms, WAIT_MAX_MS) / 1000
        while True:
            found = await self._at_its_place(identity, request, min(until_s - loop.time(), self._slice_s))
            raise_refusal(found.status)
            if found.messages_count or loop.time() >= until_s:
                return bool(found.messages_count)
            await asyncio.sleep(_PAUSE_S)

    async def _at_its_place(self, identity: Identity, request: WaitForMessages, for_s: float) -> Answer:
        async def wait(place: Place, _partition: Partition) -> Answer:
            return await self._requests.calls.wait(place, identity.user, request.offset, max(0.0, for_s))

        return await self._requests.ask(
            identity,
            Rule.POLL_MESSAGES,
            (request.stream, request.topic),
            lambda topic: base.partition_of(topic, request.partition),
            wait,
        )


def _stays() -> None:
    raise AssertionError("a wait does not give way")
