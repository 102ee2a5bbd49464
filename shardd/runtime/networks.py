"""What an address is counted as: one place for every door and line."""

from __future__ import annotations

import functools
import ipaddress
from typing import Final

_NETWORK_BITS: Final = 64


@functools.lru_cache(maxsize=1024)
def network_of_host(host: str) -> str:
    """An IPv4 address, or the /64 network of an IPv6 host, whose other half is the host's own choice; IPv4 that comes
    by a socket of IPv6 is IPv4. What is no address stays as it is."""
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(parsed, ipaddress.IPv4Address):
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _NETWORK_BITS), strict=False))


def network_of(address: str) -> str:
    """Of "ip:port" or "unix:uid:number": a user of this host is one address."""
    return network_of_host(address.rpartition(":")[0].strip("[]"))
