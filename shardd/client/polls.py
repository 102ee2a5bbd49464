"""How a consumer asks for messages: with an answer at once, or, where the server offers that, with one that waits for
messages (docs/extensions.md#poll-and-wait)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

from shardd.client import commands, statuses
from shardd.client.commands import Command
from shardd.client.errors import ServerError, UnavailableError
from shardd.client.messages import RECORD_HEAD, Polled
from shardd.client.positions import Place
from shardd.client.session import Session
from shardd.client.wire import Identifier

BATCH_BYTES: Final = 4 << 20  # of the messages of an answer, but one
_COUNT_FIRST: Final = 32  # of a server that does not bound them
_WAIT_MAX_S: Final = 1.0  # later requests of the connection come behind it ...
_WAIT_PART: Final = 4  # ... and have more than this part of their time left, when who waited is cancelled
_PUT_OFF_S: Final = 5.0
_TOO_MANY: Final = frozenset({statuses.FEATURE_UNAVAILABLE, statuses.TOO_MANY_PARTITIONS})


class Polls:
    """Of one consumer, or of one member of a group."""

    def __init__(
        self,
        session: Session,
        name: Identifier,
        stream: Identifier,
        topic: Identifier,
        *,
        group: bool,
        bytes_max: int = BATCH_BYTES,
    ) -> None:
        self._session = session
        self._name, self._stream, self._topic, self._group = name, stream, topic, group
        self._offered: frozenset[int] | None = None
        self._bytes_max = bytes_max
        self._count_max = _COUNT_FIRST  # where the server bounds no bytes
        self._not_before = float("-inf")
        self.wait_max_s = min(_WAIT_MAX_S, session.settings.deadline_s / _WAIT_PART)

    async def ask(self, partition: int | None, strategy: int, value: int, count: int, wait_s: float = 0.0) -> Polled:
        """ClientError."""
        positions = await self.offers(commands.POLL_POSITION)
        if not positions:
            count = min(count, self._count_max)
        command = commands.poll(
            self._name,
            self._stream,
            self._topic,
            partition,
            strategy=strategy,
            value=value,
            count=count,
            group=self._group,
            wait_ms=math.ceil(wait_s * 1000),
            bytes_max=self._bytes_max if positions else None,
        )
        try:
            polled = await self._session.call(command, self._session.settings.deadline_s + wait_s)
        except ServerError as error:
            if not positions or error.status != statuses.INVALID_COMMAND:
                raise
            self._offered = None  # another server by now
            raise UnavailableError(error.status) from None
        if not positions and polled.messages:
            self._adapt(polled, count)
        return polled

    def _adapt(self, polled: Polled, count: int) -> None:
        """A server that bounds no bytes is asked for as many messages as fit by what came last."""
        average = sum(len(each.payload) + len(each.headers) + RECORD_HEAD.size for each in polled.messages)
        fitting = max(1, self._bytes_max * len(polled.messages) // average)
        grown = 2 * self._count_max if len(polled.messages) >= count else self._count_max
        self._count_max = min(fitting, grown)

    async def read_to_end(self, place: Place) -> None:
        """Moves a place that is at the end of its partition, wherever that is now."""
        polled = await self.ask(place.partition, commands.LAST, 0, 1)
        place.read_to(polled.messages[-1].offset if polled.messages else polled.current_offset or -1)
        place.history = polled.history or place.history

    async def first_from(self, partition: int, offset: int) -> Polled | None:
        """An answer with the first message from an offset on; None where that is damaged. ClientError."""
        try:
            return await self.ask(partition, commands.OFFSET, offset, 1)
        except ServerError as error:
            if error.status not in statuses.UNREADABLE:
                raise
            return None

    def connected(self) -> None:
        """On a new connection the server may be another one."""
        self._offered = None

    async def offers(self, code: int, ask: Callable[[Command[Any]], Awaitable[Any]] | None = None) -> bool:
        """The server is asked once what it offers: with `ask`, else over the session."""
        if self._offered is None:
            try:
                found = await (ask or self._session.call)(commands.extensions())
            except ServerError as error:
                if error.status != statuses.INVALID_COMMAND:
                    raise  # of the connection, as of a member that finds no topic: it says nothing of the server
                self._offered = frozenset()
            else:
                self._offered = frozenset(each.code for each in found.commands)
        return code in self._offered

    # ---- polls that wait ----

    async def may_wait(self) -> bool:
        """One that is not ours has no polls that wait."""
        return await self.offers(commands.POLL_AND_WAIT) and asyncio.get_running_loop().time() >= self._not_before

    def may_not_wait(self, error: ServerError) -> bool:
        """Whether that was said of the wait alone. Where too many polls wait none of ours does for a while."""
        if error.status == statuses.INVALID_COMMAND:
            self._offered = None  # another server by now
        elif error.status not in _TOO_MANY:
            return False
        self._not_before = asyncio.get_running_loop().time() + _PUT_OFF_S
        return True


def is_gone(place: Place, polled: Polled) -> bool:
    """Of a partition that the member does not have the head is all zeros. Of partition 0 that looks as if it were
    empty, and is believed when something was read from it."""
    if polled.partition != place.partition:
        return True
    if polled.history is not None:
        return polled.history.incarnation == 0
    return place.was_read and not polled.messages and not polled.current_offset and place.value > 1
