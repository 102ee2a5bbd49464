"""A proxy in front of a server, as its connections look: PROXY protocol headers, written from its specification."""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import Final

from tests.support import wire

PROXY_HOST: Final = "127.0.0.2"
TRUSTED: Final = {"SHARDD_SERVER_TRUSTED_PROXIES": f"{PROXY_HOST}/32"}
SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
LOCAL: Final = SIGNATURE + b"\x20\x00\x00\x00"
CLIENT_PORT: Final = 40_000


def header(client: str, rest: bytes = b"") -> bytes:
    """That of a stream of `client`, which may be an address of either family."""
    source = ipaddress.ip_address(client)
    family = 0x11 if source.version == 4 else 0x21
    addresses = source.packed + bytes(len(source.packed)) + struct.pack(">HH", CLIENT_PORT, 8090) + rest
    return SIGNATURE + struct.pack(">BBH", 0x21, family, len(addresses)) + addresses


def connect(address: str, client: str) -> wire.Wire:
    """A connection of the client by the proxy."""
    connection = wire.Wire(address, source=PROXY_HOST)
    connection.send_bytes(header(client))
    return connection


def socket_for(address: tuple[str, int], client: str, timeout_s: float = 60.0) -> socket.socket:
    """The same for what is not the classic wire."""
    connection = socket.create_connection(address, timeout=timeout_s, source_address=(PROXY_HOST, 0))
    connection.sendall(header(client))
    return connection
