"""Calls that are over and had no login: refused ones, looks at health, methods that there are not. An address has so
many in a second. Beyond, it is loud for a while, and a connection that goes on has its end: what a stranger has in the
library's line ends with the connection. Whoever comes new from there and shows a login is served.

Calls that wait for their login are not counted: a client that begins may have many of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

OF_ADDRESS_MAX: Final = 64  # in a second, as handshakes of TLS (shardd/doors/openings.py)
OF_ALL_MAX: Final = 256  # of all addresses; when there are more, an address has
OF_ADDRESS_FEW: Final = 8
OF_CONNECTION_MAX: Final = 2  # of a connection while its address is loud
OF_USER_CONNECTION_MAX: Final = 512  # in a second, of one that has had a login: a proxy may carry many users
LOUD_S: Final = 10.0  # an address is loud for so long after its last second with too many
REMEMBERED_MAX: Final = 65_536  # connections and addresses


class Strangers:
    """Loop thread only. `end(address)`: the connection of "ip:port"; `beyond(host)`: the address is, from now on."""

    def __init__(
        self, end: Callable[[str], None], beyond: Callable[[str], None], has_login: Callable[[str], bool]
    ) -> None:
        self._end = end
        self._beyond = beyond
        self._has_login = has_login
        self._second_s = 0.0
        self._all = 0
        self._of_host: Counter[str] = Counter()
        self._of_user: Counter[str] = Counter()  # by connection
        self._of_connection: dict[str, Counter[str]] = {}  # by address, then by connection
        self._loud: dict[str, float] = {}  # until when
        self._ended: set[str] = set()

    def is_ended(self, address: str) -> bool:
        """Nothing is done for what comes from there."""
        return address in self._ended

    def count(self, address: str, host: str) -> None:
        """A call from there is over."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._second_s > 1.0:
            self._begin_second(now_s)
        self._all += 1
        self._of_host[host] += 1
        of_host_max = OF_ADDRESS_MAX if self._all <= OF_ALL_MAX else OF_ADDRESS_FEW
        if self._of_host[host] > of_host_max:
            self._loud[host] = now_s + LOUD_S
            self._beyond(host)
        counts, most = self._of_connection.setdefault(host, Counter()), OF_CONNECTION_MAX
        if self._has_login(address):
            counts, most = self._of_user, OF_USER_CONNECTION_MAX
        counts[address] += 1
        if host in self._loud and counts[address] > most and address not in self._ended:
            self._ended.add(address)
            self._end(address)

    def _begin_second(self, now_s: float) -> None:
        """What is counted of an address that is loud is kept: on a busy machine few calls are taken in a second."""
        self._second_s, self._all = now_s, 0
        self._of_host.clear()
        self._of_user.clear()
        self._loud = {host: until_s for host, until_s in self._loud.items() if until_s > now_s}
        if sum(map(len, self._of_connection.values())) > REMEMBERED_MAX:
            self._loud.clear()
        self._of_connection = {host: of for host, of in self._of_connection.items() if host in self._loud}
        if not self._loud or len(self._ended) > REMEMBERED_MAX:
            self._ended.clear()
