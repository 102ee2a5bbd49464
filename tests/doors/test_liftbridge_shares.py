"""Strangers at the door for Liftbridge, of several addresses: what needs no login, and logins that fail, take nothing
that calls of users need."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Final

import pytest

from shardd.doors.liftbridge.calls import (
    CALLS_OF_ADDRESS_MAX,
    PROBES_OF_ADDRESS_MAX,
    READS_MAX,
    REQUEST_S,
    SESSIONS_OF_ADDRESS_MAX,
    SUBSCRIPTIONS_MAX,
    SUBSCRIPTIONS_OF_ADDRESS_MAX,
)
from shardd.protocol.liftbridge import api, api_messages
from tests.doors.liftbridge_server import ROOT, WAIT_S, LiftbridgeServer
from tests.doors.liftbridge_wire import PREFACE, await_ping, frame, opened, request_frames
from tests.support.serving import Serving

pytestmark = pytest.mark.usefixtures("hashes_as_served")

HEALTH: Final = "/grpc.health.v1.Health"
REFLECTION: Final = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
ADDRESSES: Final = tuple(f"127.0.0.{number}" for number in range(2, 8))
STREAMS_MAX: Final = 128  # of one connection here
CONTROL_S: Final = REQUEST_S / 2


def fill(server: LiftbridgeServer) -> None:
    with server.client(ROOT) as root:
        root.create("s")


SERVER: Final = Serving(
    LiftbridgeServer, {"SHARDD_LIFTBRIDGE_ANONYMOUS_USER": "", "SHARDD_SERVER_LOGIN_ATTEMPTS_MAX": "1000000"}, fill=fill
)


def strangers(
    held: ExitStack,
    server: LiftbridgeServer,
    calls: int,
    path: str,
    request: bytes | None,
    metadata: Callable[[int], Sequence[tuple[str, str]]] = lambda number: (),
    *,
    may_end: bool = False,
) -> None:
    """So many calls of each address, which stay. `request` None: a call whose request never comes. `metadata`: of the
    call with a number. `may_end`: the server may close connections whose calls are refused fast."""
    host, _, port = server.liftbridge_address.rpartition(":")
    for address in ADDRESSES:
        for first in range(0, calls, STREAMS_MAX):
            connection = held.enter_context(
                socket.create_connection((host, int(port)), WAIT_S, source_address=(address, 0))
            )
            some = range(first, min(calls, first + STREAMS_MAX))
            connection.settimeout(WAIT_S)
            with suppress(ConnectionError) if may_end else nullcontext():
                connection.sendall(PREFACE + frame(4, 1, 0, b""))
                for stream, number in enumerate(some):
                    connection.sendall(opened(path, 2 * stream + 1, metadata(number)))
                    if request is not None:
                        connection.sendall(request_frames(2 * stream + 1, request, ends=path != REFLECTION))
                await_ping(connection)


def test_health_watchers_without_a_login_leave_subscriptions_alone(server: LiftbridgeServer) -> None:
    with ExitStack() as held, server.client(ROOT) as client:
        strangers(held, server, SUBSCRIPTIONS_OF_ADDRESS_MAX, f"{HEALTH}/Watch", b"")
        client.publish("s", b"x")
        for _ in range(8):
            assert client.read("s", 1)[0].value == b"x"


def test_health_checks_that_never_come_leave_requests_alone(server: LiftbridgeServer) -> None:
    with ExitStack() as held, server.client(ROOT) as client:
        strangers(held, server, READS_MAX // 2, f"{HEALTH}/Check", None)
        for _ in range(8):
            assert client.status("FetchMetadata", timeout_s=CONTROL_S) == ("OK", "")


def test_reflection_without_a_login_leaves_sessions_alone(server: LiftbridgeServer) -> None:
    with ExitStack() as held, server.client(ROOT) as client:
        strangers(held, server, SESSIONS_OF_ADDRESS_MAX, REFLECTION, None)
        for _ in range(8):
            assert len(client.publish_async([{"stream": "s", "value": b"x"}])) == 1


def test_probes_of_one_address_leave_probes_of_others_alone(server: LiftbridgeServer) -> None:
    with ExitStack() as held, server.client() as client:
        strangers(held, server, 2 * PROBES_OF_ADDRESS_MAX, f"{HEALTH}/Watch", b"")
        for _ in range(8):
            check = client.channel.unary_unary(f"{HEALTH}/Check")
            assert check(b"", timeout=WAIT_S, wait_for_ready=True) == b"\x08\x01"


def test_wrong_passwords_leave_calls_of_others_alone(server: LiftbridgeServer) -> None:
    """Of six addresses, as many as they may have: they wait for their turn in the line of passwords."""

    def wrong(number: int) -> list[tuple[str, str]]:
        return [("authorization", "Basic " + base64.b64encode(f"iggy:wrong {number}".encode()).decode())]

    with ExitStack() as held, server.client(ROOT) as client:
        client.call("FetchMetadata")
        path = f"/{api.SERVICE}/FetchMetadata"
        strangers(held, server, CALLS_OF_ADDRESS_MAX, path, b"", wrong, may_end=True)
        for _ in range(8):
            with server.client(ROOT) as other:
                assert other.status("FetchMetadata") == ("OK", "")


def test_calls_of_one_account_get_as_many_places_as_before(tmp_path: Path) -> None:
    """Clients of several addresses that share one account."""
    with LiftbridgeServer(tmp_path / "data") as server, server.client(ROOT) as root, ExitStack() as held:
        root.create("s")
        path = f"/{api.SERVICE}/Subscribe"
        request = api_messages.SubscribeRequest(stream="s").SerializeToString()
        strangers(held, server, SUBSCRIPTIONS_MAX // len(ADDRESSES), path, request, lambda number: (ROOT,))
        for connection in held_sockets(held):
            assert not ended_streams(connection)


def held_sockets(held: ExitStack) -> list[socket.socket]:
    found = [each[1].__self__ for each in held._exit_callbacks]  # type: ignore[attr-defined]
    return [each for each in found if isinstance(each, socket.socket)]


def ended_streams(connection: socket.socket) -> bool:
    """Whether trailers or a reset have come for any stream within a moment."""
    connection.settimeout(1)
    data = b""
    try:
        while more := connection.recv(65_536):
            data += more
    except TimeoutError:
        pass
    while len(data) >= 9:
        size, kind, flags = int.from_bytes(data[:3]), data[3], data[4]
        if kind == 3 or (kind == 1 and flags & 1):
            return True
        data = data[9 + size :]
    return False
