"""A partition as server-sent events."""

from __future__ import annotations

import base64
import http.client
import struct
from contextlib import ExitStack
from typing import Any, Final, Self

import msgspec
import pytest

from shardd.doors.http.polls import STREAMS_OF_ADDRESS_MAX
from shardd.protocol.extensions import ExtensionCode
from tests.doors.http_server import HOST, WAIT_S, HttpServer
from tests.support import wire
from tests.support.serving import Serving
from tests.support.stalls import wait_until

EVENTS = "/streams/s/topics/t/events"


def create_topic(server: HttpServer) -> None:
    with wire.connect(server.address) as tcp:
        tcp.create_topic(tcp.create_stream("s"), "t", 2)


SERVER: Final = Serving(HttpServer, fill=create_topic)


class Events:
    """One stream; a context manager."""

    def __init__(self, server: HttpServer, token: str, query: str = "", last: str = "", source: str = HOST) -> None:
        self._connection = http.client.HTTPConnection(*server.http_address, timeout=WAIT_S, source_address=(source, 0))
        headers = {"Authorization": f"Bearer {token}"} | ({"Last-Event-ID": last} if last else {})
        self._connection.request("GET", f"{EVENTS}?{query}", headers=headers)
        self.answer = self._connection.getresponse()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()
        self._connection.close()

    def take(self) -> tuple[int, bytes]:
        """Offset and payload of the next message."""
        offset = -1
        while line := self.answer.readline():
            name, _, value = line.decode().strip().partition(": ")
            if name == "id":
                offset = int(value.rpartition("-")[2])
            elif name == "data":
                message: dict[str, Any] = msgspec.json.decode(value)
                assert message["header"]["offset"] == offset
                return offset, base64.b64decode(message["payload"])
        raise EOFError

    def take_reset(self) -> dict[str, int]:
        """The data of the event `reset` that comes next."""
        kind = ""
        while line := self.answer.readline():
            name, _, value = line.decode().strip().partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                assert kind == "reset"
                return dict(msgspec.json.decode(value))
        raise EOFError


def ids(server: HttpServer, token: str, count: int) -> list[str]:
    """Of the first events of partition 0."""
    found: list[str] = []
    with Events(server, token, "kind=first") as events:
        while len(found) < count:
            name, _, value = events.answer.readline().decode().strip().partition(": ")
            if name == "id":
                found.append(value)
    return found


def fill(tcp: wire.Wire, first: int, count: int) -> None:
    tcp.send("s", "t", wire.to_partition(0), [wire.message(b"%d" % (first + number)) for number in range(count)])


def test_a_purge_is_told_to_who_follows_and_nothing_of_the_new_history_is_left_out(own_server: HttpServer) -> None:
    token = own_server.root().token
    with wire.connect(own_server.address) as tcp:
        fill(tcp, 0, 50)
        with Events(own_server, token, "kind=first") as events:
            assert [events.take()[0] for _ in range(50)] == list(range(50))
            tcp.purge_topic("s", "t")
            fill(tcp, 1000, 80)
            reset = events.take_reset()
            assert (reset["expected"], reset["offset"]) == (50, 0) and reset["before"] != reset["incarnation"]
            assert [events.take() for _ in range(80)] == [(number, b"%d" % (1000 + number)) for number in range(80)]


def test_an_id_of_an_earlier_history_begins_the_new_one(own_server: HttpServer) -> None:
    token = own_server.root().token
    with wire.connect(own_server.address) as tcp:
        fill(tcp, 0, 50)
        last = ids(own_server, token, 50)[-1]
        tcp.purge_topic("s", "t")
        fill(tcp, 1000, 80)
        with Events(own_server, token, last=last) as events:
            assert events.take_reset()["expected"] == 50
            assert [events.take()[0] for _ in range(80)] == list(range(80))
        with Events(own_server, token, last=ids(own_server, token, 50)[-1]) as events:
            assert [events.take()[0] for _ in range(30)] == list(range(50, 80))


def test_a_bare_offset_behind_the_end_is_reset(own_server: HttpServer) -> None:
    token = own_server.root().token
    with wire.connect(own_server.address) as tcp:
        fill(tcp, 0, 10)
        with Events(own_server, token, last="99") as events:
            reset = events.take_reset()
            assert (reset["expected"], reset["offset"]) == (100, 0)
            assert [events.take()[0] for _ in range(10)] == list(range(10))
        with Events(own_server, token, last="18446744073709551615") as events:
            assert events.take_reset()["offset"] == 0


def test_messages_that_retention_took_first_are_told(own_server: HttpServer) -> None:
    token = own_server.root().token
    with wire.connect(own_server.address) as tcp:
        setting = wire.identifier("s") + wire.identifier("t") + b"\1" + wire.str8("segment_size") + wire.str8("1 MiB")
        tcp.request(ExtensionCode.SET_TOPIC_SETTINGS, setting)
        for _ in range(6):
            tcp.send("s", "t", wire.to_partition(0), [wire.message(bytes(600_000))])
        tcp.request(503, wire.identifier("s") + wire.identifier("t") + struct.pack("<II", 0, 1))
        first = tcp.poll("s", "t", 0).messages[0].offset
        assert first > 0
        with Events(own_server, token, last="0") as events:
            reset = events.take_reset()
            assert (reset["expected"], reset["offset"], reset["incarnation"]) == (1, first, reset["before"])
            assert events.take()[0] == first


def test_messages_come_as_they_are_sent(own_server: HttpServer) -> None:
    token = own_server.root().token
    with wire.connect(own_server.address) as tcp, Events(own_server, token, "partition_id=1&kind=first") as events:
        assert events.answer.headers["content-type"].startswith("text/event-stream")
        for number in range(5):
            tcp.send("s", "t", wire.to_partition(1), [wire.message(b"%d" % number)])
            assert events.take() == (number, b"%d" % number)


def test_who_comes_back_misses_nothing(own_server: HttpServer) -> None:
    token = own_server.root().token
    with wire.connect(own_server.address) as tcp:
        tcp.send("s", "t", wire.to_partition(0), [wire.message(b"%d" % number) for number in range(200)])
        with Events(own_server, token, "kind=first") as events:
            assert [events.take()[0] for _ in range(150)] == list(range(150))
        with Events(own_server, token, last="149") as events:
            assert [events.take()[0] for _ in range(50)] == list(range(150, 200))
        with Events(own_server, token, "kind=offset&value=7") as events:
            assert events.take() == (7, b"7")
        with Events(own_server, token) as events:
            assert events.take() == (199, b"199")
            tcp.send("s", "t", wire.to_partition(0), [wire.message(b"new")])
            assert events.take() == (200, b"new")
        with Events(own_server, token, last="200") as events:
            tcp.send("s", "t", wire.to_partition(0), [wire.message(b"newer")])
            assert events.take() == (201, b"newer")


def test_what_is_wrong_is_answered_before_it_begins(own_server: HttpServer) -> None:
    root = own_server.root()
    assert root.get(f"{EVENTS}?partition_id=9").error == (404, 3007)
    assert root.get("/streams/s/topics/x/events").error == (404, 2010)
    for query in ("kind=next", "kind=x", "value=-1", "partition_id=x"):
        assert root.get(f"{EVENTS}?{query}").status == 400
    assert root.ask("GET", EVENTS, headers={"Last-Event-ID": "x"}).status == 400
    assert own_server.client().get(EVENTS).status == 401


def test_it_ends_with_its_token(own_server: HttpServer) -> None:
    root = own_server.root()
    with Events(own_server, root.token, "kind=first") as events:
        assert root.delete("/users/logout").status == 204
        with pytest.raises(EOFError):
            events.take()


def test_one_address_leaves_room_for_others_and_a_stop_ends_all(own_server: HttpServer) -> None:
    token = own_server.root().token
    with ExitStack() as held:
        for _ in range(STREAMS_OF_ADDRESS_MAX):
            assert held.enter_context(Events(own_server, token)).answer.status == 200
        assert held.enter_context(Events(own_server, token)).answer.status == 503
        assert held.enter_context(Events(own_server, token, source="127.0.0.2")).answer.status == 200
        assert own_server.stop() == 0, own_server.log()
    assert "Traceback" not in own_server.log(), own_server.log()


def test_streams_with_a_request_behind_them_leave_their_places_with_their_connections(own_server: HttpServer) -> None:
    token = own_server.root().token
    stream = f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    behind = "GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for _ in range(STREAMS_OF_ADDRESS_MAX):
        with own_server.connect() as connection:
            connection.sendall((stream + behind).encode())
            assert connection.recv(12) == b"HTTP/1.1 200"

    def has_a_place() -> bool:
        with Events(own_server, token) as events:
            return events.answer.status == 200

    wait_until(has_a_place, "a place that was given back")
