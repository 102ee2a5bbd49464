"""Clients of a door that wait for messages: they take no place of other requests, and end with the server."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pytest

from shardd.protocol.door_frames import Command, Kind
from shardd.transport.door.places import REQUESTS_MAX
from tests.doors.door_server import WAIT_S, DoorServer, FrameWire
from tests.support import wire
from tests.support.serving import Serving

WAITS = REQUESTS_MAX + 50


def fill(server: DoorServer) -> None:
    with wire.connect(server.address) as tcp:
        tcp.create_topic(tcp.create_stream("s"), "t", 2)


SERVER: Final = Serving(partial(DoorServer, doors=("json", "relay")), fill=fill)


@pytest.fixture
def server(server: DoorServer) -> DoorServer:
    """The server of this file with an empty topic."""
    with wire.connect(server.address) as tcp:
        tcp.purge_topic("s", "t")
    return server


def waiting(offset: int = 0, timeout_ms: int = 60_000, partition: int = 0) -> dict[str, object]:
    return {"stream": "s", "topic": "t", "partition": partition, "offset": offset, "timeout_ms": timeout_ms}


def send(server: DoorServer, partition: int = 0) -> None:
    with wire.connect(server.address) as tcp:
        tcp.send("s", "t", wire.to_partition(partition), [wire.message(b"m")])


def begin(relay: FrameWire, handle: int, name: str, request: object = None) -> int:
    """The number of its answer."""
    fields = msgspec.Raw(msgspec.msgpack.encode({} if request is None else request))
    return relay.send(Kind.COMMAND, Command(handle, name, fields))


@pytest.mark.parametrize("partition", [0, 1])
def test_a_client_is_told_of_what_comes(server: DoorServer, partition: int) -> None:
    with server.root() as client:
        assert client.ask("wait_for_messages", waiting(timeout_ms=100, partition=partition)) is False
        later = threading.Timer(0.3, send, (server, partition))
        later.start()
        began = time.monotonic()
        assert client.ask("wait_for_messages", waiting(partition=partition)) is True
        assert time.monotonic() - began < WAIT_S
        later.join()
        assert client.ask("wait_for_messages", waiting(partition=partition)) is True


@pytest.mark.parametrize("shard", [0, 1])
def test_more_waits_than_requests_may_be_under_way_stop_nobody(server: DoorServer, shard: int) -> None:
    with server.relay(shard) as relay:
        handle = relay.proven().login(relay.open())
        waits = [begin(relay, handle, "wait_for_messages", waiting()) for _ in range(WAITS)]
        number = begin(relay, handle, "get_streams")
        assert relay.answer(number)[0] == 0
        send(server)
        for each in waits:
            status, _, value = relay.answer(each)
            assert (status, msgspec.msgpack.decode(value)) == (0, True)


def test_too_many_are_refused(server: DoorServer) -> None:
    with server.relay(0) as relay:
        handle = relay.proven().login(relay.open())
        waits = [begin(relay, handle, "wait_for_messages", waiting(timeout_ms=3000)) for _ in range(600)]
        said = [relay.answer(each)[0] for each in waits[512:]]
        assert said == [5] * 88
        assert {relay.answer(each)[0] for each in waits[:512]} == {0}


def test_what_makes_no_sense_is_refused(server: DoorServer) -> None:
    with server.relay(0) as relay:
        handle = relay.proven().login(relay.open())
        for request, status in (
            ({"stream": "s"}, 3),
            (waiting() | {"offset": -1}, 4),
            (waiting() | {"partition": 9}, 3007),
        ):
            assert relay.answer(begin(relay, handle, "wait_for_messages", request))[0] == status


def test_a_stop_ends_them(tmp_path: Path) -> None:
    with DoorServer(tmp_path / "data", doors=("relay",)) as server, server.relay(0) as relay:
        with wire.connect(server.address) as tcp:
            tcp.create_topic(tcp.create_stream("s"), "t", 2)
        handle = relay.proven().login(relay.open())
        for _ in range(100):
            begin(relay, handle, "wait_for_messages", waiting())
        relay.answer(begin(relay, handle, "get_streams"))
        began = time.monotonic()
        assert server.stop() == 0, server.log()
        assert time.monotonic() - began < WAIT_S / 2, "not when their minute is over"
        assert "ERROR shard-" not in server.log(), server.log()  # the door of this test is cut in the middle
