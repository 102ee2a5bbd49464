"""The classic protocol over TCP, TLS and a Unix socket."""

from __future__ import annotations

import socket
import struct
from typing import Final

from tests.hostile.matrix import door
from tests.hostile.matrix.https import trusting_anything
from tests.hostile.matrix.lines import READER, STRANGER
from tests.hostile.matrix.target import BIG, OTHER, SMALL, STREAM, Target
from tests.support import wire
from tests.support.tls_wire import TlsWire

CHANGE_PASSWORD: Final = 37
_PINGS: Final = 500
_POLLED: Final = 3
HALF_LOGIN: Final = wire.frame(wire.LOGIN_USER, bytes(4_000))[:2_000]
HALF_BATCH: Final = wire.frame(wire.SEND_MESSAGES, bytes(100_000))[:60_000]
WRONG_LOGIN: Final = wire.frame(wire.LOGIN_USER, wire.str8(OTHER) + wire.str8("wrong") + bytes(8))


def poll_payload() -> bytes:
    place = wire.consumer() + wire.identifier(STREAM) + wire.identifier(BIG) + wire.optional_partition(0)
    return place + struct.pack("<BQIB", wire.POLL_OFFSET, 0, _POLLED, 0)


def change_payload(role: str) -> bytes:
    """Of the own password, from one that it is not."""
    return wire.identifier(role) + wire.str8("wrong") + wire.str8("another")


def frames_of(role: str) -> tuple[bytes, bytes, bytes, bytes]:
    """A request, one with a large answer, a half one, one with a wrong password."""
    ping = wire.frame(wire.PING)
    if role == STRANGER:
        return ping, ping, HALF_LOGIN, WRONG_LOGIN
    request = wire.frame(wire.GET_STREAMS)
    large = wire.frame(wire.POLL_MESSAGES, poll_payload()) if role == READER else request
    return request, large, HALF_BATCH, wire.frame(CHANGE_PASSWORD, change_payload(role))


def means_of(role: str) -> door.Means:
    request, large, half, wrong = frames_of(role)
    many = large if role == READER else large * _PINGS
    return door.Means(lambda _: request, lambda _: many, lambda _: half, lambda _: request, lambda _: wrong)


def logged_in(peer: socket.socket, target: Target, role: str) -> None:
    """OSError, also for a refusal."""
    if role == STRANGER:
        return
    peer.sendall(wire.frame(wire.LOGIN_WITH_TOKEN, wire.str8(target.tokens[role])))
    status, length = struct.unpack("<II", wire.exactly(peer, 8))
    wire.exactly(peer, length)
    if status != 0:
        peer.close()
        raise ConnectionError(f"a login is answered with {status}")


class _Client:
    def __init__(self, made: wire.Wire, target: Target) -> None:
        self._wire = made
        made.login_with_token(target.tokens[OTHER])

    def ask(self) -> None:
        self._wire.poll(STREAM, SMALL, 0, strategy=wire.POLL_LAST, count=1)
        self._wire.ping()

    def close(self) -> None:
        self._wire.close()


class Classic:
    """`name`: tcp, tls or unix."""

    kernel_bytes_max = 3 << 20

    def __init__(self, name: str) -> None:
        self._name = name

    def enter(self, target: Target, role: str, *, deaf: bool) -> door.Entered:
        made = door.connected(target.addresses[self._name], deaf=deaf)
        if self._name == "tls":
            made = door.secured(made)
        logged_in(made, target, role)
        return door.Entered(made, means_of(role))

    def knock(self, target: Target) -> tuple[socket.socket, bytes]:
        first = door.hello() if self._name == "tls" else wire.frame(wire.PING)[:3]
        return door.connected(target.addresses[self._name]), first

    def client(self, target: Target) -> door.Client:
        address = target.addresses[self._name]
        return _Client(TlsWire(address, trusting_anything()) if self._name == "tls" else wire.Wire(address), target)
