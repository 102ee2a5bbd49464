"""How a consumer asks for messages: with an answer at once, or, where the server offers that, with one that waits for
messages (docs/extensions.md#poll-and-wait)."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from shardd.client import commands, statuses
from shardd.client.errors import ServerError
from shardd.client.messages import Polled
from shardd.client.positions import Place
from shardd.client.session import Session
from shardd.client.wire import Identifier

_WAIT_MAX_S: Final = 1.0  # later requests of the connection come behind it ...
_WAIT_PART: Final = 4  # ... and have more than this part of their time left, when who waited is cancelled
_PUT_OFF_S: Final = 5.0
_TOO_MANY: Final = frozenset({statuses.FEATURE_UNAVAILABLE, statuses.TOO_MANY_PARTITIONS})


class Polls:
    """Of one consumer, or of one member of a group."""

    def __init__(
        self, session: Session, name: Identifier, stream: Identifier, topic: Identifier, *, group: bool
    ) -> None:
        self._session = session
        self._name, self._stream, self._topic, self._group = name, stream, topic, group
        self._offered: bool | None = None
        self._not_before = float("-inf")
        self.wait_max_s = min(_WAIT_MAX_S, session.settings.deadline_s / _WAIT_PART)

    async def ask(self, partition: int | None, strategy: int, value: int, count: int, wait_s: float = 0.0) -> Polled:
        """ClientError."""
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
        )
        return await self._session.call(command, self._session.settings.deadline_s + wait_s)

    async def last_offset(self, partition: int) -> int:
        """-1: the partition is empty."""
        polled = await self.ask(partition, commands.LAST, 0, 1)
        if polled.messages:
            return polled.messages[-1].offset
        return polled.current_offset or -1

    # ---- polls that wait ----

    async def may_wait(self) -> bool:
        """The server is asked once what it offers. One that is not ours has no polls that wait."""
        if self._offered is None:
            try:
                found = await self._session.call(commands.extensions())
            except ServerError as error:
                if error.retryable:
                    return False
                self._offered = False
            else:
                self._offered = any(each.code == commands.POLL_AND_WAIT for each in found.commands)
        return self._offered and asyncio.get_running_loop().time() >= self._not_before

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
    return place.was_read and not polled.messages and not polled.current_offset and place.value > 1
