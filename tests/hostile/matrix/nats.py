"""The door that is a NATS server."""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from tests.hostile.matrix import door
from tests.hostile.matrix.lines import READER, STRANGER
from tests.hostile.matrix.target import OTHER, Target
from tests.support import wire

_PING: Final = b"PING\r\n"
_MANY: Final = 10_000
_WIDE: Final = b"x" * 60_000


def _connect(**fields: object) -> bytes:
    return b"CONNECT " + msgspec.json.encode({"verbose": False, "pedantic": False, **fields}) + b"\r\n"


def _line(peer: socket.socket) -> bytes:
    heard = b""
    while not heard.endswith(b"\r\n"):
        heard += wire.exactly(peer, 1)
    return heard


def _until_pong(peer: socket.socket) -> None:
    peer.sendall(_PING)
    while (said := _line(peer)) != b"PONG\r\n":
        if said.startswith(b"-ERR"):
            raise ConnectionError(said.decode())
        if said == _PING:
            peer.sendall(b"PONG\r\n")


class _Client:
    def __init__(self, target: Target) -> None:
        self._peer = socket.create_connection(wire.host_and_port(target.addresses["nats"]), 60.0)
        self._peer.sendall(_connect(auth_token=target.tokens[OTHER]))

    def ask(self) -> None:
        _until_pong(self._peer)

    def close(self) -> None:
        self._peer.close()


class Nats:
    kernel_bytes_max = 256 << 10

    def enter(self, target: Target, role: str, *, deaf: bool) -> door.Entered:
        made = door.connected(target.addresses["nats"], deaf=deaf)
        _line(made)  # INFO
        subject = b"_INBOX.deaf"
        large = _PING * _MANY
        if role != STRANGER:
            made.sendall(_connect(auth_token=target.tokens[role]))
            _until_pong(made)
        if role == READER:  # who hears what he says himself
            made.sendall(b"SUB _INBOX.> 1\r\n")
            large = b"PUB %b %d\r\n%b\r\n" % (subject, len(_WIDE), _WIDE)
        half = b"PUB big 1000000\r\n" + bytes(1_000) if role != STRANGER else b'CONNECT {"user":"'
        wrong = _connect(user=OTHER, **{"pass": "wrong"}) + _PING
        request = _PING if role != STRANGER else b"PONG\r\n"
        return door.Entered(
            made,
            door.Means(lambda _: request, lambda _: large, lambda _: half, lambda _: request, lambda _: wrong),
        )

    def knock(self, target: Target) -> tuple[socket.socket, bytes]:
        return door.connected(target.addresses["nats"]), b'CONNECT {"verb'

    def client(self, target: Target) -> door.Client:
        return _Client(target)
