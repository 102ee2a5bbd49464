"""Doors and workers are killed while clients of HTTP and TCP go on."""

from __future__ import annotations

import base64
import http.client
import struct
import threading
import time
from functools import partial
from typing import Final

import psutil

from tests.doors.door_kills import PAUSE_S, kill_under_load
from tests.doors.http_server import WAIT_S, HttpServer
from tests.support.serving import Serving

LOADERS = 3


def fill(server: HttpServer) -> None:
    root = server.root()
    root.done("POST", "/streams", {"name": "load"})
    root.done("POST", "/streams/load/topics", {"name": "t", "partitions_count": LOADERS + 1})


SERVER: Final = Serving(HttpServer, fill=fill)


def send(server: HttpServer, number: int, acknowledged: set[bytes], stop: threading.Event) -> None:
    """To one partition until it is stopped, over as many doors as it takes; its token goes on."""
    token, count = server.root().token, 0
    partition = base64.b64encode(struct.pack("<I", number)).decode()
    while not stop.is_set():
        client = server.client(token)
        try:
            while not stop.is_set():
                count += 1
                payload = b"%d-%d" % (number, count)
                message = {"payload": base64.b64encode(payload).decode()}
                body = {"partitioning": {"kind": "partition_id", "value": partition}, "messages": [message]}
                answer = client.post("/streams/load/topics/t/messages", body)
                assert answer.status in (201, 503), answer
                if answer.status == 201:
                    acknowledged.add(payload)
                time.sleep(PAUSE_S)
        except (OSError, http.client.HTTPException):
            time.sleep(0.02)  # the door is dead
        finally:
            client.close()


def stored(server: HttpServer, partition: int) -> set[bytes]:
    root, found, offset = server.root(), set[bytes](), 0
    while True:
        query = f"partition_id={partition}&value={offset}&count=1000"
        messages = root.done("GET", f"/streams/load/topics/t/messages?{query}")["messages"]
        if not messages:
            return found
        found |= {base64.b64decode(each["payload"]) for each in messages}
        offset = messages[-1]["header"]["offset"] + 1


def test_doors_are_killed_under_load_and_nothing_acknowledged_is_lost(own_server: HttpServer) -> None:
    """Clients over TCP notice nothing at all."""
    acknowledged = kill_under_load(own_server, LOADERS, partial(send, own_server))
    for number, expected in enumerate(acknowledged):
        assert expected <= stored(own_server, number)


def test_a_worker_is_killed_and_tokens_go_on(own_server: HttpServer) -> None:
    clients = [own_server.root() for _ in range(4)]
    for shard in (0, 1):
        psutil.Process(own_server.worker_pids()[shard]).kill()
        deadline = time.monotonic() + WAIT_S
        for client in clients:
            while (status := client.get("/streams/load").status) != 200:
                assert status in (400, 503), status  # it is on its way back
                assert time.monotonic() < deadline, own_server.log()
                time.sleep(0.05)
    assert "Traceback" not in own_server.log(), own_server.log()
