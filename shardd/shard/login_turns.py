"""The cost of failed logins (`shardd.security.backoff`) holds for an address on all shards together.

Each network has one shard that keeps its failures: a hash of it says which. The others ask there over the bus, but only
when that shard has marked the network in the shared region: a login from a network without failures asks nobody, so a
storm of them costs no more than itself. Networks share 2048 marks; who shares one asks and is told to go on. While the
home is down everyone counts for itself; what it knew is gone with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

import msgspec

from shardd.engine import Engine, xxh32
from shardd.metadata.channel import BusError, Senders
from shardd.protocol.errors import ShardError, Status
from shardd.security.backoff import FailedLogins, network_of
from shardd.shard.bus import Bus

METHOD_BEGIN: Final = "login.begin"  # network -> seconds to wait; nil: too many wait already
METHOD_FAILED: Final = "login.failed"  # network -> empty
METHOD_SUCCEEDED: Final = "login.succeeded"  # network -> empty
TIMEOUT_S: Final = 1.0
MARKS: Final = 2048  # LINK_FAILING_MARKS in native/src/links.h
_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode_wait = msgspec.msgpack.Decoder(float | None).decode


class LoginTurns:
    """Who may try to log in, and when. Addresses are "ip:port". Lives on the loop thread."""

    def __init__(self, bus: Bus, engine: Engine) -> None:
        self._bus = bus
        self._engine = engine
        self._marked: Counter[int] = Counter()  # networks of the table by mark
        self.table = FailedLogins(changed=self._mark)  # of the networks whose home is here
        bus.serve(METHOD_BEGIN, Senders.ANY_SHARD, self._on_begin)
        bus.serve(METHOD_FAILED, Senders.ANY_SHARD, self._on_failed)
        bus.serve(METHOD_SUCCEEDED, Senders.ANY_SHARD, self._on_succeeded)

    async def wait(self, address: str) -> None:
        """Returns when the address may try. `ShardError` 42 at once when too many of its attempts wait already."""
        network = network_of(address)
        if not self._has_failed(network):
            return
        wait_s = _decode_wait(await self._ask(METHOD_BEGIN, network))
        if wait_s is None:
            raise ShardError(Status.INVALID_CREDENTIALS, "too many logins of this address wait for their turn")
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def failed(self, address: str) -> None:
        """Counted when this returns: to be awaited before the refusal is answered."""
        await self._ask(METHOD_FAILED, network_of(address))

    async def succeeded(self, address: str) -> None:
        network = network_of(address)
        if self._has_failed(network):
            await self._ask(METHOD_SUCCEEDED, network)

    def home(self, network: str) -> int:
        """The shard that keeps the failures of a network."""
        return self._home_and_mark(network)[0]

    def _home_and_mark(self, network: str) -> tuple[int, int]:
        number = xxh32(network.encode())
        return number % self._bus.shards, number // self._bus.shards % MARKS

    def _has_failed(self, network: str) -> bool:
        """False: nobody who counts has a failure of it."""
        home, mark = self._home_and_mark(network)
        counting = home if self._bus.is_up(home) else self._bus.shard
        return self._engine.is_failing(counting, mark)

    def _mark(self, network: str, known: bool) -> None:
        _, mark = self._home_and_mark(network)
        self._marked[mark] += 1 if known else -1
        self._engine.mark_failing(mark, self._marked[mark] > 0)

    async def _ask(self, method: str, network: str) -> bytes:
        home, payload = self.home(network), network.encode()
        if self._bus.is_up(home):
            try:
                return await self._bus.request(home, method, payload, TIMEOUT_S, patience_s=None)
            except BusError as error:
                _log.debug("shard %d does not count the logins of its networks: %s", home, error)
        return await self._bus.request(self._bus.shard, method, payload)

    async def _on_begin(self, sender: int, payload: bytes) -> bytes:
        return _encode(self.table.begin(payload.decode()))

    async def _on_failed(self, sender: int, payload: bytes) -> bytes:
        self.table.failed(payload.decode())
        return b""

    async def _on_succeeded(self, sender: int, payload: bytes) -> bytes:
        self.table.succeeded(payload.decode())
        return b""
