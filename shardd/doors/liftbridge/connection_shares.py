"""How many connections of gRPC one address may have, and what one may send before it calls. The library accepts them
itself and has no place where somebody could say no, but their sockets are this process's: every now and then they are
looked at, and those that are too many of their address, or have sent too much, are shut down. The library sees a client
that has left.

Until a client has acknowledged the library's settings, the library takes 16 MiB of metadata for a call, whatever its
options say, and each entry is an object of Python when the call is whole: half a second of the loop for one call. So an
address whose call has more than any that keeps to the settings is shut out for a while, with all its connections.

A look costs a system call for each descriptor, so looks are rarer the more there are, and more frequent while there are
many connections, or somebody is shut out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Set as AbstractSet
from typing import Final

from shardd.doors.taking import LOOK_S as TAKING_LOOK_S
from shardd.doors.taking import Taking, bound, left_of, received_by, reset_at_close
from shardd.runtime.networks import network_of, network_of_host

LOOK_S: Final = 0.25
LOOK_OFTEN_S: Final = 0.05  # when half of all are there, or somebody is shut out
LOOK_SHARE: Final = 20  # so many times as long as a look takes is between two of them
BEFORE_CALL_BYTES_MAX: Final = 2 << 20  # of a connection of which no call is known, for
YOUNG_S: Final = 10.0  # then the library has closed it, or holds it to its settings
REFUSED_MAX: Final = 4_096  # calls of an address between two looks that were too many
SHUT_OUT_S: Final = 10.0
SHUT_OUT_MAX: Final = 1_024  # addresses
LINE_EVERY_S: Final = 10.0
_STEP: Final = 128  # descriptors between two turns of the loop
_DESCRIPTORS: Final = "/proc/self/fd"
_SOCKET: Final = "socket:"
_MAPPED: Final = "::ffff:"  # before an address of IPv4 at a socket of IPv6
_TAKES_NOTHING: Final = "it does not take its answers"
_log = logging.getLogger(__name__)


class _Peer:
    """A connection of gRPC, or another socket (`host` ""). `address`: "ip:port". `is_settled`: it has made a call, or
    is older than clients are that have acknowledged no settings; what it sends is not looked at any more. `taking`: of
    what is sent to it."""

    __slots__ = ("address", "host", "is_settled", "since_s", "taking")

    def __init__(self, host: str = "", address: str = "", since_s: float = 0.0, slow_reader_s: float = 0.0) -> None:
        self.host = host
        self.address = address
        self.since_s = since_s
        self.is_settled = not host
        self.taking = Taking(slow_reader_s)


_OTHER: Final = _Peer()


class ConnectionShares:
    """Loop thread only. `port`: where gRPC listens. `closed`: connections that were shut down. `slow_reader_s`: for a
    client that takes nothing of what is sent (shardd/doors/taking.py)."""

    def __init__(self, port: int, connections_max: int, of_address_max: int, slow_reader_s: float = 30.0) -> None:
        self.closed = 0
        self._port = port
        self._max = connections_max
        self._of_address_max = of_address_max
        self._slow_reader_s = slow_reader_s
        self._taking_at_s = 0.0
        self._known: dict[str, _Peer] = {}  # by the name of a socket, which it has alone
        self._called: set[str] = set()  # addresses since the last look
        self._refused: Counter[str] = Counter()  # and calls that were refused, by host
        self._shut_out: dict[str, float] = {}  # until when
        self._ended: set[str] = set()  # addresses whose connections end at the next look
        self._wake = asyncio.Event()
        self._line_at_s = 0.0

    def called(self, address: str) -> None:
        """A client ("ip:port") has made a call."""
        self._called.add(address)

    def refused(self, address: str) -> None:
        """A call of somebody who has too many already. Thousands of them, and nobody else gets a turn: the library has
        one line for all."""
        host = network_of(address)
        self._refused[host] += 1
        if self._refused[host] == REFUSED_MAX:
            self.shut_out(address)

    def end(self, address: str) -> None:
        """A client ("ip:port") that does not take what was sent to it. The library keeps that until its connection
        ends, whatever becomes of the call."""
        self._ended.add(address)
        self._tell(network_of(address), _TAKES_NOTHING)
        self._wake.set()

    def shut_out(self, address: str) -> None:
        """Whoever sends from there has sent what no client sends."""
        host = network_of(address)
        if host in self._shut_out or len(self._shut_out) < SHUT_OUT_MAX:
            self._shut_out[host] = asyncio.get_running_loop().time() + SHUT_OUT_S
        self._tell(host, "it has sent too much before a call or with one, or too many calls")
        self._wake.set()

    def bound_listener(self) -> None:
        """When the library listens: what the kernel may keep of what is sent."""
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - names, no paths
            if not _name_of(name):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                is_one = found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM
                if is_one and found.getsockname()[1] == self._port:
                    bound(found, self._slow_reader_s)

    async def run(self) -> None:
        """Until it is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            count = await self.look()
            often = bool(self._shut_out) or 2 * count >= self._max
            pause_s = max(LOOK_OFTEN_S if often else LOOK_S, (clock() - began_s) * LOOK_SHARE)
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause_s)

    async def look(self) -> int:
        """How many connections there are."""
        now_s = asyncio.get_running_loop().time()
        self._shut_out = {host: until_s for host, until_s in self._shut_out.items() if until_s > now_s}
        called, self._called = self._called, set()
        ended, self._ended = self._ended, set()
        self._refused.clear()
        looks_at_taking = now_s >= self._taking_at_s
        if looks_at_taking:
            self._taking_at_s = now_s + TAKING_LOOK_S
        found: dict[str, _Peer] = {}
        asked: list[tuple[str, int]] = []
        for number, name in enumerate(os.listdir(_DESCRIPTORS)):  # noqa: PTH208 - names, no paths
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            socket_name = _name_of(name)
            peer = self._known.get(socket_name)
            if peer is not None:
                found[socket_name] = peer
                peer.is_settled = peer.is_settled or peer.address in called or now_s - peer.since_s > YOUNG_S
            judged = peer is None or not peer.is_settled or peer.address in ended or peer.host in self._shut_out
            if looks_at_taking and peer is not None and peer.host and not judged:
                judged = peer.taking.since_s is not None or left_of(int(name)) > 0
            if socket_name and judged:
                asked.append((socket_name, int(name)))
        of = Counter(peer.host for peer in found.values())
        for number, (socket_name, descriptor) in enumerate(asked):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            peer = self._judge(descriptor, socket_name, found.get(socket_name), of, called, ended)
            if peer is None:
                found.pop(socket_name, None)
            elif socket_name not in found:
                found[socket_name] = peer
                of[peer.host] += 1
            else:
                found[socket_name] = peer
        self._known = found
        return sum(1 for peer in found.values() if peer.host)

    def _judge(
        self,
        descriptor: int,
        socket_name: str,
        known: _Peer | None,
        of: Counter[str],
        called: AbstractSet[str],
        ended: AbstractSet[str] = frozenset(),
    ) -> _Peer | None:
        """Whose connection it is; _OTHER: nobody's, or it was shut down; None: it is gone. The descriptor is the
        library's and may be another socket at any moment: what is looked at, and shut down, is a copy."""
        try:
            copy = os.dup(descriptor)
        except OSError:
            return None
        if _name_of(str(copy)) != socket_name:
            os.close(copy)
            return None
        with socket.socket(fileno=copy) as connection:
            peer = known or self._peer_of(connection)
            if not peer.host:
                return peer
            peer.is_settled = peer.is_settled or peer.address in called or peer.address in self._called
            if peer.address not in ended and peer.host not in self._shut_out:
                too_many = known is None and of[peer.host] >= self._of_address_max
                late = peer.taking.is_late(connection, asyncio.get_running_loop().time())
                if not too_many and not late and (peer.is_settled or received_by(connection) <= BEFORE_CALL_BYTES_MAX):
                    return peer
                if late:
                    self._tell(peer.host, _TAKES_NOTHING)
                elif too_many:
                    self._tell(peer.host, f"it has {self._of_address_max}, as many as one address may")
                else:
                    self.shut_out(peer.address)
            reset_at_close(connection)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.closed += 1
        return _OTHER

    def _peer_of(self, connection: socket.socket) -> _Peer:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return _OTHER
        try:
            if connection.getsockname()[1] != self._port:
                return _OTHER
            host, port, *_ = connection.getpeername()
        except OSError:
            return _OTHER  # it listens, or has ended
        host = host.removeprefix(_MAPPED)  # the library listens for both families, and tells addresses without it
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return _Peer(network_of_host(host), address, asyncio.get_running_loop().time(), self._slow_reader_s)

    def _tell(self, host: str, why: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._line_at_s:
            self._line_at_s = now_s + LINE_EVERY_S
            _log.warning("connections of %s are closed: %s", host, why)


def _name_of(descriptor: str) -> str:
    """That of the socket; "": it is none, or is gone."""
    try:
        name = os.readlink(f"{_DESCRIPTORS}/{descriptor}")  # noqa: PTH115 - thousands in a look
    except OSError:
        return ""
    return name if name.startswith(_SOCKET) else ""
