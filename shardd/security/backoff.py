"""Failed logins cost their caller: from the sixth one on an address waits before each attempt, one attempt at a time.

The wait doubles from 50 ms to 1 s with every failure; a successful login or five quiet minutes end it. Addresses are
those of hosts (of an IPv6 host: its /64 network); the table is capped, who failed longest ago leaves first.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

FREE_FAILURES: Final = 5
FIRST_WAIT_S: Final = 0.05
WAIT_MAX_S: Final = 1.0
FORGET_AFTER_S: Final = 300.0
ADDRESSES_MAX: Final = 4096
_IPV6_NETWORK_BITS: Final = 64


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_s: float = 0.0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


def network_of(address: str) -> str:
    """What "ip:port" is counted as."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(parsed, ipaddress.IPv4Address):
        return host
    return str(ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False))


class FailedLogins:
    """The table of one worker. Loop thread only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, addresses_max: int = ADDRESSES_MAX) -> None:
        self._clock = clock
        self._addresses_max = addresses_max
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def wait_s(self, address: str) -> float:
        """How long the next attempt of an address has to wait."""
        entry = self._failures.get(network_of(address))
        if entry is None or entry.count < FREE_FAILURES or self._clock() - entry.last_s > FORGET_AFTER_S:
            return 0.0
        return min(WAIT_MAX_S, FIRST_WAIT_S * 2.0 ** min(entry.count - FREE_FAILURES, 16))

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Enters when the address may try; attempts of one that has failed too often go one after the other."""
        entry = self._failures.get(network_of(address))
        if entry is None or self.wait_s(address) == 0.0:
            yield
            return
        async with entry.turn:
            await asyncio.sleep(self.wait_s(address))
            yield

    def failed(self, address: str) -> None:
        network, now_s = network_of(address), self._clock()
        entry = self._failures.get(network)
        if entry is None or now_s - entry.last_s > FORGET_AFTER_S:
            entry = self._failures[network] = _Failures()
        entry.count += 1
        entry.last_s = now_s
        self._failures.move_to_end(network)
        if len(self._failures) > self._addresses_max:
            self._failures.popitem(last=False)

    def succeeded(self, address: str) -> None:
        self._failures.pop(network_of(address), None)
