"""How many connections of gRPC one address may have, and what one may send before it calls. The library accepts them
itself and has no place where somebody could say no, but their sockets are this process's: every now and then they are
looked at, and those that are too many of their address, or have sent too much, are shut down. The library sees a client
that has left.

Until a client has acknowledged the library's settings, the library takes 16 MiB of metadata for a call, whatever its
options say, and each entry is an object of Python when the call is whole: half a second of the loop for one call. So an
address whose call has more than any that keeps to the settings is shut out for a while, with all its connections.

Of an address with too many calls without a login (strangers.py) those connections are shut down that have sent more
than a client does that logs in: their calls leave the library's line at once. Clients at work stay, and those whose
calls were answered.

A look costs a system call for each descriptor, so looks are rarer the more there are, and more frequent while there are
many connections, or somebody is shut out."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from shardd.doors.liftbridge.call_lines import CallLines, listeners
from shardd.doors.liftbridge.descriptors import Copies, descriptors, socket_name
from shardd.doors.taking import LOOK_S as TAKING_LOOK_S
from shardd.doors.taking import Taking, bound, left_of, received_by, reset_at_close
from shardd.runtime.networks import network_of, network_of_host

LOOK_S: Final = 0.25
LOOK_OFTEN_S: Final = 0.05  # when half of all are there, or somebody is shut out
LOOK_SHARE: Final = 20  # so many times as long as a look takes is between two of them
BEFORE_CALL_BYTES_MAX: Final = 2 << 20  # of a connection of which no call is known, for
YOUNG_S: Final = 10.0  # then the library has closed it, or holds it to its settings
REFUSED_MAX: Final = 4_096  # calls of a connection between two looks that were too many
STRANGER_BYTES_MAX: Final = 16 << 10  # of a connection without a login, while its address has too many calls
BEYOND_S: Final = 2.0  # it has, when so long ago it had
STRANGERS_SHARE: Final = 3  # quarters of all connections
SHUT_OUT_S: Final = 10.0
SHUT_OUT_MAX: Final = 1_024  # addresses
LINE_EVERY_S: Final = 10.0
ENDING_SHARE: Final = 4  # as LOOK_SHARE, before a look that ends somebody
_STEP: Final = 128  # descriptors between two turns of the loop
_MAPPED: Final = "::ffff:"  # before an address of IPv4 at a socket of IPv6
_TAKES_NOTHING: Final = "it does not take its answers"
_NO_LOGIN: Final = "it has too many calls without a login"
_TOO_MANY: Final = "connections without a login have their part of all, and others need room"
_REFUSED: Final = "it has too many calls"
_log = logging.getLogger(__name__)


class _Peer:
    """A connection of gRPC, or another socket (`host` ""). `address`: "ip:port". `is_settled`: it has made a call, or
    is older than clients are that have acknowledged no settings; what it sends is not looked at any more. `has_called`:
    it has made one; `has_login`: a call of it had one. `taking`: of what is sent to it."""

    __slots__ = ("address", "has_called", "has_login", "host", "is_settled", "since_s", "taking")

    def __init__(self, host: str = "", address: str = "", since_s: float = 0.0, slow_reader_s: float = 0.0) -> None:
        self.host = host
        self.address = address
        self.since_s = since_s
        self.is_settled = not host
        self.has_called = False
        self.has_login = False
        self.taking = Taking(slow_reader_s)


_OTHER: Final = _Peer()


class ConnectionShares:
    """Loop thread only. `port`: where gRPC listens. `closed`: connections that were shut down. `slow_reader_s`: for a
    client that takes nothing of what is sent (shardd/doors/taking.py). `is_at_work(address)`: the connection is not one
    of strangers, or not yet; `was_refused(address)`: lately, for want of a login."""

    def __init__(self, port: int, connections_max: int, of_address_max: int, slow_reader_s: float = 30.0) -> None:
        self.closed = 0
        self.lines = CallLines(port)
        self.is_at_work: Callable[[str], bool] = self.has_login
        self.was_refused: Callable[[str], bool] = lambda address: False
        self._copies = Copies()
        self._port = port
        self._max = connections_max
        self._of_address_max = of_address_max
        self._slow_reader_s = slow_reader_s
        self._taking_at_s = 0.0
        self._known: dict[str, _Peer] = {}  # by the name of a socket, which it has alone
        self._called: set[str] = set()  # addresses since the last look
        self._logged_in: set[str] = set()  # those with a login
        self._users: set[str] = set()  # at the last look, addresses of connections that have had a login
        self._beyond: dict[str, float] = {}  # addresses with too many calls of strangers, until when
        self._refused: Counter[str] = Counter()  # and calls that were refused, by connection
        self._shut_out: dict[str, float] = {}  # until when
        self._ended: set[str] = set()  # addresses whose connections end at the next look,
        self._ended_strangers: set[str] = set()  # or unless they are at work by then
        self._wake = asyncio.Event()
        self._line_at_s = 0.0

    def called(self, address: str) -> None:
        """A client ("ip:port") has made a call."""
        self._called.add(address)

    def logged_in(self, address: str) -> None:
        """A call of a client ("ip:port") has a login."""
        self._logged_in.add(address)

    def has_login(self, address: str) -> bool:
        """Whether a call of this connection has had one."""
        return address in self._users or address in self._logged_in

    def beyond(self, host: str) -> None:
        """This address has too many calls without a login."""
        self.lines.loud(host)
        if host in self._beyond or len(self._beyond) < SHUT_OUT_MAX:
            if host not in self._beyond:
                self._wake.set()
            self._beyond[host] = asyncio.get_running_loop().time() + BEYOND_S

    def end_stranger(self, address: str) -> None:
        """A client ("ip:port") that goes on with such calls."""
        self._ended_strangers.add(address)
        self._tell(network_of(address), _NO_LOGIN)
        self._wake.set()

    def refused(self, address: str) -> None:
        """A call of somebody who has too many already. Thousands of them, and others in its line get no turn."""
        self._refused[address] += 1
        if self._refused[address] == REFUSED_MAX:
            self._ended.add(address)
            self._tell(network_of(address), _REFUSED)
            self._wake.set()

    def end(self, address: str) -> None:
        """A client ("ip:port") that does not take what was sent to it. The library keeps that until its connection
        ends, whatever becomes of the call."""
        self._ended.add(address)
        self._tell(network_of(address), _TAKES_NOTHING)
        self._wake.set()

    def shut_out(self, address: str) -> None:
        """This connection has sent what no client sends. Others of its address end with it, if they are strangers."""
        host = network_of(address)
        if host in self._shut_out or len(self._shut_out) < SHUT_OUT_MAX:
            self._shut_out[host] = asyncio.get_running_loop().time() + SHUT_OUT_S
        self._ended.add(address)
        self._tell(host, "it has sent too much before a call or with one")
        self._wake.set()

    def bound_listeners(self) -> None:
        """When the library listens: what the kernel may keep of what is sent, and which line connections come to."""
        for found in listeners(self._port):
            with found:
                bound(found, self._slow_reader_s)
        self.lines.begin()

    async def run(self) -> None:
        """Until it is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            self._wake.clear()
            count = 0
            try:
                count = await self.look()
            except OSError as error:  # the next look may find what this one has not
                self._fails(error)
            often = bool(self._shut_out) or 2 * count >= self._max
            took_s = clock() - began_s
            pause_s = max(LOOK_OFTEN_S if often else LOOK_S, took_s * LOOK_SHARE)
            await asyncio.sleep(took_s * ENDING_SHARE)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause_s)

    async def look(self) -> int:
        """How many connections there are."""
        now_s = asyncio.get_running_loop().time()
        self._shut_out = {host: until_s for host, until_s in self._shut_out.items() if until_s > now_s}
        self._beyond = {host: until_s for host, until_s in self._beyond.items() if until_s > now_s}
        logged_in = frozenset(self._logged_in)
        called, self._called = self._called, set()
        ended = dict.fromkeys(self._ended_strangers, True) | dict.fromkeys(self._ended, False)
        self._ended.clear()
        self._ended_strangers.clear()
        self._refused.clear()
        looks_at_taking = now_s >= self._taking_at_s
        if looks_at_taking:
            self._taking_at_s = now_s + TAKING_LOOK_S
        found: dict[str, _Peer] = {}
        asked: list[tuple[str, int]] = []
        for number, name in enumerate(descriptors()):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            of_socket = socket_name(name)
            peer = self._known.get(of_socket)
            if peer is not None:
                found[of_socket] = peer
                peer.has_called = peer.has_called or peer.address in called
                peer.is_settled = peer.is_settled or peer.has_called or now_s - peer.since_s > YOUNG_S
                peer.has_login = peer.has_login or peer.address in self._logged_in
            judged = peer is None or not peer.is_settled or peer.address in ended or self._is_unwelcome(peer)
            if looks_at_taking and peer is not None and peer.host and not judged:
                judged = peer.taking.since_s is not None or left_of(int(name)) > 0
            if of_socket and judged:
                asked.append((of_socket, int(name)))
        of = Counter(peer.host for peer in found.values())
        for number, (of_socket, descriptor) in enumerate(asked):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
            peer = self._judge(descriptor, of_socket, found.get(of_socket), of, called, ended)
            if peer is None:
                found.pop(of_socket, None)
            elif of_socket not in found:
                found[of_socket] = peer
                of[peer.host] += 1
            else:
                found[of_socket] = peer
        self._known = found
        self._users = {peer.address for peer in found.values() if peer.has_login}
        self._logged_in -= logged_in
        for host in {network_of(address) for address in logged_in}:
            self.lines.known(host)
        self.lines.renew()
        self._make_room(found)
        return sum(1 for peer in found.values() if peer.host)

    def _make_room(self, found: Mapping[str, _Peer]) -> None:
        """The library has a bound for each line only, so all of them have theirs here; strangers have a part of it.
        Beyond, the longest held one of the address with most strangers ends, and where there is none, the newest."""
        peers = [peer for peer in found.values() if peer.host]
        strangers = [peer for peer in peers if not self._is_at_work(peer)]
        over = len(peers) - self._max
        beyond = min(max(len(strangers) - self._max * STRANGERS_SHARE // 4, over, 0), len(strangers))
        of: dict[str, list[_Peer]] = {}
        for peer in sorted(strangers, key=lambda each: -each.since_s):
            of.setdefault(peer.host, []).append(peer)
        most = [(-len(each), host) for host, each in of.items()]
        heapq.heapify(most)
        for _ in range(beyond):
            count, host = most[0]
            self._ended_strangers.add(of[host].pop().address)
            heapq.heapreplace(most, (count + 1, host))
        if beyond:
            self._tell(most[0][1], _TOO_MANY)
            self._wake.set()
        if over > beyond:
            others = sorted((peer for peer in peers if self._is_at_work(peer)), key=lambda each: -each.since_s)
            self._ended |= {peer.address for peer in others[: over - beyond]}
            self._tell(others[0].host, f"all clients together have {self._max}, as many as may be")
            self._wake.set()

    def _judge(
        self,
        descriptor: int,
        name: str,
        known: _Peer | None,
        of: Counter[str],
        called: AbstractSet[str],
        ended: Mapping[str, bool],
    ) -> _Peer | None:
        """Whose connection it is; _OTHER: nobody's, or it was shut down; None: it is gone. `ended`: addresses that end,
        True: unless they are at work. The descriptor is the library's and may be another socket at any moment: what is
        looked at, and shut down, is a copy."""
        with self._copies.of(descriptor, name) as connection:
            if connection is None:
                return None
            peer = known or self._peer_of(connection)
            if not peer.host:
                return peer
            peer.has_called = peer.has_called or peer.address in called or peer.address in self._called
            peer.is_settled = peer.is_settled or peer.has_called
            peer.has_login = peer.has_login or peer.address in self._logged_in
            if self._is_stranger_beyond(peer) and received_by(connection) > STRANGER_BYTES_MAX:
                self._tell(peer.host, _NO_LOGIN)
            elif not self._is_ended(peer, ended) and (peer.host not in self._shut_out or peer.has_login):
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

    def _is_unwelcome(self, peer: _Peer) -> bool:
        return peer.host in self._shut_out or self._is_stranger_beyond(peer)

    def _is_ended(self, peer: _Peer, ended: Mapping[str, bool]) -> bool:
        """Asked as late as it can be: a login may have come while others were looked at."""
        is_stranger = ended.get(peer.address)
        return is_stranger is not None and not (is_stranger and self._is_at_work(peer))

    def _is_at_work(self, peer: _Peer) -> bool:
        return peer.has_login or self.is_at_work(peer.address)

    def _is_stranger_beyond(self, peer: _Peer) -> bool:
        if peer.host not in self._beyond or self._is_at_work(peer):
            return False
        return not peer.has_called or self.was_refused(peer.address)

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

    def close(self) -> None:
        """Nothing is looked at any more."""
        self.lines.close()
        self._copies.close()

    def _fails(self, error: OSError) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._line_at_s:
            self._line_at_s = now_s + LINE_EVERY_S
            _log.error("the connections of gRPC cannot be looked at: %s", error)

    def _tell(self, host: str, why: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._line_at_s:
            self._line_at_s = now_s + LINE_EVERY_S
            _log.warning("connections of %s are closed: %s", host, why)
