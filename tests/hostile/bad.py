"""Bad clients, each as a function that runs in a process of its own: it sets up, says so, goes on until it is told to
stop. All of them are paced, so that what they cost the others is the server's doing and not that of a busy machine.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Event

from tests.hostile import crowd
from tests.support import wire

LOGIN_WITH_TOKEN = 44
HALF_OPEN, DRIPPING, SLOW_READERS, IDLE = 500, 200, 20, 10_000
DRIPPED_BYTES_PER_S = 2_000
CUTS_PER_S = 200
RECONNECTS_PER_S = 200
HANDSHAKES_PER_S, _HANDSHAKES_OPEN = 500, 100
_IDLE_SOURCES = 10


@dataclass(frozen=True, slots=True)
class Target:
    """`token` is that of root, `outsider` that of a user without any right."""

    address: str
    token: str
    outsider: str


Bad = Callable[[Target, Event, Event], None]


def _pace(per_s: int, stop: Event, act: Callable[[], None]) -> None:
    """Calls `act` so often until told to stop; what was missed is not made up for."""
    next_s = time.monotonic()
    while not stop.is_set():
        act()
        next_s = max(next_s + 1 / per_s, time.monotonic() - 0.01)
        time.sleep(max(0.0, next_s - time.monotonic()))


def _close(connections: list[wire.Wire]) -> None:
    for connection in connections:
        connection.close()


def half_open(target: Target, ready: Event, stop: Event) -> None:
    """Begin a frame and say nothing more, some after a part of the header; some end their half."""
    frame = wire.frame(wire.SEND_MESSAGES, bytes(1_000_000))
    connections = []
    for number in range(HALF_OPEN):
        connection = wire.Wire(target.address)
        connection.send_bytes(frame[: (3, 8, 40, 20_000)[number % 4]])
        if number % 8 == 0:
            connection.socket.shutdown(socket.SHUT_WR)
        connections.append(connection)
    ready.set()
    stop.wait()
    _close(connections)


def slow_reader(target: Target, ready: Event, stop: Event) -> None:
    """Ask for 30 MB each and take a few bytes of it every now and then."""
    request = wire.consumer() + wire.identifier("net") + wire.identifier("big") + wire.optional_partition(0)
    request += struct.pack("<BQIB", wire.POLL_OFFSET, 0, 30, 0)
    connections = []
    for _ in range(SLOW_READERS):
        connection = wire.Wire(target.address, receive_buffer_bytes=1 << 14)
        connection.request(LOGIN_WITH_TOKEN, wire.str8(target.token))
        connection.send_bytes(wire.frame(wire.POLL_MESSAGES, request))
        connections.append(connection)
    ready.set()

    def act() -> None:
        with contextlib.suppress(OSError):
            random.choice(connections).socket.recv(1000)

    _pace(200, stop, act)
    _close(connections)


def drip(target: Target, ready: Event, stop: Event) -> None:
    """Send frames byte by byte."""
    frame = wire.frame(wire.PING, bytes(60))
    connections = [wire.Wire(target.address) for _ in range(DRIPPING)]
    sent = [0] * DRIPPING
    for connection in connections:
        connection.socket.setblocking(False)
    ready.set()

    def act() -> None:
        for number in random.sample(range(DRIPPING), 10):
            connection = connections[number]
            with contextlib.suppress(BlockingIOError):
                connection.send_bytes(frame[sent[number] : sent[number] + 1])
                sent[number] = (sent[number] + 1) % len(frame)
                connection.socket.recv(1000)

    _pace(DRIPPED_BYTES_PER_S // 10, stop, act)
    _close(connections)


def cut(target: Target, ready: Event, stop: Event) -> None:
    """Connect, log in, send a part of a frame and are gone; every other one with a reset."""
    body = wire.batch("net", "small", wire.to_partition(0), [wire.message(bytes(50_000))])
    frame = wire.frame(wire.SEND_MESSAGES, body)
    number = 0

    def act() -> None:
        nonlocal number
        number += 1
        connection = wire.Wire(target.address)
        connection.request(LOGIN_WITH_TOKEN, wire.str8(target.token))
        connection.send_bytes(frame[: random.randrange(1, len(frame))])
        if number % 2:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("<ii", 1, 0))
        connection.close()

    act()
    ready.set()
    _pace(CUTS_PER_S, stop, act)


def reconnect_storm(target: Target, ready: Event, stop: Event) -> None:
    """Connect, log in, ping and close, again and again."""

    def act() -> None:
        with wire.Wire(target.address) as connection:
            connection.request(LOGIN_WITH_TOKEN, wire.str8(target.token))
            connection.ping()

    act()
    ready.set()
    _pace(RECONNECTS_PER_S, stop, act)


def handshakes(target: Target, ready: Event, stop: Event) -> None:
    """Begin a handshake of TLS from one address and leave when the server has done its part, 500 times a second."""
    context = ssl.create_default_context()
    answer, first = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(answer, first, server_hostname="localhost").do_handshake()
    hello, begun = first.read(), collections.deque[socket.socket]()

    def act() -> None:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("<ii", 1, 0))
        made.bind(("127.0.0.9", 0))
        made.connect(wire.host_and_port(target.address))
        made.sendall(hello)
        begun.append(made)
        if len(begun) > _HANDSHAKES_OPEN:
            oldest = begun.popleft()
            oldest.settimeout(1.0)  # it has had a fifth of a second
            with contextlib.suppress(OSError):
                oldest.recv(1)
            oldest.close()

    act()
    if begun[0].recv(5)[:1] != b"\x16":
        raise RuntimeError("the server speaks no TLS")
    ready.set()
    _pace(HANDSHAKES_PER_S, stop, act)
    for made in begun:
        made.close()


def idle(target: Target, ready: Event, stop: Event) -> None:
    """Ten thousand connections that say nothing, from several addresses."""
    crowd.allow_descriptors(IDLE + 1000)
    host, port = wire.host_and_port(target.address)
    sockets = []
    for number in range(IDLE):
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.bind((f"127.0.0.{2 + number % _IDLE_SOURCES}", 0))
        made.connect((host, port))
        sockets.append(made)
    for made in sockets[::100]:  # the last ones are accepted, too
        made.sendall(wire.frame(wire.PING))
        made.recv(8)
    ready.set()
    stop.wait()
    for made in sockets:
        made.close()


def run(bad: Bad, target: Target, ready: Event, stop: Event) -> None:
    """What the process of a bad client does."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # as if on a machine of its own
    bad(target, ready, stop)
