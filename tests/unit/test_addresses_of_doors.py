"""What doors count an address as: a host of IPv6 is its /64 network at each of them, as at the engine's ports."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import uvicorn

from shardd.doors.asgi import _BoundedProtocol
from shardd.doors.asgi_crowd import AsgiCrowd, AsgiLimits, requests_of_client
from shardd.doors.forwarded import PROXIES
from shardd.doors.http.endpoint import Call as HttpCall
from shardd.doors.liftbridge.calls import Call as GrpcCall
from shardd.doors.liftbridge.nats.connection import NatsConnection
from shardd.doors.unread import Answers
from tests.unit.test_quic_handshakes import Client, Wire, let_run, listening

SHARDD: Final = Path(__file__).parents[2] / "shardd"
ADDRESS: Final = re.compile(r"peername|addr\[0\]|\.peer\(\)|rpartition\(\":\"\)\[0\]")
NETWORKS: Final = "from shardd.runtime.networks import"
NO_COUNTS: Final = {
    "doors/held_clients.py": "requests from one host share a client; the worker counts it",
    "doors/introductions.py": "it says whose a connection is; asgi_crowd.py and openings.py count",
    "doors/liftbridge/endpoint.py": "it names whom to shut out; connection_shares.py counts",
}
FIRST: Final = "2001:db8::1"
OTHER_OF_IT: Final = "2001:db8::2"
OF_ANOTHER: Final = "2001:db8:0:1::1"
MAPPED: Final = "::ffff:192.0.2.1"
PLAIN: Final = "192.0.2.1"


class Transport(asyncio.Transport):
    """Of a client at that host."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self._host = host
        self.is_aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._host, 5, 0, 0) if name == "peername" else default

    def abort(self) -> None:
        self.is_aborted = True

    def write(self, data: Any) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return self.is_aborted


def address(host: str) -> str:
    return f"[{host}]:5" if ":" in host else f"{host}:5"


def of_http_call(host: str) -> str:
    nothing: Any = None
    return HttpCall(nothing, nothing, nothing, nothing, "", address(host)).host


def of_grpc_call(host: str) -> str:
    kind = "ipv6" if ":" in host else "ipv4"
    peer = f"{kind}:{address(host).replace('[', '%5B').replace(']', '%5D')}"
    gate: Any = SimpleNamespace(connections=SimpleNamespace(called=lambda address: None))
    context: Any = SimpleNamespace(peer=lambda: peer)
    return GrpcCall(gate, "FetchMetadata", context).host


def of_nats_connection(host: str) -> str:
    limits = SimpleNamespace(payload_bytes_max=1, slow_reader_timeout_s=1.0)
    house: Any = SimpleNamespace(admit=lambda connection: False, limits=limits, unsent=None, unread=None)

    async def connect() -> str:
        connection = NatsConnection(house)
        connection.connection_made(Transport(host))
        return connection.network

    return asyncio.run(connect())


def of_quic_connection(host: str) -> str:
    async def connect() -> str:
        wire = Wire()
        listener = listening(wire)
        Client(listener, wire, host, 5)
        await let_run(lambda: bool(listener._all))
        (connection,) = listener._all
        listener.close()
        return connection.host

    return asyncio.run(connect())


@pytest.mark.parametrize("counted_as", [of_http_call, of_grpc_call, of_nats_connection, of_quic_connection])
def test_hosts_of_one_network_are_counted_as_one_address(counted_as: Callable[[str], str]) -> None:
    assert counted_as(FIRST) == counted_as(OTHER_OF_IT) != counted_as(OF_ANOTHER)
    assert counted_as(MAPPED) == counted_as(PLAIN)


def test_connections_of_http_are_counted_by_network() -> None:
    async def scenario() -> list[bool]:
        limits = AsgiLimits(connections_per_address_max=1)
        kind = type(
            "Bounded", (_BoundedProtocol,), {"limits": limits, "crowd": AsgiCrowd(limits), "answers": Answers()}
        )
        config = uvicorn.Config(lambda *_: None, http=kind, ws="none", lifespan="off", log_config=None)
        config.load()
        transports = [Transport(host) for host in (FIRST, OTHER_OF_IT, OF_ANOTHER)]
        for transport in transports:
            state = uvicorn.server.ServerState()
            protocol = kind(config=config, server_state=state, app_state={})
            protocol.connection_made(transport)
        return [transport.is_aborted for transport in transports]

    assert asyncio.run(scenario()) == [False, True, False]


def test_whatever_reads_an_address_in_a_door_goes_by_networks() -> None:
    """One that tells addresses apart and does not count them is named above, with the reason."""
    wrong = []
    for path in sorted([*(SHARDD / "doors").rglob("*.py"), *(SHARDD / "dispatch").rglob("*.py")]):
        name, text = str(path.relative_to(SHARDD)), path.read_text()
        if ADDRESS.search(text) and NETWORKS not in text and name not in NO_COUNTS:
            wrong.append(name)
    assert not wrong
    assert all((SHARDD / name).exists() for name in NO_COUNTS)


@pytest.mark.parametrize(("connections", "of_address"), [(5000, 4500), (1024, 256), (10, 10), (2, 1)])
def test_requests_of_one_client_leave_connections_of_the_proxies_to_others(connections: int, of_address: int) -> None:
    limits = AsgiLimits(connections_max=connections, connections_per_address_max=of_address, proxies=("10.0.0.0/8",))
    crowd = AsgiCrowd(limits)
    held = 0
    while crowd.enter(PROXIES):
        held += 1
    assert 0 < requests_of_client(limits) < held or held == 1
