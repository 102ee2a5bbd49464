"""1,500 connections of one address that say nothing, or half of something, and a flood of calls: others are served
beside them, what they cost is bounded, and they end."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
import pytest

from shardd.doors.liftbridge.calls import SUBSCRIPTIONS_OF_ADDRESS_MAX
from shardd.protocol.liftbridge import api, api_messages
from tests.doors.liftbridge_server import ROOT, WAIT_S, LiftbridgeServer
from tests.hostile import crowd
from tests.support.serving import Serving
from tests.support.wide import wide

COUNT: Final = 1_500
TIMEOUT_S: Final = 5
RESIDENT_BYTES_MAX: Final = 300 << 20
SETTINGS: Final = {
    "SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": f"{TIMEOUT_S} s",
    "SHARDD_SERVER_CONNECTIONS_MAX": "10000",
    "SHARDD_LIFTBRIDGE_ANONYMOUS_USER": "",
}
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")  # and empty settings
PATH: Final = f"/{api.SERVICE}/Publish".encode()
SERVER: Final = Serving(LiftbridgeServer, SETTINGS, fill=lambda _: crowd.allow_descriptors(COUNT + 500))


def connect(server: LiftbridgeServer) -> socket.socket:
    host, _, port = server.liftbridge_address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def headers_frame(stream: int) -> bytes:
    """A call of Publish that never sends its request: literal headers, no table."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", PATH), (b":authority", b"x"),
              (b"te", b"trailers"), (b"content-type", b"application/grpc")]  # fmt: skip
    block = b"".join(b"\x00%c%b%c%b" % (len(name), name, len(value), value) for name, value in fields)
    return struct.pack(">I", len(block))[1:] + b"\x01\x04" + struct.pack(">I", stream) + block


@pytest.mark.parametrize("first", [b"", PREFACE[:10], wide(b"GET / HTTP/1.1\r\n\r\n")], ids=["silent", "half", "other"])
def test_others_are_served_beside_a_crowd_and_it_ends(server: LiftbridgeServer, first: bytes) -> None:
    door = server.door()
    with ExitStack() as held, server.client(ROOT) as client:
        streams = [held.enter_context(connect(server)) for _ in range(COUNT)]
        for each in streams:
            if first:
                each.sendall(first)
        for _ in range(20):
            assert client.status("FetchMetadata", timeout_s=30) == ("OK", "")
        assert door.memory_info().rss < RESIDENT_BYTES_MAX
        deadline = time.monotonic() + WAIT_S
        for each in streams:
            each.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                while each.recv(65_536):
                    pass
            except ConnectionResetError:
                pass
    assert door.is_running()


def test_calls_that_never_send_their_request(server: LiftbridgeServer) -> None:
    """100 connections with 100 calls each, without a login: each call ends by itself."""
    door = server.door()
    with ExitStack() as held, server.client(ROOT) as client:
        streams = [held.enter_context(connect(server)) for _ in range(100)]
        for each in streams:
            each.sendall(PREFACE + b"".join(headers_frame(2 * number + 1) for number in range(100)))
        for _ in range(20):
            assert client.status("FetchMetadata", timeout_s=30) == ("OK", "")
        assert door.memory_info().rss < RESIDENT_BYTES_MAX
    assert door.is_running()


def frame(kind: int, flags: int, body: bytes) -> bytes:
    """Of stream 1."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", 1) + body


@pytest.mark.parametrize("ends", [False, True], ids=["never whole", "whole"])
def test_headers_without_end(tmp_path: Path, ends: bool) -> None:
    """Of a client that has acknowledged no settings: the library takes 16 MiB of them, as 400,000 objects, each time.
    It is shut out, and another address is served."""
    entries = b"\x00\x04abcd\x04efgh" * 1_000
    with LiftbridgeServer(tmp_path / "data", SETTINGS) as server, ExitStack() as held:
        door = server.door()
        attacker = held.enter_context(connect(server))
        head = headers_frame(1).replace(b"\x01\x04\x00\x00\x00\x01", b"\x01\x00\x00\x00\x00\x01", 1)  # goes on
        with suppress(OSError):
            attacker.sendall(PREFACE + head)
            for number in range(250):  # 2.7 MB
                attacker.sendall(frame(9, 4 if ends and number == 249 else 0, entries))
        deadline = time.monotonic() + WAIT_S
        while "connections of 127.0.0.1 are closed: it has sent too much" not in server.log():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        host, _, port = server.liftbridge_address.rpartition(":")
        with socket.create_connection((host, int(port)), WAIT_S, source_address=("127.0.0.2", 0)) as other:
            other.sendall(PREFACE)
            assert other.recv(9)[3:4] == b"\x04"
        assert door.is_running() and door.memory_info().rss < RESIDENT_BYTES_MAX
        assert "gives no sign of life" not in server.log()


def test_a_flood_of_subscriptions_has_a_share(server: LiftbridgeServer) -> None:
    with server.client(ROOT) as client, ExitStack() as held:
        client.create("followed")
        request = api_messages.SubscribeRequest(stream="followed").SerializeToString()
        calls: list[Any] = []
        for _ in range(4):
            other = held.enter_context(server.client(ROOT))
            for _ in range(80):
                call: Any = other.channel.unary_stream(f"/{api.SERVICE}/Subscribe")(request, metadata=(ROOT,))
                calls.append(call)
                held.callback(call.cancel)
        refused = taken = 0
        for call in calls:
            try:
                next(iter(call))
                taken += 1
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                refused += 1
        assert taken == SUBSCRIPTIONS_OF_ADDRESS_MAX and refused == len(calls) - taken
        assert client.publish("followed", b"served").offset == 0


def test_answers_of_a_session_that_are_not_taken(server: LiftbridgeServer) -> None:
    """Its requests are not read on: neither its answers nor its messages pile up."""
    door, stop = psutil.Process(server.door().pid), threading.Event()
    with server.client(ROOT) as client:
        client.create("flooded")
        kind = api_messages.PublishRequest
        data = kind(stream="flooded", value=bytes(100), correlationId="c" * 2_000).SerializeToString()

        def requests() -> Iterator[bytes]:
            while not stop.is_set():
                yield data

        call: Any = client.channel.stream_stream(f"/{api.SERVICE}/PublishAsync")(requests(), metadata=(ROOT,))
        before_bytes, found, newest = door.memory_info().rss, -2, -1
        deadline = time.monotonic() + WAIT_S
        while found != newest:  # until nothing more is stored
            assert time.monotonic() < deadline
            found = newest
            time.sleep(1)
            newest = client.partition("flooded").newestOffset
        assert newest > 0 and door.memory_info().rss - before_bytes < 100 << 20
        stop.set()
        call.cancel()
        assert client.publish("flooded", b"served").offset >= newest


def test_clients_that_begin_with_much_are_served(server: LiftbridgeServer) -> None:
    """Their call is known before a look sees how much has come with it."""
    with server.client(ROOT) as client:
        client.create("begun")
    requests = [{"stream": "begun", "value": bytes(900_000)}] * 20
    for _ in range(10):
        with server.client(ROOT) as client:
            assert len(client.publish_async(requests)) == len(requests)
    assert "it has sent too much" not in server.log()


def test_one_address_does_not_take_all_connections(tmp_path: Path) -> None:
    """It opens as many as it can, again and again, and keeps them; another one is let in beside it."""
    settings = {**SETTINGS, "SHARDD_SERVER_CONNECTIONS_MAX": "400"}  # 200 of the door, 100 of an address
    stop = threading.Event()
    with LiftbridgeServer(tmp_path / "data", settings) as server, ExitStack() as held:

        def open_more() -> None:
            while not stop.is_set():
                for _ in range(50):
                    with suppress(OSError):
                        made = held.enter_context(connect(server))
                        made.sendall(PREFACE)
                time.sleep(0.1)

        thread = threading.Thread(target=open_more, daemon=True)
        thread.start()
        try:
            deadline = time.monotonic() + WAIT_S
            while "connections of 127.0.0.1 are closed" not in server.log():
                assert time.monotonic() < deadline, "the address has all it wants"
                time.sleep(0.05)
            host, _, port = server.liftbridge_address.rpartition(":")
            served, tries = 0, 0
            while served < 15:  # between two looks the door may be full for a moment
                tries += 1
                assert time.monotonic() < deadline, f"{served} of {tries} are let in"
                with socket.create_connection((host, int(port)), WAIT_S, source_address=("127.0.0.2", 0)) as other:
                    other.sendall(PREFACE)
                    with suppress(ConnectionError):
                        served += other.recv(9)[3:4] == b"\x04"  # the server's settings
                time.sleep(0.05)
        finally:
            stop.set()
            thread.join(WAIT_S)
