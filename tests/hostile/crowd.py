"""Many connections at once, without a thread for each, and what they cost the server."""

from __future__ import annotations

import resource
import selectors
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shardd.protocol.codes import Code
from tests.support import wire
from tests.support.server import Server

SEND_CHUNK_BYTES = 1 << 16


def allow_descriptors(count: int) -> None:
    """Raises the own soft limit of open files; ValueError when the hard limit forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def resident_bytes(server: Server) -> int:
    """Resident memory of all its processes; a page that several share counts for each of them."""
    return sum(process.memory_info().rss for process in server.processes())


def make_token(connection: wire.Wire, name: str) -> str:
    answer = connection.request(Code.CREATE_PERSONAL_ACCESS_TOKEN, wire.str8(name) + bytes(8))
    return answer[1 : 1 + answer[0]].decode()


@contextmanager
def crowd(
    address: str, count: int, *, login: bool, receive_buffer_bytes: int | None = None
) -> Iterator[list[wire.Wire]]:
    """That many connections; they log in with a token: hundreds of passwords would cost the machine half a minute."""
    connections: list[wire.Wire] = []
    try:
        for _ in range(count):
            connection = wire.Wire(address, timeout_s=60.0, receive_buffer_bytes=receive_buffer_bytes)
            connections.append(connection)
        if login:
            with wire.connect(address) as root:
                token = make_token(root, f"crowd {time.monotonic_ns()}")
            for connection in connections:
                connection.send_bytes(wire.frame(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, wire.str8(token)))
            for connection in connections:
                status, _user = connection.reply()
                if status != 0:
                    raise wire.StatusError(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, status)
        yield connections
    finally:
        for connection in connections:
            connection.close()


def push(connections: Sequence[wire.Wire], data: bytes, *, stall_s: float = 1.0, timeout_s: float = 60.0) -> list[int]:
    """Sends `data` on each connection as far as the server takes it; bytes sent on each.

    Ends when all is sent or nothing moved for `stall_s`. A connection that the server closes is left as it is.
    """
    sent = [0] * len(connections)
    selector = selectors.DefaultSelector()
    for number, connection in enumerate(connections):
        connection.socket.setblocking(False)
        selector.register(connection.socket, selectors.EVENT_WRITE, number)
    view, deadline, moved_at = memoryview(data), time.monotonic() + timeout_s, time.monotonic()
    while selector.get_map() and time.monotonic() < deadline and time.monotonic() - moved_at < stall_s:
        for key, _events in selector.select(0.05):
            number, peer = key.data, connections[key.data].socket
            try:
                sent[number] += peer.send(view[sent[number] : sent[number] + SEND_CHUNK_BYTES])
                moved_at = time.monotonic()
                if sent[number] == len(data):
                    selector.unregister(peer)
            except BlockingIOError:
                continue
            except OSError:
                selector.unregister(peer)
    selector.close()
    for connection in connections:
        connection.socket.settimeout(30.0)
    return sent


def ping_times_ms(connections: Sequence[wire.Wire], rounds: int) -> list[float]:
    """Round trip times of PING in milliseconds, ascending."""
    times = []
    for _ in range(rounds):
        for connection in connections:
            began = time.perf_counter()
            connection.ping()
            times.append((time.perf_counter() - began) * 1000)
        time.sleep(0.01)
    return sorted(times)


def has_ended(connection: wire.Wire, timeout_s: float) -> bool:
    """True when the server closes the connection within that time; answers before are read and dropped."""
    connection.socket.settimeout(timeout_s)
    try:
        while connection.socket.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except (OSError, ConnectionError):
        return True
    return True
