"""Failed attempts with passwords cost their caller: the rules. Who counts: `shardd.security.login_turns`.

An attempt counts from its beginning and is taken back when it succeeds. Addresses are those of hosts (of an IPv6 host:
its /64 network). An address from which an account logged in within a day is known for this account.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import Final

LOCAL_PREFIX: Final = "unix:"
"""How the address of a connection over the Unix socket begins: "unix:uid:number" (native/src/net/conn/conn.c)."""
FREE_FAILURES: Final = 5
FIRST_WAIT_S: Final = 0.05
WAIT_MAX_S: Final = 1.0
KNOWN_FOR_S: Final = 86_400.0
_SITE_BITS: Final = 48


def wait_s(failures: int) -> float:
    """How long an attempt waits, and how far apart the attempts of one line are: 0, then 50 ms doubling to 1 s."""
    if failures < FREE_FAILURES:
        return 0.0
    return min(WAIT_MAX_S, FIRST_WAIT_S * 2.0 ** min(failures - FREE_FAILURES, 16))


@functools.lru_cache(maxsize=1024)
def site_of(network: str) -> str:
    """Of an IPv6 network the /48 that one customer may have whole, else the network: sites take turns."""
    if ":" not in network or network.startswith(LOCAL_PREFIX):
        return network
    return str(ipaddress.IPv6Network(network).supernet(new_prefix=_SITE_BITS))
