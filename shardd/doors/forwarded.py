"""Whose a request is when it comes by a proxy that a setting names (docs/configuration.md#proxies). The address of the
client is found here, once, and stands in the scope from then on: everything behind goes by it."""

from __future__ import annotations

import functools
import ipaddress
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from shardd.runtime.networks import network_of_host

if TYPE_CHECKING:
    from shardd.doors.asgi import Application, Receive, Scope, Send

PROXIES: Final = "proxies"
"""What connections of trusted proxies are counted as: not a text that an address has."""
HOPS_MAX: Final = 16  # proxies behind each other that are looked at
FIELD: Final = b"x-forwarded-for"
PORT_MAX: Final = 65535
ADDRESS_CHARS_MAX: Final = 64  # with a port and a zone
_BY_PROXY: Final = "shardd.by_proxy"
"""In the scope of a request of a trusted proxy."""
_BUSY: Final = b"Too many requests of one address at a time\n"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@functools.lru_cache(maxsize=1024)
def address_of(host: str) -> Address | None:
    """IPv4 that comes by a socket of IPv6 is IPv4. None: not an address."""
    assert len(host) <= ADDRESS_CHARS_MAX, "texts of any length would be remembered"
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed


class TrustedProxies:
    """`networks`: as the settings have them."""

    def __init__(self, networks: tuple[str, ...]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def has(self, host: str) -> bool:
        if not self._networks:
            return False
        address = address_of(host)
        return address is not None and self._contains(address)

    def client_of(self, peer: str, fields: list[bytes]) -> tuple[str, int]:
        """Address and port of the client. Each proxy adds the peer that it sees at the right, so the last entry that is
        not of a trusted proxy is the client; what stands left of it is the client's own claim. Port 0: not told."""
        found = peer, 0
        for hops, entry in enumerate(_from_the_right(fields)):
            told = _parse_entry(entry)
            if told is None or hops == HOPS_MAX:
                break
            found = str(told[0]), told[1]
            if not self._contains(told[0]):
                break
        return found

    def _contains(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


class ForwardedFor:
    """In front of an application."""

    def __init__(self, inner: Application, proxies: TrustedProxies) -> None:
        self._inner, self._proxies = inner, proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host, port = scope["client"] or ("", 0)
        if self._proxies.has(host):
            fields = [value for name, value in scope["headers"] if name == FIELD]
            scope["client"] = self._proxies.client_of(host, fields) if fields else (host, port)
            scope[_BY_PROXY] = True
        await self._inner(scope, receive, send)


class BoundedClients:
    """Behind `ForwardedFor`. `requests_max`: at work at a time, of one address behind the proxies; a client that
    connects itself has as many connections instead."""

    def __init__(self, inner: Application, requests_max: int) -> None:
        self._inner, self._requests_max = inner, requests_max
        self._at_work: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _BY_PROXY not in scope:
            await self._inner(scope, receive, send)
            return
        counted_as = network_of_host(scope["client"][0])
        if self._at_work[counted_as] >= self._requests_max:
            await _refuse(scope, send)
            return
        self._at_work[counted_as] += 1
        try:
            await self._inner(scope, receive, send)
        finally:
            self._at_work[counted_as] -= 1
            if not self._at_work[counted_as]:
                del self._at_work[counted_as]


def _from_the_right(fields: list[bytes]) -> Iterator[bytes]:
    """Several fields are one list."""
    for field in reversed(fields):
        rest = field
        while True:
            rest, comma, entry = rest.rpartition(b",")
            yield entry.strip(b" \t")
            if not comma:
                break


def _parse_entry(entry: bytes) -> tuple[Address, int] | None:
    """ "192.0.2.1", "192.0.2.1:443", "2001:db8::1" or "[2001:db8::1]:443". None: not an address."""
    text = entry.decode("latin-1")
    if len(text) > ADDRESS_CHARS_MAX:
        return None
    port = "0"
    if text.startswith("["):
        text, closed, behind = text[1:].partition("]")
        if not closed or (behind and not behind.startswith(":")):
            return None
        port = behind.removeprefix(":") or "0"
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
    address = None if "%" in text else address_of(text)
    if address is None or not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= PORT_MAX):
        return None
    return address, int(port)


async def _refuse(scope: Scope, send: Send) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(_BUSY)).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else _BUSY})
