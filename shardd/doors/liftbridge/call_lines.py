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
import ipaddress
import logging
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final

LOUD: Final = 0
STRANGERS: Final = (1, 2, 3)  # by address
KNOWN: Final = (4, 5, 6, 7)  # in turns
LINES: Final = 1 + len(STRANGERS) + len(KNOWN)
PENDING_CALLS_MAX: Final = 16_384  # that wait for their turn in a line; beyond, some are cancelled,
PENDING_CALLS_ALWAYS_MAX: Final = 20_480  # and beyond that all
LOUD_CALLS_MAX: Final = 2_048
AGE_MS: Final = 60_000  # of a connection in a line of strangers, then its client connects again
LOUD_AGE_MS: Final = 15_000
HOSTS_MAX: Final = 256  # that are known, and as many that are loud: a program has 4,096 instructions at most
LOUD_S: Final = 10.0  # an address is loud for so long after its last call too many
_ATTACH: Final = getattr(socket, "SO_ATTACH_REUSEPORT_CBPF", 51)
_NETWORK: Final = 0xFFF0_0000  # SKF_NET_OFF: what follows is counted from the head of IP
_LOAD, _SHIFT, _MODULO, _ADD = 0x20, 0x74, 0x94, 0x04
_IF_EQUAL, _GO, _GIVE, _GIVE_FOUND = 0x15, 0x05, 0x06, 0x16
_INSTRUCTION: Final = struct.Struct("=HBBI")
_PROGRAM: Final = struct.Struct("HP")
_DESCRIPTORS: Final = "/proc/self/fd"
_log = logging.getLogger(__name__)
Instruction = tuple[int, int, int, int]


def line_options(line: int) -> list[tuple[str, int]]:
    """What the server of this line has of its own."""
    pending, always = PENDING_CALLS_MAX, PENDING_CALLS_ALWAYS_MAX
    if line == LOUD:
        pending, always = LOUD_CALLS_MAX, 2 * LOUD_CALLS_MAX
    options = [("grpc.server.max_pending_requests", pending), ("grpc.server.max_pending_requests_hard_limit", always)]
    if line == LOUD:
        options.append(("grpc.max_connection_age_ms", LOUD_AGE_MS))
    elif line in STRANGERS:
        options.append(("grpc.max_connection_age_ms", AGE_MS))
    return options


class CallLines:
    """Loop thread only. Which line new connections of an address come to. `is_steering`: the kernel does what it was
    told."""

    def __init__(self, port: int) -> None:
        self.is_steering = False
        self._port = port
        self._known: OrderedDict[str, int] = OrderedDict()  # the longest unused first
        self._loud: dict[str, float] = {}  # until when
        self._next = 0
        self._is_new = False

    def known(self, host: str) -> None:
        """A login has come from there."""
        if host in self._known:
            self._known.move_to_end(host)
            return
        if len(self._known) >= HOSTS_MAX:
            self._known.popitem(last=False)
        self._known[host] = KNOWN[self._next % len(KNOWN)]
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
        self._attach()

    def renew(self) -> None:
        """What has changed since is told to the kernel."""
        now_s = asyncio.get_running_loop().time()
        over = [host for host, until_s in self._loud.items() if until_s <= now_s]
        for host in over:
            del self._loud[host]
        if (self._is_new or over) and self.is_steering:
            self._attach()

    def _attach(self) -> None:
        self._is_new = False
        code = b"".join(
            _INSTRUCTION.pack(*each) for each in program({**self._known, **dict.fromkeys(self._loud, LOUD)})
        )
        held = ctypes.create_string_buffer(code, len(code))
        said = _PROGRAM.pack(len(code) // _INSTRUCTION.size, ctypes.addressof(held))
        addresses = set[object]()
        try:
            for listener in listeners(self._port):
                with listener:
                    address = listener.getsockname()
                    if address not in addresses:  # one of those that share an address has it for all of them
                        listener.setsockopt(socket.SOL_SOCKET, _ATTACH, said)
                        addresses.add(address)
            self.is_steering = bool(addresses)
        except OSError as error:
            self.is_steering = False
            _log.warning("connections come to any line of calls, as the kernel takes no program for them: %s", error)


def listeners(port: int) -> Iterator[socket.socket]:
    """Copies of this process's sockets that listen there; whoever asks closes them."""
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - names, no paths
        with contextlib.suppress(OSError):
            if not os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):  # noqa: PTH115 - many of them
                continue
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
            if "/" in host:
                first, second, *_ = struct.unpack(">4I", ipaddress.ip_network(host).network_address.packed)
                of_6 += [(_LOAD, 0, 0, _NETWORK + 8), (_IF_EQUAL, 0, 3, first), (_LOAD, 0, 0, _NETWORK + 12)]
                of_6 += [(_IF_EQUAL, 0, 1, second), (_GIVE, 0, 0, line)]
            else:
                of_4 += [(_IF_EQUAL, 0, 1, int(ipaddress.IPv4Address(host))), (_GIVE, 0, 0, line)]
    other = [(_MODULO, 0, 0, len(STRANGERS)), (_ADD, 0, 0, STRANGERS[0]), (_GIVE_FOUND, 0, 0, 0)]
    of_4 += other
    of_6 += [(_LOAD, 0, 0, _NETWORK + 12), *other]
    head = [(_LOAD, 0, 0, _NETWORK), (_SHIFT, 0, 0, 28), (_IF_EQUAL, 1, 0, 4), (_GO, 0, 0, len(of_4))]
    return [*head, *of_4, *of_6]
