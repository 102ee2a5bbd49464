"""Lines of calls. The library has one line for the calls of all connections of a server, first come, first served, and
Python takes one call at a time out of it. So this door has several servers at its port, each with a line of its own,
and the loop takes one call of each in turn. Which one a connection comes to is the kernel's choice, by a program that
looks at its address: addresses that have shown a login are apart from strangers, and those whose strangers go on
without end (strangers.py) have a line that nobody else is in.

A connection stays where it is. So lines of strangers tell their clients to connect again after a while, which clients
do without anything ending: by then their address is known."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import ipaddress
import logging
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from shardd.doors.liftbridge.descriptors import descriptors, socket_name

LOUD: Final = 0
STRANGERS: Final = (1, 2, 3)  # by address
KNOWN: Final = (4, 5, 6, 7)  # in turns
LINES: Final = 1 + len(STRANGERS) + len(KNOWN)
PENDING_CALLS_MAX: Final = 16_384  # that wait for their turn in a line; beyond, some are cancelled,
PENDING_CALLS_ALWAYS_MAX: Final = 20_480  # and beyond that all
LOUD_CALLS_MAX: Final = 2_048
AGE_MS: Final = 60_000  # of a connection in a line that is not one of known addresses; its client connects again
HOSTS_MAX: Final = 256  # that are known, and as many that are loud: a program has 4,096 instructions at most
KEPT_S: Final = 60.0  # a known address keeps its line for so long after its last login
AGAIN_S: Final = 5.0  # after one that the kernel has not taken
LOUD_S: Final = 10.0  # an address is loud for so long after its last call too many
_ATTACH: Final = getattr(socket, "SO_ATTACH_REUSEPORT_CBPF", 51)
_NETWORK: Final = 0xFFF0_0000  # SKF_NET_OFF: what follows is counted from the head of IP
_LOAD, _SHIFT, _MODULO, _ADD = 0x20, 0x74, 0x94, 0x04
_IF_EQUAL, _GO, _GIVE, _GIVE_FOUND = 0x15, 0x05, 0x06, 0x16
_INSTRUCTION: Final = struct.Struct("=HBBI")
_PROGRAM: Final = struct.Struct("HP")
_log = logging.getLogger(__name__)
Instruction = tuple[int, int, int, int]


def can_steer() -> bool:
    """Whether the kernel takes a program."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        tried.bind(("127.0.0.1", 0))
        tried.listen()
        attach(tried, program({}))
        return True
    return False


def line_options(line: int, is_steered: bool) -> list[tuple[str, int]]:
    """What the server of this line has of its own. Where connections come to any line, all have the same."""
    pending, always = PENDING_CALLS_MAX, PENDING_CALLS_ALWAYS_MAX
    if is_steered and line == LOUD:
        pending, always = LOUD_CALLS_MAX, 2 * LOUD_CALLS_MAX
    options = [("grpc.server.max_pending_requests", pending), ("grpc.server.max_pending_requests_hard_limit", always)]
    if is_steered and line not in KNOWN:
        options.append(("grpc.max_connection_age_ms", AGE_MS))
    return options


class _Known:
    """`line`: of its own; `used_s`: when a login has come from there."""

    __slots__ = ("line", "used_s")

    def __init__(self, line: int, used_s: float) -> None:
        self.line = line
        self.used_s = used_s


class CallLines:
    """Loop thread only. Which line new connections of an address come to. `is_steering`: the kernel does what it was
    told."""

    def __init__(self, port: int) -> None:
        self.is_steering = False
        self._port = port
        self._listeners: list[socket.socket] = []  # copies, one of those that share an address
        self._known: OrderedDict[str, _Known] = OrderedDict()  # the longest unused first
        self._loud: dict[str, float] = {}  # until when
        self._next = 0
        self._is_new = False
        self._hosts_max = 2 * HOSTS_MAX  # that the kernel takes
        self._try_at_s = 0.0
        self._is_told = False

    def known(self, host: str) -> None:
        """A login has come from there."""
        now_s = asyncio.get_running_loop().time()
        found = self._known.get(host)
        if found is not None:
            found.used_s = now_s
            self._known.move_to_end(host)
            return
        if len(self._known) >= HOSTS_MAX:
            if next(iter(self._known.values())).used_s > now_s - KEPT_S:
                return  # all are in use: were they to take turns, each look would change every line
            self._known.popitem(last=False)
        self._known[host] = _Known(KNOWN[self._next % len(KNOWN)], now_s)
        self._next += 1
        self._is_new = True

    def loud(self, host: str) -> None:
        """Strangers there have had more than their share."""
        if host not in self._loud:
            if len(self._loud) >= HOSTS_MAX:
                return
            self._is_new = True
        self._loud[host] = asyncio.get_running_loop().time() + LOUD_S

    def begin(self) -> None:
        """When all servers listen."""
        addresses = set[object]()
        for listener in listeners(self._port):
            address = listener.getsockname()
            if address in addresses:  # one has it for all of them
                listener.close()
            else:
                addresses.add(address)
                self._listeners.append(listener)
        self._attach()

    def close(self) -> None:
        """Before the servers stop: a copy would listen on."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def renew(self) -> None:
        """What has changed since is told to the kernel; again, where it has not taken it."""
        now_s = asyncio.get_running_loop().time()
        over = [host for host, until_s in self._loud.items() if until_s <= now_s]
        for host in over:
            del self._loud[host]
        self._is_new = self._is_new or bool(over)
        if now_s >= self._try_at_s and (self._is_new or not self.is_steering):
            self._attach()

    def _attach(self) -> None:
        """Loud addresses first, then known ones, the last used first. Where the kernel has no room for a program of
        all, for half of them."""
        hosts = [*dict.fromkeys((*self._loud, *reversed(self._known)))]
        lines = {host: LOUD if host in self._loud else self._known[host].line for host in hosts}
        count = min(len(hosts), self._hosts_max)
        while True:
            try:
                code = program({host: lines[host] for host in hosts[:count]})
                for listener in self._listeners:
                    attach(listener, code)
                break
            except OSError as error:
                if error.errno == errno.ENOMEM and count:
                    self._hosts_max = count = count // 2
                    continue
                self._fails(error)
                return
        self._is_new = False
        self.is_steering = bool(self._listeners)

    def _fails(self, error: OSError) -> None:
        """It is tried again. What the kernel has had before holds on."""
        self._try_at_s = asyncio.get_running_loop().time() + AGAIN_S
        if not self._is_told:
            self._is_told = True
            _log.warning("connections come to any line of calls, as the kernel takes no program for them: %s", error)


def attach(listener: socket.socket, code: Sequence[Instruction]) -> None:
    """OSError."""
    packed = b"".join(_INSTRUCTION.pack(*each) for each in code)
    held = ctypes.create_string_buffer(packed, len(packed))
    listener.setsockopt(socket.SOL_SOCKET, _ATTACH, _PROGRAM.pack(len(code), ctypes.addressof(held)))


def listeners(port: int) -> Iterator[socket.socket]:
    """Copies of this process's sockets that listen there; whoever asks closes them."""
    for name in descriptors():
        if not socket_name(name):
            continue
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(int(name)))
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                is_listener = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if is_listener and found.getsockname()[1] == port:
                    yield found
                    continue
            found.close()


def program(lines: Mapping[str, int]) -> list[Instruction]:
    """A line for each packet that opens a connection: that of its address, else one of strangers."""
    of_4: list[Instruction] = [(_LOAD, 0, 0, _NETWORK + 12)]
    of_6: list[Instruction] = []
    for host, line in lines.items():
        with contextlib.suppress(ValueError):
            words = _words(host)
            if len(words) == 1:
                of_4 += [(_IF_EQUAL, 0, 1, words[0]), (_GIVE, 0, 0, line)]
            else:
                of_6 += [(_LOAD, 0, 0, _NETWORK + 8), (_IF_EQUAL, 0, 3, words[0]), (_LOAD, 0, 0, _NETWORK + 12)]
                of_6 += [(_IF_EQUAL, 0, 1, words[1]), (_GIVE, 0, 0, line)]
    other = [(_MODULO, 0, 0, len(STRANGERS)), (_ADD, 0, 0, STRANGERS[0]), (_GIVE_FOUND, 0, 0, 0)]
    of_4 += other
    of_6 += [(_LOAD, 0, 0, _NETWORK + 12), *other]
    head = [(_LOAD, 0, 0, _NETWORK), (_SHIFT, 0, 0, 28), (_IF_EQUAL, 1, 0, 4), (_GO, 0, 0, len(of_4))]
    return [*head, *of_4, *of_6]


@lru_cache(maxsize=4 * HOSTS_MAX)
def _words(host: str) -> tuple[int, ...]:
    """Of an address of IPv4 one, of a network of IPv6 the first two. ValueError: it is neither."""
    if "/" not in host:
        return (int(ipaddress.IPv4Address(host)),)
    first, second, *_ = struct.unpack(">4I", ipaddress.ip_network(host).network_address.packed)
    return first, second
