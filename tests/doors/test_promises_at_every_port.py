"""Promises of docs/security.md that are made for every port, asked at each of them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pytest

from shardd.doors.liftbridge import followers, nats_audience
from shardd.protocol.account_requests import CreateUserRequest, UpdatePermissionsRequest
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.permissions import Permissions
from shardd.service import waiting
from tests.doors.http_server import HttpClient
from tests.doors.liftbridge_server import LiftbridgeClient
from tests.doors.quic_server import QuicClient
from tests.doors.quic_server import connected as over_quic
from tests.hostile.matrix.https import trusting_anything
from tests.hostile.matrix.lines import DOORS, RIGHTLESS
from tests.hostile.matrix.target import BIG, NAMESPACE, OTHER, PASSWORD, SMALL, STREAM, MatrixServer, Target
from tests.support import websocket, wire
from tests.support.serving import Serving
from tests.support.tls_wire import TlsWire
from tests.support.wire09 import Wire09

WAIT_S: Final = 60.0
QUIET_S: Final = 0.5
CLASSIC: Final = ("tcp", "tls", "unix", "websocket", "wss", "iggy09", "quic")
PORTS: Final = (*CLASSIC, "http", "grpc", "nats")
TRIES_MAX: Final = 20  # six are free, the next ones wait for 50 ms and then twice as long each time, up to 1 s
LONG_S: Final = 0.7
LONG_WAITS: Final = 2
LONG_WAIT_MS: Final = 300_000  # longer than any client here waits for an answer
WRONG: Final = "wrong password"
NOT_THERE: Final = "no such one"
REFUSED, NO_STREAM, NO_TOPIC, NO_GROUP = 41, 1009, 2010, 5000
DELETE_GROUP: Final = 603
POLLER: Final = Permissions(read_streams=True, poll_messages=True, send_messages=True)


def fill(server: MatrixServer) -> None:
    with wire.connect(server.address) as root:
        root.request(602, wire.identifier(STREAM) + wire.identifier(SMALL) + wire.str8("g"))


SERVER: Final = Serving(partial(MatrixServer, doors=["websocket", "http", "quic", "grpc", "nats"]), fill=fill)


# ---- ports of the classic commands ----


class Quic:
    """One connection, with a loop of its own."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._held = contextlib.AsyncExitStack()
        self._client: QuicClient = self._loop.run_until_complete(
            self._held.enter_async_context(over_quic(wire.host_and_port(address), idle_timeout=WAIT_S))
        )

    def exchange(self, code: int, payload: bytes = b"") -> tuple[int, bytes]:
        return self._loop.run_until_complete(self._client.ask(code, payload))

    def close(self) -> None:
        self._loop.run_until_complete(self._held.aclose())
        self._loop.close()


Peer = wire.Wire | websocket.WebSocket | Quic


@contextlib.contextmanager
def classic(target: Target, port: str) -> Iterator[Peer]:
    address = target.addresses[port]
    made: Peer
    if port == "quic":
        made = Quic(address)
    elif port in ("websocket", "wss"):
        made = websocket.WebSocket(address, context=trusting_anything() if port == "wss" else None)
    elif port == "iggy09":
        made = Wire09(address)
    else:
        made = TlsWire(address, trusting_anything()) if port == "tls" else wire.Wire(address)
    with contextlib.closing(made):
        yield made


def asked(peer: Peer, code: int, payload: bytes = b"") -> tuple[int, bytes]:
    return peer.request(code, payload) if isinstance(peer, websocket.WebSocket) else peer.exchange(code, payload)


def login(peer: Peer, name: str, password: str = PASSWORD) -> tuple[int, bytes]:
    if isinstance(peer, Wire09):
        try:
            peer.login(name, password)
        except wire.StatusError as refused:
            return refused.status, b""
        return 0, b""
    texts = wire.str32("") * 2 if isinstance(peer, Quic) else bytes(8)
    return asked(peer, wire.LOGIN_USER, wire.str8(name) + wire.str8(password) + texts)


def poll() -> bytes:
    place = wire.consumer() + wire.identifier(STREAM) + wire.identifier(SMALL) + wire.optional_partition(0)
    return place + struct.pack("<BQIB", wire.POLL_FIRST, 0, 1, 0)


# ---- the others ----


@contextlib.contextmanager
def over_http(target: Target, token: str = "") -> Iterator[HttpClient]:
    with contextlib.closing(HttpClient(wire.host_and_port(target.addresses["http"]), token)) as client:
        yield client


def over_grpc(target: Target, name: str, password: str = PASSWORD) -> LiftbridgeClient:
    shown = base64.b64encode(f"{name}:{password}".encode()).decode()
    return LiftbridgeClient(target.addresses["grpc"], [("authorization", f"Basic {shown}")])


class Nats:
    """One connection. `told`: what came behind INFO, when all that was said has been carried out."""

    def __init__(self, target: Target, name: str, password: str = PASSWORD) -> None:
        self._peer = socket.create_connection(wire.host_and_port(target.addresses["nats"]), WAIT_S)
        shown = {"user": name, "pass": password, "verbose": False}
        self._peer.sendall(b"CONNECT " + msgspec.json.encode(shown) + b"\r\n")

    def told(self, said: bytes = b"", *, until: bytes = b"PONG\r\n", quiet_s: float = 0.0) -> bytes:
        heard = b""
        self._peer.settimeout(WAIT_S)
        self._peer.sendall(said + b"PING\r\n")
        while until not in heard and (more := self._peer.recv(1 << 16)):
            heard += more
        if quiet_s:
            self._peer.settimeout(quiet_s)
            with contextlib.suppress(TimeoutError):
                while more := self._peer.recv(1 << 16):
                    heard += more
        return b"".join(each for each in heard.splitlines(keepends=True) if not each.startswith(b"INFO"))

    def close(self) -> None:
        self._peer.close()


def answer_of_a_login(target: Target, port: str, name: str, password: str) -> object:
    """All that its caller hears of it."""
    if port in CLASSIC:
        with classic(target, port) as peer:
            return login(peer, name, password)
    if port == "http":
        with over_http(target) as client:
            answer = client.post("/users/login", {"username": name, "password": password})
            return answer.status, answer.body
    if port == "grpc":
        with over_grpc(target, name, password) as client:
            return client.status("FetchMetadata")
    with contextlib.closing(Nats(target, name, password)) as nats:
        return nats.told()


@pytest.mark.parametrize("port", PORTS)
def test_unknown_name_at_each_port_is_answered_as_a_wrong_password(server: MatrixServer, port: str) -> None:
    heard = [answer_of_a_login(server.target, port, name, WRONG) for name in (OTHER, NOT_THERE)]
    assert heard[0] == heard[1]
    assert heard[0] != answer_of_a_login(server.target, port, OTHER, PASSWORD), "the control"


@pytest.mark.parametrize("port", PORTS)
def test_guesses_at_each_port_are_slowed_down(server: MatrixServer, port: str) -> None:
    """Those at one port count at the others of an address."""
    long_waits = 0
    for number in range(TRIES_MAX):
        began_s = time.monotonic()
        answer_of_a_login(server.target, port, f"guessed at {port}", f"guess {number}")
        long_waits += time.monotonic() - began_s > LONG_S
        if long_waits == LONG_WAITS:
            return
    raise AssertionError(f"{TRIES_MAX} guesses, and {long_waits} of them had to wait")


INACTIVE: Final = "inactive"
TELLS_INACTIVE: Final = (*CLASSIC, "http")  # the recorded order of classic commands; HTTP has its statuses


@pytest.fixture(scope="module")
def inactive(server: MatrixServer) -> str:
    with wire.connect(server.address) as root:
        root.request(Code.CREATE_USER, CreateUserRequest(INACTIVE, PASSWORD, 2, None).encode())
    return INACTIVE


@pytest.mark.parametrize("port", PORTS)
def test_inactive_user_is_told_so_with_any_password_where_the_recorded_order_wants_it(
    server: MatrixServer, inactive: str, port: str
) -> None:
    heard = [answer_of_a_login(server.target, port, inactive, password) for password in (PASSWORD, WRONG)]
    assert heard[0] == heard[1], "it tells whether the password is right"
    is_told = heard[1] != answer_of_a_login(server.target, port, NOT_THERE, WRONG)
    assert is_told is (port in TELLS_INACTIVE)


# ---- existence before rights ----

CHANGES: Final[list[tuple[int, list[str], int]]] = [
    (wire.PURGE_STREAM, [NOT_THERE], NO_STREAM),
    (wire.PURGE_STREAM, [STREAM], REFUSED),
    (wire.DELETE_STREAM, [NOT_THERE], NO_STREAM),
    (wire.DELETE_STREAM, [STREAM], REFUSED),
    (wire.PURGE_TOPIC, [STREAM, NOT_THERE], NO_TOPIC),
    (wire.PURGE_TOPIC, [STREAM, SMALL], REFUSED),
    (DELETE_GROUP, [STREAM, SMALL, NOT_THERE], NO_GROUP),
    (DELETE_GROUP, [STREAM, SMALL, "g"], REFUSED),
]
PATHS: Final = {
    wire.PURGE_STREAM: "/streams/{}/purge",
    wire.DELETE_STREAM: "/streams/{}",
    wire.PURGE_TOPIC: "/streams/{}/topics/{}/purge",
    DELETE_GROUP: "/streams/{}/topics/{}/consumer-groups/{}",
}


@pytest.mark.parametrize("port", CLASSIC)
def test_existence_comes_before_rights_at_each_port_of_classic_commands(server: MatrixServer, port: str) -> None:
    with classic(server.target, port) as peer:
        assert login(peer, RIGHTLESS)[0] == 0
        for code, names, status in CHANGES:
            assert asked(peer, code, b"".join(map(wire.identifier, names)))[0] == status, (code, names)


def test_existence_comes_before_rights_over_http(server: MatrixServer) -> None:
    with over_http(server.target, server.target.bearers[RIGHTLESS]) as client:
        for code, names, status in CHANGES:
            path = PATHS[code].format(*(each.replace(" ", "%20") for each in names))
            answer = client.delete(path)
            assert answer.error[1] == status, (path, answer)


# ---- a right that is taken away ----


@pytest.fixture
def poller(server: MatrixServer) -> Iterator[tuple[str, Callable[[], None]]]:
    """The name of a user with rights, and what takes them."""
    name = f"poller {time.monotonic_ns()}"
    with wire.connect(server.address) as root:
        root.request(Code.CREATE_USER, CreateUserRequest(name, PASSWORD, 1, POLLER).encode())

        def take() -> None:
            root.request(Code.UPDATE_PERMISSIONS, UpdatePermissionsRequest(name, None).encode())

        yield name, take


Poller = tuple[str, Callable[[], None]]


@pytest.mark.parametrize("port", CLASSIC)
def test_a_right_that_is_taken_ends_at_open_connections_of_each_port(
    server: MatrixServer, poller: Poller, port: str
) -> None:
    name, take = poller
    with classic(server.target, port) as peer:
        assert login(peer, name)[0] == 0
        assert asked(peer, wire.POLL_MESSAGES, poll())[0] == 0
        take()
        assert asked(peer, wire.POLL_MESSAGES, poll())[0] == REFUSED


@pytest.mark.parametrize("port", sorted({*CLASSIC} - {"iggy09", "quic"}))  # those have no such command
def test_a_right_that_is_taken_ends_a_poll_that_waits(server: MatrixServer, poller: Poller, port: str) -> None:
    """At once, long before its time is over."""
    name, take = poller
    with classic(server.target, port) as peer:
        assert login(peer, name)[0] == 0
        behind = wire.consumer() + wire.identifier(STREAM) + wire.identifier(SMALL) + wire.optional_partition(1)
        taking = threading.Timer(QUIET_S, take)
        taking.start()
        nothing = struct.pack("<BQIB", wire.POLL_OFFSET, 1 << 40, 1, 0) + struct.pack("<I", LONG_WAIT_MS)
        assert asked(peer, ExtensionCode.POLL_AND_WAIT, behind + nothing)[0] == REFUSED
        taking.join()


def token_of(target: Target, name: str) -> str:
    with over_http(target) as client:
        answer = client.done("POST", "/users/login", {"username": name, "password": PASSWORD})
        return str(answer["access_token"]["token"])


def test_a_right_that_is_taken_ends_at_open_connections_over_http(server: MatrixServer, poller: Poller) -> None:
    name, take = poller
    path = f"/streams/{STREAM}/topics/{SMALL}/messages?partition_id=0&kind=first&count=1"
    with over_http(server.target, token_of(server.target, name)) as client:
        assert client.get(path).status == 200
        take()
        assert client.get(path).error == (403, REFUSED)


AWAKENED: Final = pytest.mark.parametrize("is_woken", [True, False], ids=["by a message", "by nothing"])


@AWAKENED
def test_a_right_that_is_taken_ends_a_stream_of_events(server: MatrixServer, poller: Poller, is_woken: bool) -> None:
    name, take = poller
    token = token_of(server.target, name)
    connection = http.client.HTTPConnection(*wire.host_and_port(server.target.addresses["http"]), timeout=WAIT_S)
    with contextlib.closing(connection), wire.connect(server.address) as root:
        path = f"/streams/{STREAM}/topics/{SMALL}/events?partition_id={int(is_woken)}"  # the other one has no message
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.readline() == b": follows\n"
        take()
        if is_woken:
            root.send(STREAM, SMALL, wire.to_partition(1), [wire.message(b"hidden by now")])
        until_s = time.monotonic() + WAIT_S
        while line := answer.readline():
            assert b"payload" not in line, "it is told what its user may not read"
            assert time.monotonic() < until_s, "it goes on"


def test_a_right_that_is_taken_ends_calls_and_subscriptions_over_grpc(server: MatrixServer, poller: Poller) -> None:
    name, take = poller
    with over_grpc(server.target, name) as client:
        client.publish(BIG, b"may")
        end = int(client.partition(BIG).newestOffset) + 1
        with client.subscribe(BIG, startPosition=1, startOffset=end - 1) as subscription:
            assert subscription.messages(1)[0].value == b"may"
            take()
            assert client.status("Publish", stream=BIG, value=b"x")[0] == "PERMISSION_DENIED"
            with over_grpc(server.target, OTHER) as other:
                other.publish(BIG, b"hidden by now")
            assert subscription.end()[0] == "PERMISSION_DENIED"
            assert [each.value for each in subscription._found[1:]] == [b"may"]


@AWAKENED
def test_a_right_that_is_taken_ends_a_subscription_that_waits_for_native_messages(
    server: MatrixServer, poller: Poller, is_woken: bool
) -> None:
    name, take = poller
    with (
        wire.connect(server.address) as root,
        over_grpc(server.target, name) as client,
        client.subscribe(BIG) as subscription,
    ):
        take()
        if is_woken:
            root.send(NAMESPACE, BIG, wire.to_partition(0), [wire.message(b"hidden by now")])
        assert subscription.end()[0] == "PERMISSION_DENIED"
        assert [each.value for each in subscription._found[1:]] == []


def test_a_right_that_is_taken_ends_what_is_said_and_heard_over_nats(server: MatrixServer, poller: Poller) -> None:
    """The door asks each second for the rights of a user (`MAY_S`); no message of later is heard."""
    name, take = poller
    nats = Nats(server.target, name)
    with contextlib.closing(nats):
        assert nats.told(b"SUB %b 1\r\n" % BIG.encode()).endswith(b"PONG\r\n")
        heard = nats.told(b"PUB %b 1\r\nx\r\n" % BIG.encode(), until=b"MSG %b 1 1\r\nx\r\n" % BIG.encode())
        assert b"MSG" in heard
        take()
        time.sleep(1.2)
        with contextlib.closing(Nats(server.target, OTHER)) as other:
            other.told(b"PUB %b 6\r\nhidden\r\n" % BIG.encode(), quiet_s=QUIET_S)
        assert b"hidden" not in nats.told(quiet_s=QUIET_S)


def test_every_port_with_a_login_is_asked() -> None:
    """HTTPS is HTTP behind its handshake, and the port for metrics takes no login."""
    assert {*PORTS} == {*DOORS} - {"https", "metrics"}


def test_times_of_the_page_are_those_of_the_sources() -> None:
    """How long what waits may go on when its right is taken (docs/security.md)."""
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    told = {name: float(seconds) for seconds, name in re.findall(r"(\d+) s \(`(WAIT_MS|_SLICE_S|MAY_S)`", page)}
    assert told == {"WAIT_MS": followers.WAIT_MS / 1000, "_SLICE_S": waiting._SLICE_S, "MAY_S": nats_audience.MAY_S}
