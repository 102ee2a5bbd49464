"""`http.allowed_hosts`, `metrics.allowed_hosts`: names that requests may call the server by
(docs/configuration.md#allowed-hosts)."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

HOSTS_MAX: Final = 64
ANY: Final = "*"
_NAME_CHARACTERS_MAX: Final = 253
_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.ASCII)


def normal_host(text: str) -> str | None:
    """A name, or an address without its brackets, in the form in which two of them are compared: IPv4 inside IPv6 is
    IPv4. None: neither."""
    if text.startswith("["):
        if not text.endswith("]") or "%" in text:
            return None
        try:
            address = ipaddress.IPv6Address(text[1:-1])
        except ValueError:
            return None
        return str(address.ipv4_mapped or address)
    name = text.lower().removesuffix(".")
    return name if len(name) <= _NAME_CHARACTERS_MAX and _NAME.fullmatch(name) else None


def is_loopback(host: str) -> bool:
    """A normal form."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_of_this_host(address: str) -> bool:
    """An address with a port, as `http.address`: only this host reaches it."""
    return is_loopback(normal_host(address.rpartition(":")[0]) or "")


def parse_hosts(value: object) -> list[str]:
    """Entries such as "broker.example", "*.example", "10.1.2.3", "[fd00::1]" or "*" in a list, or in a text with
    commas; the normal forms. ValueError with a sentence."""
    entries = [entry.strip() for entry in value.split(",") if entry.strip()] if isinstance(value, str) else value
    if not isinstance(entries, list) or len(entries) > HOSTS_MAX:
        raise ValueError(f"not a list of at most {HOSTS_MAX} names of hosts")
    return [_parse_entry(entry) for entry in entries]


def _parse_entry(entry: object) -> str:
    text = entry if isinstance(entry, str) else ""
    if text == ANY:
        return ANY
    found = normal_host(text.removeprefix("*."))
    if found is None or (text.startswith("*.") and ":" in found):
        raise ValueError(f'{entry!r} is no name such as "broker.example", "*.example" or "[fd00::1]", without a port')
    return f"*.{found}" if text.startswith("*.") else f"[{found}]" if ":" in found else found
