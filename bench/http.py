"""`python -m bench.http`: what the door for HTTP costs. Sends of 100 messages of 1 KB as batches against a bare handler
on the same uvicorn and Starlette that throws the body away; polls as JSON against one that encodes the same structs.
Both ways take turns in one run. The ratio of requests says what a client gets, CPU time of the door what it costs."""

from __future__ import annotations

import argparse
import asyncio
import selectors
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import cast

import msgspec
import psutil

from bench.measure import touch_memory
from shardd.doors.asgi import serve_app
from shardd.doors.asgi_crowd import AsgiLimits
from shardd.doors.hosts import AllowedHosts
from shardd.doors.http.message_routes import encode_polled
from shardd.doors.http.message_shapes import Polled, polled_messages
from shardd.doors.process import give_way
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from tests.doors.http_server import HttpServer

BATCH = "application/vnd.shardd.batch"
MESSAGES, PAYLOAD_BYTES, ROUNDS, CONNECTIONS = 100, 1000, 5, 8


class Wire:
    """One connection, a request after the other."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._file = self._socket.makefile("rb")

    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self, request: bytes) -> bytes:
        self.send(request)
        return self.receive()

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def receive(self) -> bytes:
        head = self._file.readline()
        assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")), head
        length, chunked = 0, False
        while (line := self._file.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
            chunked |= line.lower().startswith(b"transfer-encoding:")
        body = self._file.read(length)
        while chunked and (size := int(self._file.readline(), 16)) >= 0:
            body += self._file.read(size + 2)[:-2]
            chunked = size > 0
        return body


def serve_bare(listener: socket.socket, ready: Event, structs: Polled) -> None:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route, Router

    async def take(request: Request) -> Response:
        await request.body()
        return Response(status_code=201)

    async def give(request: Request) -> Response:
        return Response(msgspec.json.encode(structs), media_type="application/json")

    give_way()
    listener.setblocking(False)
    routes = [Route("/", take, methods=["POST"]), Route("/", give, methods=["GET"])]
    hosts = AllowedHosts("bench", (), listener)
    asyncio.run(serve_app(Router(routes), hosts, listener, AsgiLimits(), ready.set))


@contextmanager
def bare_server(structs: Polled) -> Iterator[tuple[tuple[str, int], psutil.Process]]:
    context = get_context("fork")
    listener, ready = socket.create_server(("127.0.0.1", 0)), context.Event()
    process = context.Process(target=serve_bare, args=(listener, ready, structs), daemon=True)
    process.start()
    assert ready.wait(60)
    try:
        yield listener.getsockname(), psutil.Process(process.pid)
    finally:
        process.kill()
        process.join()


def timed(wires: Sequence[Wire], request: bytes, count: int, process: psutil.Process) -> tuple[float, float]:
    """(requests in a second, CPU seconds of the process for each). Each connection has one under way, and sends the
    next one as soon as it has its answer."""
    used = sum(process.cpu_times()[:2])
    began = time.perf_counter()
    with selectors.DefaultSelector() as ready:
        for wire in wires:
            ready.register(wire, selectors.EVENT_READ)
            wire.send(request)
        to_send, to_come = count - len(wires), count
        while to_come:
            for key, _ in ready.select():
                wire = cast(Wire, key.fileobj)
                wire.receive()
                to_come -= 1
                if to_send:
                    wire.send(request)
                    to_send -= 1
    return count / (time.perf_counter() - began), (sum(process.cpu_times()[:2]) - used) / count


def post(path: str, token: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: {BATCH}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def sends(server: HttpServer, token: str, requests: int) -> str:
    to = Partitioning(PartitioningKind.PARTITION, 0)
    batch = SendMessages.of(0, 0, to, [NewMessage(bytes(PAYLOAD_BYTES))] * MESSAGES)
    body = to.encode() + struct.pack("<I", batch.count) + batch.batch
    ratios, costs = [], []
    with bare_server(Polled(0, 0, 0, [])) as (address, bare):
        ours = [Wire(server.http_address) for _ in range(CONNECTIONS)]
        floor, door = [Wire(address) for _ in range(CONNECTIONS)], server.door()
        for _ in range(ROUNDS):
            fast, cheap = timed(floor, post("/", token, body), requests, bare)
            server.root().done("DELETE", "/streams/s/topics/t/purge")
            touch_memory(requests * len(body))  # ours keeps what the other one throws away
            got, cost = timed(ours, post("/streams/s/topics/t/messages", token, body), requests, door)
            ratios.append(got / fast)
            costs.append(cost / cheap)
    spread = f"[{min(ratios):.2f}..{max(ratios):.2f}]"
    cpu_time = f"{statistics.median(costs):.2f} of its CPU time"
    return f"send: {statistics.median(ratios):.2f} {spread} of the bare handler, {cpu_time}"


def polls(server: HttpServer, token: str, requests: int) -> str:
    path = f"/streams/s/topics/t/messages?count={MESSAGES}"
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    batch = request[:-2] + f"Accept: {BATCH}\r\n\r\n".encode()
    records = Wire(server.http_address).ask(batch)[16:]
    value = {"partition": 0, "current_offset": 0, "count": MESSAGES, "records": records}
    structs = Polled(0, 0, MESSAGES, [*polled_messages(records, MESSAGES)])
    ratios, pure, whole = [], [], []
    with bare_server(structs) as (address, bare):
        ours = [Wire(server.http_address) for _ in range(CONNECTIONS)]
        floor, door = [Wire(address) for _ in range(CONNECTIONS)], server.door()
        for _ in range(ROUNDS):
            fast, _ = timed(floor, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", requests, bare)
            got, cost = timed(ours, request, requests, door)
            ratios.append(got / fast)
            pure.append(cpu_of(lambda: msgspec.json.encode(structs), requests) / cost)
            whole.append(cpu_of(lambda: encode_polled(value), requests) / cost)
    return (
        f"poll: {statistics.median(ratios):.2f} of a bare handler that encodes the same structs; "
        f"encoding them is {statistics.median(pure):.2f} of the CPU time of the door, "
        f"making and encoding them {statistics.median(whole):.2f}"
    )


def cpu_of(work: Callable[[], object], count: int) -> float:
    """CPU seconds of one."""
    began = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - began) / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="of a round")
    requests = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as directory, HttpServer(Path(directory) / "data") as server:
        root = server.root()
        root.done("POST", "/streams", {"name": "s"})
        root.done("POST", "/streams/s/topics", {"name": "t", "partitions_count": 1})
        print(sends(server, root.token, requests))
        print(polls(server, root.token, requests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
