"""A connection that is made again when it breaks: with pauses that grow and vary, within the deadline of who asks."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from shardd.client import commands
from shardd.client.commands import Command
from shardd.client.errors import ClientError, ClosedError, ConnectionLostError, DeadlineError, Fate, UnavailableError
from shardd.client.link import Link, open_link
from shardd.client.settings import Settings

T = TypeVar("T")
PAUSE_S: Final = 0.02  # before the second attempt, doubled for each further one
PAUSE_MAX_S: Final = 2.0
_ANSWERS_S: Final = 0.5  # what a server that goes on after a stall takes to answer its older connections, too


def pause_s(attempt: int) -> float:
    """Anywhere between half of it and all of it, so that clients of a server that died do not come back together."""
    return min(PAUSE_MAX_S, PAUSE_S * float(1 << min(attempt, 16))) * (0.5 + os.urandom(1)[0] / 512)


class NewConnectionError(ClientError):
    """The command was not sent: it belongs to an earlier connection."""


class Session:
    """`opened(link)` is awaited on every new connection, logged in (a group is joined there)."""

    def __init__(
        self,
        settings: Settings,
        opened: Callable[[Link], Awaitable[None]] | None = None,
        *,
        refuses_at_once: bool = False,
    ) -> None:
        """`refuses_at_once`: a first connection that is refused is not tried again. `connections`: how many there
        were."""
        self.settings = settings
        self.connections = 0
        self._final_refusal = refuses_at_once
        self._opened = opened
        self._link: Link | None = None
        self._connecting: asyncio.Task[Link] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._closed = False

    def until(self, deadline_s: float | None) -> float:
        """On the clock of the loop."""
        return asyncio.get_running_loop().time() + (self.settings.deadline_s if deadline_s is None else deadline_s)

    async def link(self, until: float) -> Link:
        """A connection that can be used, made when there is none. ClosedError, AuthenticationError, DeadlineError."""
        link = self._link
        if link is not None and link.usable:
            return link
        attempt = 0
        while True:
            if self._closed:
                raise ClosedError("this object is closed")
            if self._link is not None and self._link.usable:
                return self._link
            attempted = self._attempt()
            try:
                return await asyncio.shield(attempted)
            except asyncio.CancelledError:
                if self._closed and attempted.cancelled():  # `close` has ended it, nobody this task
                    raise ClosedError("this object is closed") from None
                raise
            except (ConnectionLostError, UnavailableError, DeadlineError) as error:
                if self._final_refusal and isinstance(error, ConnectionLostError) and error.refused:
                    raise
                await self.pause(attempt, until, error)
            attempt += 1

    def _attempt(self) -> asyncio.Task[Link]:
        """One for all that wait. It goes on when they are cancelled, so short waits connect in the end."""
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._open())
            self._connecting.add_done_callback(self._attempted)
        return self._connecting

    def _attempted(self, task: asyncio.Task[Link]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._link, self._final_refusal = task.result(), False
            self.connections += 1

    async def _open(self) -> Link:
        link = await open_link(self.settings)
        link.on_silence = lambda: self._look_elsewhere(link)
        try:
            if self._opened is not None:
                await self._opened(link)
        except BaseException:
            link.abort()
            raise
        return link

    def _look_elsewhere(self, link: Link) -> None:
        if self._probe is None and not self._closed:
            self._probe = asyncio.get_running_loop().create_task(self._leave_if_answered(link))
            self._probe.add_done_callback(self._probed)

    def _probed(self, _: asyncio.Task[None]) -> None:
        self._probe = None

    async def _leave_if_answered(self, link: Link) -> None:
        """A silent connection ends when another one is answered. Where the whole server stalls, that one would wait,
        too, and what is on the way would be sent twice."""
        heard_at_s, command = link.heard_at, commands.ping()
        try:
            other = await open_link(self.settings)
            try:
                await other.ask(command.code, command.payload, self.until(self.settings.connect_timeout_s))
            finally:
                other.abort()
        except ClientError:
            return
        await asyncio.sleep(_ANSWERS_S)
        if link.heard_at == heard_at_s:
            link.leave()

    async def pause(self, attempt: int, until: float, error: ClientError) -> None:
        """`error` when there is no time for it any more."""
        wanted = pause_s(attempt)
        if self._closed or asyncio.get_running_loop().time() + wanted >= until:
            raise error
        await asyncio.sleep(wanted)

    async def call(
        self, command: Command[T], deadline_s: float | None = None, *, fits: Callable[[], bool] | None = None
    ) -> T:
        """Asked again after a lost connection when it is certain that it was not carried out, or when that does no
        harm. `fits`: whether it may be sent on the connection that there is now, else NewConnectionError.
        ClientError."""
        until = self.until(deadline_s)
        attempt = 0
        while True:
            try:
                link = await self.link(until)
                if fits is not None and not fits():
                    raise NewConnectionError("the connection is another one by now")
                patience_s = self.settings.patience_s + command.wait_s if command.repeatable else math.inf
                return command.read(await link.ask(command.code, command.payload, until, patience_s))
            except (ConnectionLostError, UnavailableError) as error:
                final = self._final_refusal and isinstance(error, ConnectionLostError) and error.refused
                if self._closed or final or not (command.repeatable or error.fate is Fate.NOT_SENT):
                    raise
                await self.pause(attempt, until, error)
            attempt += 1

    async def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._probe is not None:
            self._probe.cancel()
        if self._link is not None:
            await self._link.close()
