"""Answers of the door for Liftbridge that their clients do not take: they have a bound, and others are answered."""

from __future__ import annotations

import base64
import socket
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from shardd.doors.liftbridge.calls import (
    ANSWER_BYTES_MAX,
    LARGE_COPIES,
    LARGE_OF_ADDRESS_BYTES_MAX,
    SUBSCRIPTIONS_OF_ADDRESS_MAX,
)
from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.positions import StartPosition
from shardd.protocol.permissions import Permissions
from tests.doors.liftbridge_server import ROOT, WAIT_S, EndedError, LiftbridgeServer
from tests.doors.liftbridge_wire import PREFACE, SETTINGS_TAKEN, opened, request_frames
from tests.support import wire
from tests.support.serving import Serving
from tests.support.stalls import figures_of, metrics, wait_until

CONNECTIONS: Final = 30
CALLS: Final = 16  # of each
NAME: Final = "n" * 500
SUBJECT: Final = "s" * 1_000
NAMES: Final = 600  # of a call, whose answer has 0.7 MB
GROWTH_BYTES_MAX: Final = 4 * ANSWER_BYTES_MAX + (32 << 20)  # with what the library keeps; all answers: 320 MB
LARGE_BYTES: Final = (2 << 20) - 4096  # of a message, which has so much more ...
_MESSAGE_BYTES: Final = 256  # ... at most around it
SLOW_READER_S: Final = 2.0
_REST_BYTES: Final = 80 << 20  # windows, records on their way, and what the library keeps
_BEGUN_BYTES: Final = 32 << 10
_HEADERS: Final = 1
_END_STREAM: Final = 1


def fill(server: LiftbridgeServer) -> None:
    with server.client(ROOT) as root:
        root.create("w", subject=SUBJECT)
        root.create("s")


SERVER: Final = Serving(LiftbridgeServer, {"SHARDD_SERVER_SLOW_READER_TIMEOUT": f"{SLOW_READER_S:.0f} s"}, fill=fill)


class Unread:
    """A connection with calls whose answers are not taken: it opens no window for more than the first 64 KiB."""

    def __init__(self, server: LiftbridgeServer, calls: int, names: int) -> None:
        host, _, port = server.liftbridge_address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 5 * WAIT_S)
        self.socket.sendall(PREFACE)
        request = bytes(api_messages.FetchMetadataRequest(streams=["w"] * names).SerializeToString())
        for number in range(calls):
            stream = 2 * number + 1
            head = opened("/proto.API/FetchMetadata", stream, [ROOT])
            self.socket.sendall(head + request_frames(stream, request))
        self._calls = calls
        self._left = b""

    def heads(self) -> list[bool]:
        """Of each call, when all have one: whether it was refused at once."""
        found: dict[int, bool] = {}
        while len(found) < self._calls:
            kind, flags, stream = self._frame()
            if kind == _HEADERS:
                found.setdefault(stream, bool(flags & _END_STREAM))
        return [*found.values()]

    def closed(self) -> None:
        """Returns when the server has closed it. TimeoutError."""
        while self.socket.recv(65_536):
            pass

    def close(self) -> None:
        self.socket.close()

    def _frame(self) -> tuple[int, int, int]:
        while len(self._left) < 9 or len(self._left) < 9 + int.from_bytes(self._left[:3], "big"):
            data = self.socket.recv(65_536)
            assert data, "closed"
            self._left += data
        size = int.from_bytes(self._left[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", self._left[3:9])
        self._left = self._left[9 + size :]
        return kind, flags, stream


def test_many_answers_are_not_taken_their_memory_is_bounded_and_others_are_answered(
    own_server: LiftbridgeServer,
) -> None:
    door = own_server.door()
    before = door.memory_info().rss
    with ExitStack() as held, own_server.client(ROOT) as other:
        crowd = [Unread(own_server, CALLS, NAMES) for _ in range(CONNECTIONS)]
        for each in crowd:
            held.callback(each.close)
        refused = sum(sum(each.heads()) for each in crowd)
        assert 0 < refused < CONNECTIONS * CALLS
        assert door.memory_info().rss - before < GROWTH_BYTES_MAX
        assert other.status("FetchMetadata") == ("OK", "")


def test_answer_is_not_taken_in_its_time_its_connection_is_closed(own_server: LiftbridgeServer) -> None:
    with own_server.client(ROOT) as other:
        slow = Unread(own_server, 1, 80)
        try:
            assert slow.heads() == [False]
            slow.closed()
        finally:
            slow.close()
        assert other.status("FetchMetadata") == ("OK", "")


def test_answer_beyond_the_bound_is_refused_in_a_sentence(own_server: LiftbridgeServer) -> None:
    with own_server.client(ROOT) as root:
        root.create("wide", partitions=1_000)
        with pytest.raises(EndedError, match="name fewer streams"):
            root.call("FetchMetadata", streams=["wide"] * 10_000)


def subscribed(server: LiftbridgeServer, stream: str, name: str) -> socket.socket:
    """A subscription from the beginning that takes nothing of a message but its first bytes."""
    host, _, port = server.liftbridge_address.rpartition(":")
    connection = socket.create_connection((host, int(port)), WAIT_S)
    request = api_messages.SubscribeRequest(
        stream=stream, startPosition=StartPosition.EARLIEST.value
    ).SerializeToString()
    head = opened(
        "/proto.API/Subscribe", 1, [("authorization", "Basic " + base64.b64encode(f"{name}:secret".encode()).decode())]
    )
    connection.sendall(PREFACE + head + request_frames(1, bytes(request)) + SETTINGS_TAKEN)  # wanted within 3 s
    return connection


def test_large_messages_of_two_users_are_not_taken_a_third_user_gets_one(own_server: LiftbridgeServer) -> None:
    of_user = LARGE_OF_ADDRESS_BYTES_MAX // LARGE_COPIES
    count = of_user // (LARGE_BYTES + _MESSAGE_BYTES)
    assert 2 * of_user - 2 * count * LARGE_BYTES < LARGE_BYTES
    with ExitStack() as held, own_server.client(ROOT) as root:
        root.create("large")
        with wire.connect(own_server.address) as tcp:
            tcp.send("liftbridge-default", "large", wire.to_partition(0), [wire.message(bytes(LARGE_BYTES))])
        for name in ("one", "another"):
            own_server.create_user(name, Permissions(read_streams=True, poll_messages=True))
            crowd = [held.enter_context(subscribed(own_server, "large", name)) for _ in range(count)]
            for each in crowd:
                with each.makefile("rb") as taken:
                    assert len(taken.read(_BEGUN_BYTES)) == _BEGUN_BYTES
        assert len(root.read("large", 1)[0].value) == LARGE_BYTES


def answered_to_doors(server: LiftbridgeServer) -> int:
    with wire.connect(server.address) as root:
        return sum(each["doors.answered"] for each in figures_of(metrics(root)))


def is_quiet(server: LiftbridgeServer) -> bool:
    """Nothing has been answered to doors for a second."""
    before = answered_to_doors(server)
    time.sleep(1.0)
    return answered_to_doors(server) == before


def test_large_messages_of_one_user_are_not_taken_they_cost_their_room_and_are_given_back(tmp_path: Path) -> None:
    """Subscriptions that wait for room keep nothing of what they have read; those that have it keep two copies."""
    with LiftbridgeServer(tmp_path / "data") as server, server.client(ROOT) as root:
        root.create("large")
        with wire.connect(server.address) as tcp:
            for _ in range(3):
                tcp.send("liftbridge-default", "large", wire.to_partition(0), [wire.message(bytes(LARGE_BYTES))])
        server.create_user("one", Permissions(read_streams=True, poll_messages=True))
        assert len(root.read("large", 1)[0].value) == LARGE_BYTES
        door = server.door()
        before, said_before = door.memory_info().rss, answered_to_doors(server)
        count = SUBSCRIPTIONS_OF_ADDRESS_MAX // 2
        with ExitStack() as held:
            for _ in range(count):
                held.enter_context(subscribed(server, "large", "one"))
            # each asks for bounds and polls; whoever has room polls again
            asked = 2 * count + LARGE_OF_ADDRESS_BYTES_MAX // LARGE_COPIES // (LARGE_BYTES + _MESSAGE_BYTES)
            wait_until(lambda: answered_to_doors(server) - said_before >= asked, "each has polled")
            room_is_used = LARGE_OF_ADDRESS_BYTES_MAX * 3 // 4
            wait_until(lambda: door.memory_info().rss - before > room_is_used, "the room is used")
            wait_until(lambda: is_quiet(server), "nothing more is asked for")
            growth = door.memory_info().rss - before
            assert growth < LARGE_OF_ADDRESS_BYTES_MAX + _REST_BYTES, f"{growth >> 20} MiB"
        wait_until(lambda: door.memory_info().rss - before < _REST_BYTES, "the memory is given back")
