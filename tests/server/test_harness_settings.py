"""A server that is started as Apache Iggy's own test harness starts one: by IGGY_ variables alone. Each setting is
looked at where it acts. (`IGGY_CONSUMER_GROUP_REBALANCING_*`: also tests/server/test_group_restarts.py.)"""

from __future__ import annotations

import struct
import time
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from shardd.protocol import account_requests
from shardd.protocol.codes import Code
from shardd.protocol.permissions import Permissions
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving
from tests.support.wire import Wire

MANAGER = Permissions(manage_users=True)
NAME, PASSWORD = "harness", "harness-password"
SETTINGS = {
    "IGGY_ROOT_USERNAME": NAME,
    "IGGY_ROOT_PASSWORD": PASSWORD,
    "IGGY_HEARTBEAT_ENABLED": "true",
    "IGGY_HEARTBEAT_INTERVAL": "3 s",
    "IGGY_CONSUMER_GROUP_REBALANCING_TIMEOUT": "700ms",
    "IGGY_CONSUMER_GROUP_REBALANCING_CHECK_INTERVAL": "100ms",
    "IGGY_SYSTEM_SEGMENT_SIZE": "5 KiB",
    "IGGY_SYSTEM_TOPIC_MESSAGE_EXPIRY": "2 h",
    "IGGY_SYSTEM_SHARDING_CPU_ALLOCATION": "1",
    "IGGY_SYSTEM_LOGGING_LEVEL": "warn",
    "IGGY_PERSONAL_ACCESS_TOKEN_MAX_TOKENS_PER_USER": "1",
    "IGGY_PERSONAL_ACCESS_TOKEN_CLEANER_INTERVAL": "1 s",
    "IGGY_TCP_SOCKET_OVERRIDE_DEFAULTS": "true",
    "IGGY_TCP_SOCKET_NODELAY": "true",
    "IGGY_CLUSTER_ENABLED": "true",
    "IGGY_CLUSTER_NAME": "harness-cluster",
    "IGGY_CLUSTER_NODE_CURRENT_NAME": "node-a",
    "IGGY_CLUSTER_NODE_CURRENT_IP": "127.0.0.1",
    "IGGY_CLUSTER_NODE_OTHERS_0_NAME": "node-b",
    "IGGY_CLUSTER_NODE_OTHERS_0_IP": "127.0.0.1",
    "IGGY_CLUSTER_NODE_OTHERS_0_PORTS_TCP": "9",
}


SERVER: Final = Serving(partial(Server, arguments=()), SETTINGS)


@pytest.fixture
def root(server: Server) -> Iterator[Wire]:
    with Wire(server.address) as connection:
        connection.login(NAME, PASSWORD)
        yield connection


def nodes(reply: bytes) -> tuple[str, list[tuple[str, str, int, int, int]]]:
    """Cluster name; name, ip, tcp port, role and status of each node."""
    at = 0

    def text() -> str:
        nonlocal at
        length = struct.unpack_from("<I", reply, at)[0]
        at += 4 + length
        return reply[at - length : at].decode()

    name, found = text(), []
    (count,) = struct.unpack_from("<I", reply, at)
    at += 4
    for _ in range(count):
        node, ip = text(), text()
        tcp, _quic, _http, _websocket, role, status = struct.unpack_from("<HHHHBB", reply, at)
        at += 10
        found.append((node, ip, tcp, role, status))
    assert at == len(reply)
    return name, found


def test_every_variable_is_in_the_effective_settings(server: Server) -> None:
    effective = tomllib.loads(server.runtime_config.read_text())
    for variable, value in SETTINGS.items():
        path = variable.removeprefix("IGGY_").lower()
        if path.startswith(("root_", "cluster_node_others")):
            continue
        assert _leaf(effective, path) in (value, value.replace("ms", " ms"), value == "true", _number(value)), variable
    assert server.log().count("no effect") == 0


def _number(value: str) -> int | None:
    return int(value) if value.isdecimal() else None


def _leaf(table: dict[str, object], path: str) -> object:
    """The value whose keys, joined with "_", are the path."""
    for key, value in table.items():
        if path == key:
            return value
        if path.startswith(f"{key}_") and isinstance(value, dict):
            return _leaf(value, path.removeprefix(f"{key}_"))
    raise KeyError(path)


def test_nodes_of_the_cluster_are_told(server: Server, root: Wire) -> None:
    port = int(server.address.rpartition(":")[2])
    name, found = nodes(root.request(Code.GET_CLUSTER_METADATA))
    assert name == "harness-cluster"
    assert found == [("node-a", "127.0.0.1", port, 0, 0), ("node-b", "127.0.0.1", 9, 1, 0)]


def test_a_follower_says_who_leads(tmp_path: Path) -> None:
    cluster = {name: value for name, value in SETTINGS.items() if "CLUSTER" in name}
    follower = Server(
        tmp_path / "data", env=ONE_SHARD | cluster, arguments=("--with-default-root-credentials", "--follower")
    )
    with follower, wire.connect(follower.address) as connection:
        _name, found = nodes(connection.request(Code.GET_CLUSTER_METADATA))
        assert [(name, role) for name, _ip, _port, role, _status in found] == [("node-a", 1), ("node-b", 0)]


def test_segments_have_the_size_of_the_settings(root: Wire) -> None:
    stream = root.create_stream("sized")
    root.create_topic(stream, "t", 1)
    for _ in range(12):
        root.send(stream, 0, wire.to_partition(0), [wire.message(bytes(1000))])
    assert root.partitions(stream, 0)[0].segments_count > 1
    topic = root.request(Code.GET_TOPIC, wire.identifier(stream) + wire.identifier(0))
    assert struct.unpack_from("<Q", topic, 16)[0] == 2 * 3600 * 1_000_000
    root.delete_stream(stream)


def test_tokens_have_the_limit_of_the_settings(root: Wire) -> None:
    assert root.status(Code.CREATE_PERSONAL_ACCESS_TOKEN, account_requests.CreateTokenRequest("one", 0).encode()) == 0
    assert root.status(Code.CREATE_PERSONAL_ACCESS_TOKEN, account_requests.CreateTokenRequest("two", 0).encode()) == 52


def test_clients_without_heartbeat_are_evicted(server: Server, root: Wire) -> None:
    with Wire(server.address) as silent:
        silent.login(NAME, PASSWORD)
        own = silent.request(Code.GET_ME)[:4]
        deadline = time.monotonic() + 60
        while own in root.request(Code.GET_CLIENTS):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert silent.status(Code.GET_ME) == 100


def test_root_that_has_switched_itself_off_is_back_after_a_start(tmp_path: Path) -> None:
    """The released server lets root do this, and then nobody gets in any more."""
    with Server(tmp_path / "data", ONE_SHARD) as running:
        with wire.connect(running.address) as root:
            manager = account_requests.CreateUserRequest("manager", "secret", 1, MANAGER).encode()
            root.request(Code.CREATE_USER, manager)
            off = account_requests.UpdateUserRequest("iggy", None, 2).encode()
            with Wire(running.address) as other:
                other.login("manager", "secret")
                assert other.status(Code.UPDATE_USER, off) == 41
                rename = account_requests.UpdateUserRequest("iggy", "lost", None).encode()
                assert other.status(Code.UPDATE_USER, rename) == 41
                assert other.status(Code.DELETE_USER, account_requests.UserRequest("iggy").encode()) == 48
                rights = account_requests.UpdatePermissionsRequest("iggy", None).encode()
                assert other.status(Code.UPDATE_PERMISSIONS, rights) == 49
                password = account_requests.ChangePasswordRequest("iggy", "guess", "other").encode()
                assert other.status(Code.CHANGE_PASSWORD, password) == 42
                root.request(Code.UPDATE_USER, off)
                assert Wire(running.address).status(Code.LOGIN_USER, wire.str8("iggy") * 2 + bytes(8)) == 47
                on = account_requests.UpdateUserRequest("iggy", None, 1).encode()
                assert other.status(Code.UPDATE_USER, on) == 0, "who manages users may let root in again"
            root.request(Code.UPDATE_USER, off)
        running.stop()
        running.start()
        assert "the root user was inactive and is active again" in running.log()
        with wire.connect(running.address) as root:
            assert root.request(Code.GET_USER, wire.identifier(0))[12] == 1


def test_a_setting_under_its_old_name_has_effect_and_one_line_says_so(tmp_path: Path) -> None:
    variables = {"SHARDD_TCP_LOGIN_ATTEMPTS_MAX": "1", "SHARDD_TCP_LOGIN_TIMEOUT": "1 m"}
    with Server(tmp_path / "data", env=ONE_SHARD | variables) as server:
        warnings = [line for line in server.log().splitlines() if "new names" in line]
        assert len(warnings) == 1, server.log()
        assert all(variable in warnings[0] for variable in variables)
        with Wire(server.address) as client:
            assert client.status(Code.LOGIN_USER, wire.str8("iggy") + wire.str8("wrong") + bytes(8)) == 42
            with pytest.raises(ConnectionError):
                client.login()
