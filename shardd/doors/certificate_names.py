"""The names that a certificate is for: what Python tells only of certificates of others. The door has loaded it
already, so its form is right."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterator
from typing import Final

_ALTERNATIVE_NAMES: Final = bytes.fromhex("0603551d11")  # 2.5.29.17
_DNS: Final = 0x82
_ADDRESS: Final = 0x87
_EXTENSIONS: Final = 0xA3
_OCTETS: Final = 0x04
_PEM: Final = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.*?)-----END ", re.DOTALL)  # as OpenSSL's


def names_of(chain: bytes) -> frozenset[str]:
    """Of the first certificate of a chain, PEM: names in lower case, addresses without brackets."""
    first = _PEM.search(chain)
    assert first is not None, "OpenSSL has found one"
    names: set[str] = set()
    for kind, value in _values(_first(_first(base64.b64decode(first[1])))):
        if kind == _EXTENSIONS:
            for _, extension in _values(_first(value)):
                if extension.startswith(_ALTERNATIVE_NAMES):
                    names.update(_names(extension))
    return frozenset(names)


def _names(extension: bytes) -> Iterator[str]:
    octets = next(value for kind, value in _values(extension) if kind == _OCTETS)
    for kind, value in _values(_first(octets)):
        if kind == _DNS:
            yield value.decode("latin-1").lower().removesuffix(".")
        elif kind == _ADDRESS and len(value) in (4, 16):
            yield str(ipaddress.ip_address(value))


def _first(data: bytes) -> bytes:
    return next(_values(data))[1]


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """What stands one behind the other in DER: kinds of one byte, and values."""
    at = 0
    while at < len(data):
        kind, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        yield kind, data[at : at + length]
        at += length
