"""Connections of the doors for HTTP count until their clients have what was written, and never twice."""

from __future__ import annotations

import socket
import struct
import time

from shardd.doors.asgi_crowd import AsgiCrowd, AsgiLimits
from shardd.doors.taking import left_of
from tests.support.stalls import wait_until

HOST = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)


def unread_pair() -> tuple[socket.socket, socket.socket]:
    """A connection whose client does not read what was written to it."""
    with socket.create_server((HOST, 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    server.setblocking(False)
    try:
        while server.send(bytes(65536)):
            pass
    except BlockingIOError:
        pass
    return client, server


def crowd_of(connections: int) -> AsgiCrowd:
    crowd = AsgiCrowd(AsgiLimits(connections_max=connections, connections_per_address_max=connections))
    for _ in range(connections):
        assert crowd.enter(HOST)
    assert not crowd.enter(HOST)
    return crowd


def look(crowd: AsgiCrowd) -> None:
    for _ in crowd.look(time.monotonic()):
        pass


def test_connection_that_was_reset_with_an_unread_answer_leaves_once() -> None:
    crowd = crowd_of(2)
    client, server = unread_pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()
    wait_until(lambda: server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0, "the reset has come")
    assert left_of(server.fileno())  # the kernel tells the rest of a connection that is gone, too
    crowd.leave(HOST, server)
    server.close()
    look(crowd)
    assert [crowd.enter(HOST), crowd.enter(HOST)] == [True, False]


def test_connection_whose_client_reads_late_counts_until_then() -> None:
    crowd = crowd_of(1)
    client, server = unread_pair()
    crowd.leave(HOST, server)
    server.close()
    look(crowd)
    assert not crowd.enter(HOST)
    while client.recv(1 << 20):
        pass

    def has_left() -> bool:
        look(crowd)
        return crowd.enter(HOST)

    wait_until(has_left, "the client has everything")
    assert not crowd.enter(HOST)
    client.close()
