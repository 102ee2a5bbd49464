"""Clients behind a trusted proxy that sends PROXY protocol headers: each has its own address in shares, lists and logs;
connections from elsewhere speak for themselves only."""

from __future__ import annotations

import resource
import select
import struct
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.conftest import MakeServer
from tests.hostile import crowd
from tests.server.websocket_server import ON, address_of
from tests.support import proxy, wire
from tests.support.certificates import Authority, settings
from tests.support.server import ONE_SHARD, TWO_SHARDS, Server
from tests.support.serving import Serving
from tests.support.stalls import wait_until
from tests.support.tls_wire import client_context
from tests.support.websocket import WebSocket

WAIT_S: Final = 60.0
DISCONNECTED: Final = 8
INVALID_COMMAND: Final = 3
ON_TCP: Final = proxy.TRUSTED | {"SHARDD_TCP_PROXY_PROTOCOL": "true"}
ONE: Final = "192.0.2.1"
TWO: Final = "2001:db8:0:2::7"
ATTEMPTS: Final = 20
FAILED: Final = 42
SPARE: Final = 25
SERVER: Final = Serving(env=ON_TCP | TWO_SHARDS)


def addresses(connection: wire.Wire) -> list[str]:
    """Of GET_CLIENTS."""
    data, at, found = connection.request(wire.GET_CLIENTS), 0, []
    while at < len(data):  # id, user, transport, address, groups
        length = struct.unpack_from("<I", data, at + 9)[0]
        found.append(data[at + 13 : at + 13 + length].decode())
        at += 9 + 4 + length + 4
    return found


def is_served(connection: wire.Wire) -> bool:
    status = connection.status(wire.PING)
    assert status in (0, DISCONNECTED)
    return status == 0


def test_clients_are_listed_by_the_address_that_the_proxy_tells(server: Server) -> None:
    clients = [proxy.connect(server.address, client) for client in (ONE, TWO)]
    with wire.connect(server.address) as direct:
        for client in clients:
            client.login()
        found = addresses(direct)
        assert f"{ONE}:{proxy.CLIENT_PORT}" in found and f"[{TWO}]:{proxy.CLIENT_PORT}" in found
        assert not any(address.startswith(proxy.PROXY_HOST) for address in found)
        for partitions in range(8):  # sends move them between the shards, and their address with them
            direct.create_topic(direct.create_stream(f"s{partitions}"), "t", 2)
        for number in range(200):
            for client in clients:
                client.send(f"s{number % 8}", "t", wire.to_partition(number % 2), [wire.message(b"1")])
        found = addresses(direct)
        assert f"{ONE}:{proxy.CLIENT_PORT}" in found and f"[{TWO}]:{proxy.CLIENT_PORT}" in found
    for client in clients:
        client.close()


def test_clients_behind_one_proxy_have_their_own_places(make_server: MakeServer) -> None:
    server = make_server(ON_TCP | {"SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "4"})
    ones = [proxy.connect(server.address, ONE) for _ in range(4)]
    assert all(is_served(each) for each in ones)
    with proxy.connect(server.address, ONE) as fifth:
        assert not is_served(fifth) and crowd.has_ended(fifth, WAIT_S)
    twos = [proxy.connect(server.address, TWO) for _ in range(4)]
    assert all(is_served(each) for each in twos)
    with proxy.connect(server.address, "2001:db8:0:2::8") as same_network:
        assert not is_served(same_network)
    for each in ones:
        each.close()

    def has_room() -> bool:
        with proxy.connect(server.address, ONE) as again:
            return is_served(again)

    wait_until(has_room, "the places of the address are free again", WAIT_S)
    for each in twos:
        each.close()


def test_wrong_passwords_of_one_client_behind_a_proxy_do_not_hold_up_another(make_server: MakeServer) -> None:
    """A client whose address is known for the account is not in the line of those that guess from another one."""
    server = make_server(ON_TCP | ONE_SHARD | {"SHARDD_SERVER_LOGIN_TIMEOUT": "10 m"})
    with proxy.connect(server.address, TWO) as known:
        known.login()
    guessing = [proxy.connect(server.address, ONE) for _ in range(ATTEMPTS)]
    for each in guessing:
        each.send_bytes(wire.frame(wire.LOGIN_USER, wire.str8("iggy") + wire.str8("wrong") + bytes(8)))
    assert guessing[0].reply()[0] == FAILED  # they are at it
    with proxy.connect(server.address, TWO) as known:
        known.login()
        answered, _, _ = select.select([each.socket for each in guessing[1:]], [], [], 0)
    assert len(answered) < ATTEMPTS - 1
    for each in guessing:
        each.close()


def test_a_proxy_that_checks_health_is_served_as_itself(server: Server) -> None:
    with wire.Wire(server.address, source=proxy.PROXY_HOST) as check, wire.connect(server.address) as direct:
        check.send_bytes(proxy.LOCAL)
        check.login()
        assert any(address.startswith(f"{proxy.PROXY_HOST}:") for address in addresses(direct))


@pytest.mark.parametrize(
    "begins",
    [
        wire.frame(wire.PING),
        b"PROXY TCP4 192.0.2.1 127.0.0.1 40000 8090\r\n",
        proxy.header(ONE)[:12] + b"\x31" + proxy.header(ONE)[13:],
        proxy.header(ONE)[:14] + b"\x00\x0b" + proxy.header(ONE)[16:],
        proxy.header(ONE, bytes(2000)),
        proxy.SIGNATURE + b"\x21\x12" + proxy.header(ONE)[14:],  # of a datagram
    ],
    ids=["no-header", "version-1", "version-3", "too-short", "too-long", "datagram"],
)
def test_a_malformed_header_closes_the_connection_and_is_told_in_the_log(server: Server, begins: bytes) -> None:
    with wire.Wire(server.address, source=proxy.PROXY_HOST) as connection:
        connection.send_bytes(begins)
        assert crowd.has_ended(connection, WAIT_S)
    with proxy.connect(server.address, ONE) as good:
        good.ping()
    wait_until(lambda: "no PROXY protocol header, version 2, came in time" in server.log(), "the sentence", WAIT_S)


def test_silent_connections_of_a_proxy_leave_descriptors_to_another_client(make_server: MakeServer) -> None:
    """The worker has no descriptor left for a connection: sockets that wait for their header go first."""
    epoll = {"SHARDD_SYSTEM_IO_ENGINE": "epoll"}  # an accept of io_uring knows the limit of its start
    server = make_server(ON_TCP | ONE_SHARD | epoll | {"SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "30 m"})
    (worker,) = server.worker_pids()
    soft, hard = resource.prlimit(worker, resource.RLIMIT_NOFILE)
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (psutil.Process(worker).num_fds() + SPARE, hard))
    silent = [wire.Wire(server.address, source=proxy.PROXY_HOST) for _ in range(4 * SPARE)]
    for _ in range(4):
        with wire.connect(server.address) as direct, proxy.connect(server.address, ONE) as client:
            direct.ping()
            client.ping()
    assert crowd.has_ended(silent[0], WAIT_S)
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (soft, hard))
    for connection in silent:
        connection.close()
    assert server.worker_pids() == [worker]


def test_a_header_of_an_untrusted_peer_is_a_protocol_error(server: Server) -> None:
    with wire.Wire(server.address, source="127.0.0.3") as untrusted:
        untrusted.send_bytes(proxy.header(ONE) + wire.frame(wire.PING))
        assert untrusted.reply()[0] == INVALID_COMMAND
        assert crowd.has_ended(untrusted, WAIT_S)
    with wire.Wire(server.address, source="127.0.0.3") as untrusted:
        untrusted.login()
        assert any(address.startswith("127.0.0.3:") for address in addresses(untrusted))


def test_a_header_without_the_switch_is_a_protocol_error(make_server: MakeServer) -> None:
    server = make_server(proxy.TRUSTED | ONE_SHARD | {"SHARDD_HTTP_FORWARDED_FOR": "true"})
    with proxy.connect(server.address, ONE) as connection:
        assert connection.status(wire.PING) == INVALID_COMMAND
    with wire.Wire(server.address, source=proxy.PROXY_HOST) as connection:
        connection.ping()


def test_the_header_comes_before_tls(make_server: MakeServer, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    env = settings(authority.sign("server", names="DNS:localhost"))
    server = make_server(ON_TCP | ONE_SHARD | env)
    with proxy.connect(server.address, ONE) as client:
        client.socket = client_context(authority.certificate).wrap_socket(client.socket, server_hostname="localhost")
        client.login()
        assert f"{ONE}:{proxy.CLIENT_PORT}" in addresses(client)


def test_the_header_comes_before_an_upgrade_to_websocket(make_server: MakeServer) -> None:
    server = make_server(ON | proxy.TRUSTED | ONE_SHARD | {"SHARDD_WEBSOCKET_PROXY_PROTOCOL": "true"})
    stream = proxy.socket_for(wire.host_and_port(address_of(server)), ONE)
    with WebSocket.over(stream) as client, wire.Wire(server.address, source=proxy.PROXY_HOST) as direct:
        client.login()
        direct.login()  # this port has no switch
        assert f"{ONE}:{proxy.CLIENT_PORT}" in addresses(direct)
