"""Connections without a login, by what their calls have come to. Each has a budget that fills up again; one that has
used it up has its end, and what it has in the library's line ends with it. Nobody's end is for calls of others: while
nothing is short, none ends, and a connection that has shown a login, or waits for one and was not refused, is at work
and stays whatever comes.

An address whose strangers have much in a second is loud for a while: new connections of it come to a line that nobody
else is in (call_lines.py)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

REFUSED_COST: Final = 64  # a call without a valid login, a method or a service that there is not
PROBED_COST: Final = 8  # a look at health, reflection: load balancers have many on one connection
IN_VAIN_COST: Final = 1  # no place to wait for a login was free, or its client gave it up: one begins with hundreds
OF_CONNECTION_MAX: Final = 512  # 8 refused calls, 64 looks at health, as many in vain as a connection has calls
OF_CONNECTION_PER_S: Final = 128
OF_ADDRESS_MAX: Final = 64 * REFUSED_COST  # in a second, as handshakes of TLS (shardd/doors/openings.py)
OF_ALL_MAX: Final = 4 * OF_ADDRESS_MAX  # of those that are not loud; beyond, it is short for all addresses
GIVEN_UP_MAX: Final = 4 * OF_CONNECTION_MAX  # beyond, its calls that wait protect a connection no longer
LOUD_S: Final = 10.0  # an address is loud for so long after its last second with too many
REMEMBERED_MAX: Final = 16_384  # connections


class _Connection:
    """`used` of its budget at `at_s`; `waiting`: its calls that wait for their login; `given_up`, `was_refused`: calls,
    lately."""

    __slots__ = ("at_s", "given_up", "used", "waiting", "was_refused")

    def __init__(self, now_s: float) -> None:
        self.at_s = now_s
        self.used = 0.0
        self.given_up = 0.0
        self.waiting = 0
        self.was_refused = False

    def settle(self, now_s: float) -> None:
        back = (now_s - self.at_s) * OF_CONNECTION_PER_S
        self.used, self.given_up = max(0.0, self.used - back), max(0.0, self.given_up - back)
        self.at_s = now_s
        if not self.used:
            self.was_refused = False


class Strangers:
    """Loop thread only. `end(address)`: the connection of "ip:port" goes on without end; `beyond(host)`: this address
    is loud from now on; `has_login(address)`: a call of the connection has had one."""

    def __init__(
        self, end: Callable[[str], None], beyond: Callable[[str], None], has_login: Callable[[str], bool]
    ) -> None:
        self._end = end
        self._beyond = beyond
        self._has_login = has_login
        self._second_s = 0.0
        self._all = 0
        self._of_host: Counter[str] = Counter()
        self._loud: dict[str, float] = {}  # until when
        self._connections: dict[str, _Connection] = {}

    def refused(self, address: str, host: str) -> None:
        self._count(address, host, REFUSED_COST)

    def probed(self, address: str, host: str) -> None:
        self._count(address, host, PROBED_COST)

    def in_vain(self, address: str, host: str) -> None:
        """It found no place to wait for its login."""
        self._count(address, host, IN_VAIN_COST)

    def given_up(self, address: str, host: str) -> None:
        """By its client, while it waited for its login."""
        connection = self._connection(address, asyncio.get_running_loop().time())
        connection.given_up = min(connection.given_up + 1, 2 * GIVEN_UP_MAX)
        self._count(address, host, IN_VAIN_COST)

    @contextmanager
    def waiting(self, address: str) -> Iterator[None]:
        """A call of it waits for its login."""
        connection = self._connection(address, asyncio.get_running_loop().time())
        connection.waiting += 1
        try:
            yield
        finally:
            connection.waiting -= 1

    def is_at_work(self, address: str) -> bool:
        """Whether it has shown a login, or waits for one and nothing speaks against it."""
        if self._has_login(address):
            return True
        connection = self._connections.get(address)
        if connection is None or connection.was_refused or connection.given_up > GIVEN_UP_MAX:
            return False
        return connection.waiting > 0

    def was_refused(self, address: str) -> bool:
        """Lately."""
        connection = self._connections.get(address)
        return connection is not None and connection.was_refused

    def _count(self, address: str, host: str, cost: int) -> None:
        if self._has_login(address):
            return
        now_s = asyncio.get_running_loop().time()
        if now_s - self._second_s > 1.0:
            self._begin_second(now_s)
        if host not in self._loud:  # what a loud one has is bounded by its line, and is nobody else's
            self._all += cost
        self._of_host[host] += cost
        if self._of_host[host] > OF_ADDRESS_MAX:
            self._loud[host] = now_s + LOUD_S
            self._beyond(host)
        connection = self._connection(address, now_s)
        connection.settle(now_s)
        connection.used = min(connection.used + cost, 2 * OF_CONNECTION_MAX)
        connection.was_refused = connection.was_refused or cost == REFUSED_COST
        # a call in vain says itself that it is short
        is_short = host in self._loud or self._all > OF_ALL_MAX or cost == IN_VAIN_COST
        if connection.used > OF_CONNECTION_MAX and is_short and not self.is_at_work(address):
            connection.used = 0.0  # another one may come from the same port
            self._end(address)

    def _connection(self, address: str, now_s: float) -> _Connection:
        found = self._connections.get(address)
        if found is None:
            found = self._connections[address] = _Connection(now_s)
        return found

    def _begin_second(self, now_s: float) -> None:
        self._second_s, self._all = now_s, 0
        self._of_host.clear()
        self._loud = {host: until_s for host, until_s in self._loud.items() if until_s > now_s}
        for each in self._connections.values():
            each.settle(now_s)
        kept = {
            address: each for address, each in self._connections.items() if each.waiting or each.used or each.given_up
        }
        if len(kept) > REMEMBERED_MAX:
            kept = {address: each for address, each in kept.items() if each.waiting}
        self._connections = kept
