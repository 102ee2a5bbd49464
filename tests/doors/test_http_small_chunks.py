"""Bodies in chunks of one byte: the door stays alive, and a stranger's requests go on beside them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Final

from tests.doors.http_server import HttpServer
from tests.hostile import crowd
from tests.support.serving import Serving

CONNECTIONS: Final = 200
FLOODERS: Final = 4
REQUESTS: Final = 20
FLOOD_S: Final = 12.0  # at least: longer than a door was silent before it was taken for dead
HEAD: Final = (
    b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
CHUNKS: Final = b"1\r\n{\r\n" * 43_000  # what one read of the door took
SERVER: Final = Serving(HttpServer, fill=lambda _: crowd.allow_descriptors(CONNECTIONS + 1_000))


def flood(server: HttpServer, count: int, stop: threading.Event) -> None:
    """So many connections, each made again when it has ended."""
    streams: list[socket.socket] = []
    while not stop.is_set():
        while len(streams) < count:
            with contextlib.suppress(OSError):
                stream = server.connect()
                stream.setblocking(False)
                streams.append(stream)
                stream.send(HEAD)
        for stream in [*streams]:
            try:
                stream.send(CHUNKS)
            except BlockingIOError:
                continue
            except OSError:
                streams.remove(stream)
                stream.close()
        stop.wait(0.01)  # the door is what it costs, not the machine
    for stream in streams:
        stream.close()


def test_bodies_in_chunks_of_one_byte_leave_the_door_and_its_clients_alone(own_server: HttpServer) -> None:
    door = own_server.door()
    stop = threading.Event()
    flooders = [
        threading.Thread(target=flood, args=(own_server, CONNECTIONS // FLOODERS, stop), daemon=True)
        for _ in range(FLOODERS)
    ]
    stranger = own_server.client(source="127.0.0.2")
    assert stranger.get("/ping").status == 200
    for each in flooders:
        each.start()
    try:
        until_s = time.monotonic() + FLOOD_S
        answered = 0
        while time.monotonic() < until_s or answered < REQUESTS:
            assert stranger.get("/ping").status == 200
            answered += 1
    finally:
        stop.set()
        for each in flooders:
            each.join()
    assert own_server.door().pid == door.pid
    assert "gives no sign of life" not in own_server.log()
