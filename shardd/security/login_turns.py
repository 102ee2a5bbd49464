"""Who may try a password, and when (rules: `shardd.security.backoff`).

A password costs 10 ms and more of one thread. Attempts wait in lines: one for each address, and one apart for each
account at an address where it is known. A line tries one at a time; within it accounts take turns. Lines whose moment
has come take turns at the thread: known ones, new ones, those where something failed; among these sites, then
addresses.

A new attempt waits for what failed at its address and for what failed of its account anywhere; a known one only for
what failed of this account at this address. So a bad neighbour, or a crowd that guesses a password from everywhere,
does not hold up those who have been here before, and a success clears nothing but its own pair of address and account.

The counts lie in the shared region (native/src/net/logins.h): they are the same on every shard, nobody is asked, and
they outlive a worker. Nobody is refused: an attempt waits for its turn as long as its connection may
(`server.login_timeout`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from shardd.engine import Engine
from shardd.protocol.errors import ShardError, Status
from shardd.runtime.aside import aside
from shardd.runtime.fair_turns import FairQueue, FairTurns
from shardd.runtime.networks import network_of
from shardd.runtime.threads import UnwantedError
from shardd.security.backoff import KNOWN_FOR_S, site_of, wait_s

_LEFT_SLICE: Final = 256  # attempts without a client that are dropped between two turns of the loop


class _Attempt(msgspec.Struct, eq=False):
    """`ready`: its turn has come; `finished`: it is over."""

    account: str
    wanted: Callable[[], bool]
    ready: asyncio.Future[None]
    finished: asyncio.Future[None]

    def refuse(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)


class _Line(msgspec.Struct, eq=False):
    """Attempts that go one after the other: those of an account that is known here, or (None) all new ones."""

    network: str
    account: str | None
    attempts: FairQueue[_Attempt] = msgspec.field(default_factory=FairQueue)

    def keys(self, account: str) -> list[bytes]:
        """Under which an attempt counts: what spaces the line first."""
        if self.account is not None:
            return [_pair_key(self.network, self.account)]
        return [b"address " + self.network.encode(), b"account " + account.encode()]


def _pair_key(network: str, account: str) -> bytes:
    return f"pair {network} {account}".encode()


class LoginTurns:
    """One per worker, loop thread only. Addresses are "ip:port". `places`: passwords that are tried at once."""

    def __init__(self, engine: Engine, shards: int, places: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._under_way_elsewhere = shards * places - 1  # so many that count may yet be taken back
        self._clock = clock
        self._thread = FairTurns(places)
        self._lines: dict[tuple[str, str | None], _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = self._at_work = 0
        self._closed = False

    @asynccontextmanager
    async def attempt(self, address: str, account: str, wanted: Callable[[], bool]) -> AsyncIterator[None]:
        """Its body tries a password when its turn has come; it has failed when the body raises.

        `UnwantedError` when `wanted` says no at its turn, `ShardError` 8 when the worker stops.
        """
        if self._closed:
            raise ShardError(Status.DISCONNECTED)
        network, loop = network_of(address), asyncio.get_running_loop()
        known = self._engine.login_is_known(
            account.encode(), _pair_key(network, account), self._now_us(), int(KNOWN_FOR_S * 1e6)
        )
        attempt = _Attempt(account, wanted, loop.create_future(), loop.create_future())
        try:
            async with self._counted(self._turn_of(attempt, network, account if known else None)):
                yield
        finally:
            if not attempt.finished.done():  # its line was cancelled
                attempt.finished.set_result(None)
        self._succeeded(network, account, known)

    @asynccontextmanager
    async def hashing(self, address: str) -> AsyncIterator[None]:
        """A turn at the thread for a hash that is not an attempt."""
        network = network_of(address)
        async with self._thread.turn(("known", site_of(network), network)):
            yield

    def figures(self) -> dict[str, int]:
        """Attempts that wait for their turn, and those waiting or at work."""
        return {"jobs_waiting": self._waiting, "jobs": self._waiting + self._at_work}

    def failures(self, address: str, account: str | None = None) -> int:
        """What counts now against new attempts of an address, or with `account` against this one where it is known."""
        network = network_of(address)
        return self._engine.login_failures(_Line(network, account).keys(account or "")[0], self._now_us())

    def close(self) -> None:
        """Who waits gets 8; attempts at work go on."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)

    async def _turn_of(self, attempt: _Attempt, network: str, known_account: str | None) -> None:
        """Waits for it. Whoever may not wait does not come into the line either."""
        with aside():
            self._enter(network, known_account, [attempt])
            await attempt.ready

    def _enter(self, network: str, known_account: str | None, attempts: list[_Attempt]) -> None:
        line = self._lines.get((network, known_account))
        is_new = line is None
        if line is None:
            line = self._lines[network, known_account] = _Line(network, known_account)
        for attempt in attempts:
            line.attempts.put((attempt.account,), attempt)
        if is_new:
            task = asyncio.get_running_loop().create_task(self._serve(line), name="login line")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, line: _Line) -> None:
        """Until nobody is left in the line."""
        attempt: _Attempt | None = None
        try:
            while (attempt := await self._next(line)) is not None:
                await self._wait_for_its_moment(line, attempt)
                async with self._thread.turn((self._kind(line), site_of(line.network), line.network)):
                    if self._may_go(attempt):
                        for key in line.keys(attempt.account):
                            self._engine.login_begin(key, self._now_us())
                        attempt.ready.set_result(None)
                        await attempt.finished
        finally:
            del self._lines[line.network, line.account]
            if attempt is not None:
                attempt.refuse(ShardError(Status.DISCONNECTED))
            while line.attempts:
                line.attempts.take().refuse(ShardError(Status.DISCONNECTED))

    async def _next(self, line: _Line) -> _Attempt | None:
        left = 0
        while line.attempts:
            attempt = line.attempts.take()
            if self._may_go(attempt):
                return attempt
            left += 1
            if left % _LEFT_SLICE == 0:
                await asyncio.sleep(0)
        return None

    @staticmethod
    def _may_go(attempt: _Attempt) -> bool:
        if not attempt.ready.done() and not attempt.wanted():
            attempt.refuse(UnwantedError())
        return not attempt.ready.done()

    def _kind(self, line: _Line) -> str:
        if line.account is not None:
            return "known"
        failures = self._engine.login_failures(line.keys("")[0], self._now_us())
        return "failing" if failures > self._under_way_elsewhere else "new"

    async def _wait_for_its_moment(self, line: _Line, attempt: _Attempt) -> None:
        now_us, moment_us = self._now_us(), 0
        for place, key in enumerate(line.keys(attempt.account)):
            wait_us = int(wait_s(self._engine.login_failures(key, now_us) - self._under_way_elsewhere) * 1e6)
            if wait_us and place == 0:
                moment_us = self._engine.login_moment(key, now_us, wait_us)
            elif wait_us:  # of the account: everyone waits, nobody for another one
                moment_us = max(moment_us, now_us + wait_us)
        if moment_us > now_us:
            await asyncio.sleep((moment_us - now_us) / 1e6)

    @asynccontextmanager
    async def _counted(self, turn: Awaitable[None]) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            await turn
        finally:
            self._waiting -= 1
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1

    def _succeeded(self, network: str, account: str, known: bool) -> None:
        now_us, pair = self._now_us(), _pair_key(network, account)
        if not known:
            for key in _Line(network, None).keys(account):
                self._engine.login_take_back(key, now_us)
        self._engine.login_clear(pair, now_us)
        self._engine.login_remember(account.encode(), pair, now_us)
        new = None if known else self._lines.get((network, None))
        others = [] if new is None else new.attempts.take_all(account)
        if others and not self._closed:
            self._enter(network, account, others)
