"""Failed logins cost their caller: from the sixth one on an address waits before each attempt, one attempt at a time.

The wait doubles from 50 ms to 1 s with every failure; a successful login or five quiet minutes end it. Addresses are
those of hosts (of an IPv6 host: its /64 network); the table is capped, who failed longest ago leaves first. Attempts
that come together get moments one wait apart; who would have to wait longer than 30 s for its own is turned away.
"""

from __future__ import annotations

import functools
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FREE_FAILURES: Final = 5
FIRST_WAIT_S: Final = 0.05
WAIT_MAX_S: Final = 1.0
LINE_MAX_S: Final = 30.0
FORGET_AFTER_S: Final = 300.0
ADDRESSES_MAX: Final = 4096
_IPV6_NETWORK_BITS: Final = 64


@dataclass(slots=True)
class _Failures:
    """`free_s`: when the last attempt that was given a moment has it."""

    count: int = 0
    last_s: float = 0.0
    free_s: float = 0.0


@functools.lru_cache(maxsize=1024)
def _network_of_host(host: str) -> str:
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(parsed, ipaddress.IPv4Address):
        return host
    return str(ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False))


def network_of(address: str) -> str:
    """What "ip:port" is counted as."""
    return _network_of_host(address.rpartition(":")[0].strip("[]"))


class FailedLogins:
    """A table by network (`network_of`). Loop thread only.

    `changed` is called with a network and whether it is in the table from now on.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        addresses_max: int = ADDRESSES_MAX,
        changed: Callable[[str, bool], None] = lambda network, known: None,
    ) -> None:
        self._clock = clock
        self._addresses_max = addresses_max
        self._changed = changed
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failures(self, network: str) -> int:
        """How many count against the next attempt."""
        entry = self._failures.get(network)
        return 0 if entry is None or self._clock() - entry.last_s > FORGET_AFTER_S else entry.count

    def begin(self, network: str) -> float | None:
        """Gives an attempt its moment: how many seconds from now that is; None: the line is too long."""
        failures = self.failures(network)
        if failures < FREE_FAILURES:
            return 0.0
        entry, now_s = self._failures[network], self._clock()
        moment_s = max(now_s, entry.free_s) + min(WAIT_MAX_S, FIRST_WAIT_S * 2.0 ** min(failures - FREE_FAILURES, 16))
        if moment_s - now_s > LINE_MAX_S:
            return None
        entry.free_s = moment_s
        return moment_s - now_s

    def failed(self, network: str) -> None:
        now_s = self._clock()
        entry = self._failures.get(network)
        if entry is None:
            self._changed(network, True)
        if entry is None or now_s - entry.last_s > FORGET_AFTER_S:
            entry = self._failures[network] = _Failures()
        entry.count += 1
        entry.last_s = now_s
        self._failures.move_to_end(network)
        if len(self._failures) > self._addresses_max:
            self._changed(self._failures.popitem(last=False)[0], False)

    def succeeded(self, network: str) -> None:
        if self._failures.pop(network, None) is not None:
            self._changed(network, False)
