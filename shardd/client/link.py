"""One connection: requests go out at once, answers come in their order (docs/protocol/framing.md)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from shardd.client import commands
from shardd.client.errors import ClientError, ConnectionLostError, DeadlineError, Fate, TlsError, of_status
from shardd.client.exchange import Exchange
from shardd.client.settings import Settings
from shardd.client.transport import is_refused, open_transport, tls_failure

_LOOK_AGAIN_S: Final = 1.0  # when a silent connection is kept
_COMING_S: Final = 5.0  # a part of an answer that came gives the rest at least so long


class _Asked(NamedTuple):
    future: asyncio.Future[bytes]
    code: int
    has_slot: bool
    sent_at: float
    patience_s: float
    limit: asyncio.Timeout | None


class Link(asyncio.Protocol):
    """Made by `open_link`. A request that is cancelled by who waits for it goes on; its answer is dropped."""

    def __init__(self, window: int) -> None:
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange[_Asked] = Exchange()
        self._asked = self._exchange.asked
        self._unsent = 0  # bytes that the transport kept when a request was written or the silence looked at
        self._moved_at = 0.0  # when the look found that these had changed
        self._watch: asyncio.TimerHandle | None = None  # of the silence of the oldest request
        self._given_up: asyncio.TimerHandle | None = None  # of that of the oldest one that was cancelled
        self._slots = asyncio.Semaphore(window)
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._loop.time()
        self._beat: asyncio.TimerHandle | None = None  # the next PING of `keep_alive`
        self._pinged: asyncio.Future[bytes] | None = None  # its last one
        self.on_silence: Callable[[], None] | None = None  # called now and then, instead of an end of the connection
        self.closed = asyncio.Event()
        self.cause: Exception | None = None  # of its end

    # ---- the protocol of asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        is_within = self._exchange.missing > len(data)
        for asked, status, payload in self._exchange.heard(data):
            if asked.has_slot:
                self._slots.release()
            if asked.future.done():
                continue
            if status:
                asked.future.set_exception(of_status(status, asked.code))
            else:
                asked.future.set_result(payload)
        if is_within:
            self._extend()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.cause = error
        for timer in (self._watch, self._given_up, self._beat):
            if timer is not None:
                timer.cancel()
        for asked in self._asked:
            if not asked.future.done():
                asked.future.set_exception(self._exchange.lost(error or "the server closed the connection"))
            if asked.has_slot:
                self._slots.release()
        self._asked.clear()
        self.closed.set()

    # ---- requests ----

    def post(
        self,
        code: int,
        payload: bytes,
        *,
        has_slot: bool = False,
        patience_s: float = math.inf,
        limit: asyncio.Timeout | None = None,
    ) -> asyncio.Future[bytes]:
        """Sends a request at once, beside the window unless it has a slot of it. `patience_s`: how long the connection
        may bring nothing while this is the oldest request; then it ends. `limit` moves while the answer comes.
        ConnectionLostError."""
        if self._transport is None or self._transport.is_closing():
            if has_slot:
                self._slots.release()
            raise ConnectionLostError("the connection is closed")
        future: asyncio.Future[bytes] = self._loop.create_future()
        asked = _Asked(future, code, has_slot, self._loop.time(), patience_s, limit)
        frame = self._exchange.ask(asked, code, payload)
        if self._watch is None and patience_s < math.inf:
            self._watch = self._loop.call_later(patience_s, self._look)
        self._transport.write(frame)
        self._unsent = self._transport.get_write_buffer_size()
        return future

    def _look(self) -> None:
        """Whether the oldest request has waited too long without a byte. What is behind it would wait, too."""
        self._watch = None
        if not self._asked:
            return
        oldest, now = self._asked[0], self._loop.time()
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if unsent != self._unsent:  # a large request is on its way: the server takes it
            self._unsent, self._moved_at = unsent, now
        due = max(oldest.sent_at, self.heard_at, self._moved_at) + oldest.patience_s
        if now >= due:
            if self.on_silence is None:
                self.leave()
                return
            self.on_silence()
            self._watch = self._loop.call_later(min(oldest.patience_s, _LOOK_AGAIN_S), self._look)
            return
        again = min((each.patience_s for each in self._asked if each.patience_s < math.inf), default=0.0)
        if again:
            self._watch = self._loop.call_at(min(due, now + again), self._look)

    def leave(self) -> None:
        """Of a server that says nothing here, and answers elsewhere."""
        self._exchange.farewell = ConnectionLostError(
            f"the server has been silent for {self._loop.time() - self.heard_at:.1f} s"
        )
        self.abort()

    def _extend(self) -> None:
        """An answer that keeps coming is not late."""
        oldest = self._asked[0] if self._asked else None
        limit = None if oldest is None or oldest.future.done() else oldest.limit  # cancelled: nothing to extend
        until = self.heard_at + _COMING_S
        if limit is not None and not limit.expired() and (limit.when() or until) < until:
            limit.reschedule(until)

    async def ask(self, code: int, payload: bytes, until: float, patience_s: float = math.inf) -> bytes:
        """`until`: on the clock of the loop. ServerError, ConnectionLostError, DeadlineError. A request that
        is cancelled has no caller left; a connection that is silent until then ends all the same."""
        sent_at = None
        try:
            async with asyncio.timeout_at(until) as limit:
                await self._slots.acquire()
                sent_at = self._loop.time()
                return await self.post(code, payload, has_slot=True, patience_s=patience_s, limit=limit)
        except asyncio.CancelledError:
            if sent_at is not None and self._given_up is None and self.usable:
                self._given_up = self._loop.call_at(until, self._end_if_silent, sent_at)
            raise
        except TimeoutError as error:
            if isinstance(error, ClientError):
                raise
            if sent_at is None:
                raise DeadlineError("the window had no place in time", Fate.NOT_SENT) from None
            if self.heard_at < sent_at:
                self.abort()  # silent since then: whatever is behind it would wait, too
            raise DeadlineError("the server did not answer in time") from None

    def keep_alive(self, interval_s: float, patience_s: float) -> None:
        """Sends PING at this interval from now on, while the last one is answered. It counts on the loop alone: a
        program that works in other threads or in tasks that wait stays alive."""
        if not self.usable:
            return
        if self._pinged is None or self._pinged.done():
            ping = commands.ping()
            self._pinged = self.post(ping.code, ping.payload, patience_s=patience_s)
            self._pinged.add_done_callback(_is_seen)
        self._beat = self._loop.call_later(interval_s, self.keep_alive, interval_s, patience_s)

    def _end_if_silent(self, since_s: float) -> None:
        self._given_up = None
        if self.heard_at < since_s:
            self.leave()

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            await self.closed.wait()


def _is_seen(ping: asyncio.Future[bytes]) -> None:
    """The end of the connection is told to those who ask."""
    if not ping.cancelled():
        ping.exception()


async def open_link(settings: Settings) -> Link:
    """Connected and logged in. ConnectionLostError, TlsError, AuthenticationError, UnavailableError."""
    loop = asyncio.get_running_loop()
    until = loop.time() + settings.connect_timeout_s
    try:
        async with asyncio.timeout_at(until):
            link = await open_transport(settings, lambda: Link(settings.window))
    except TlsError:
        raise
    except OSError as error:
        reason = str(error) or "no answer in time"
        lost = ConnectionLostError(f"cannot connect to {settings.address}: {reason}")
        lost.refused = is_refused(error)
        raise lost from None
    try:
        if settings.token:
            await _log_in(link, commands.login_with_token(settings.token), until)
        elif settings.username:
            await _log_in(link, commands.login(settings.username, settings.password), until)
    except ConnectionLostError as error:
        link.abort()
        raise tls_failure(settings, link.cause) or error from None
    except BaseException:
        link.abort()
        raise
    return link


async def _log_in(link: Link, command: commands.Command[int], until: float) -> None:
    try:
        await link.ask(command.code, command.payload, until)
    except (ConnectionLostError, DeadlineError) as error:
        raise ConnectionLostError(f"no login: {error}") from None
