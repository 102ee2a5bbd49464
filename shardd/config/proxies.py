"""`server.trusted_proxies`, and at which ports they speak for their clients (docs/configuration.md#proxies)."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from shardd.config.schema import Settings

NETWORKS_MAX: Final = 64  # TRUSTED_NETWORKS_MAX of the core (native/src/net/trusted.h)
NETWORKS_PATH: Final = "server.trusted_proxies"
_MAPPED_BITS: Final = 96  # in front of an IPv4 address inside of IPv6
# the key of a port's switch -> the field of `Proxies`
_SWITCHES: Final = {
    "tcp.proxy_protocol": "tcp",
    "websocket.proxy_protocol": "websocket",
    "http.proxy_protocol": "http_header",
    "http.forwarded_for": "http",
}


class Proxies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`networks`: normal forms. `tcp`, `websocket`, `http_header`: connections from them begin with a PROXY protocol
    header; `http`: their field X-Forwarded-For is believed."""

    networks: tuple[str, ...] = ()
    tcp: bool = False
    websocket: bool = False
    http: bool = False
    http_header: bool = False

    def lines_for(self, port: bool) -> str:
        """The networks as the core reads them, where the switch of the port is on."""
        return "".join(f"{network}\n" for network in self.networks) if port else ""


def parse_networks(value: object) -> list[str]:
    """Entries such as "10.1.0.0/16", "fd00::/8" or "10.1.2.3" in a list, or in a text with commas; the normal forms.
    ValueError with a sentence."""
    entries = [entry.strip() for entry in value.split(",") if entry.strip()] if isinstance(value, str) else value
    if not isinstance(entries, list) or len(entries) > NETWORKS_MAX:
        raise ValueError(f"not a list of at most {NETWORKS_MAX} networks")
    return [_parse_network(entry) for entry in entries]


def _parse_network(entry: object) -> str:
    network: ipaddress.IPv4Network | ipaddress.IPv6Network
    try:
        network = ipaddress.ip_network(entry if isinstance(entry, str) and "%" not in entry else "")
    except ValueError:
        raise ValueError(f'{entry!r} is not a network such as "10.1.0.0/16", "fd00::/8" or "10.1.2.3"') from None
    mapped = network.network_address.ipv4_mapped if isinstance(network, ipaddress.IPv6Network) else None
    if mapped is not None and network.prefixlen >= _MAPPED_BITS:
        network = ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    if network.prefixlen == 0:
        raise ValueError(f"{entry!r} trusts every address; name the hosts of the proxies")
    return str(network)


def check(settings: Settings) -> list[str]:
    """Sentences about keys that do not fit each other."""
    proxies = settings.proxies
    http = settings.http.enabled
    served = {"tcp": True, "websocket": settings.websocket.enabled, "http": http, "http_header": http}
    on = [path for path, field in _SWITCHES.items() if getattr(proxies, field)]
    read = [path for path in on if served[_SWITCHES[path]]]  # those of ports that are disabled may wait for their day
    if read and not proxies.networks:
        return [f"{read[0]}: has no effect without {NETWORKS_PATH}; name the networks of the proxies there"]
    if proxies.networks and not on:
        return [f"{NETWORKS_PATH}: has no effect alone; set {', '.join(_SWITCHES)} or several of them to true"]
    return []
