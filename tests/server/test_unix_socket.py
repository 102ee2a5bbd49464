"""Clients over the Unix socket of a real server: all that they can do over TCP, who they are by their uid, and what
hostile users of this host get."""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shardd.client import commands
from shardd.protocol.errors import Status
from tests.conftest import MakeServer
from tests.hostile.test_limits import eventually
from tests.support import wire
from tests.support.links import root_link
from tests.support.other_user import STRANGER, as_other_user, needs_root, public_directory
from tests.support.server import ONE_SHARD, Server
from tests.support.stalls import stopped
from tests.support.top import shard_figures

MINE = os.geteuid()
NOT_LOGGED_IN = 2**32 - 1


@pytest.fixture
def path(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return str(tmp_path / "s.sock")


@pytest.fixture
def for_all() -> Iterator[str]:
    """Everybody may go there; who may connect the mode of the socket says."""
    with public_directory() as directory:
        yield str(directory / "s.sock")


def who(address: str) -> tuple[int, str]:
    """Id of the user that a new connection is, and its address, as the server tells them."""
    with wire.Wire(address) as connection:
        me = connection.request(wire.GET_ME)
    length = struct.unpack_from("<I", me, 9)[0]
    return struct.unpack_from("<I", me, 4)[0], me[13 : 13 + length].decode()


def accepted(address: str) -> list[int]:
    """Of both shards; one that has come back may be silent for a moment."""
    figures: list[dict[str, int]] = []

    def complete() -> bool:
        figures[:] = shard_figures(address)
        return len(figures) == 2

    assert eventually(complete)
    return [each["engine.accepted"] for each in figures]


@pytest.mark.io_engine
def test_a_classic_client_does_over_it_what_it_does_over_tcp(make_server: MakeServer, path: str) -> None:
    server = make_server(env={"SHARDD_UNIX_PATH": path})
    with wire.connect(path) as local, wire.connect(server.address) as remote:
        local.create_topic(local.create_stream("local"), "t", 4)
        for partition in range(4):  # on both shards, and large enough for many receives
            payloads = [bytes([partition]) * size for size in (1, 1000, 300_000)]
            local.send(0, 0, wire.to_partition(partition), [wire.message(payload) for payload in payloads])
            for connection in (local, remote):
                polled = connection.poll(0, 0, partition, strategy=wire.POLL_FIRST, count=10)
                assert [message.payload for message in polled.messages] == payloads
    with root_link(f"unix:{path}") as client:
        assert [stream.name for stream in client.call(commands.streams())] == ["local"]


@pytest.mark.io_engine
def test_a_connection_over_it_moves_to_the_shard_that_it_writes_to(make_server: MakeServer, path: str) -> None:
    make_server(env={"SHARDD_UNIX_PATH": path})
    with wire.connect(path) as connection:
        connection.create_topic(connection.create_stream("s"), "t", 8)
        before = who_is(connection)
        for partition in range(8):
            for _ in range(40):
                connection.send(0, 0, wire.to_partition(partition), [wire.message(b"x")])
        assert who_is(connection) == before
        assert sum(figures["engine.moved_in"] for figures in shard_figures(f"unix:{path}")) > 0


def who_is(connection: wire.Wire) -> bytes:
    return connection.request(wire.GET_ME)


@pytest.mark.io_engine
def test_connections_are_dealt_to_all_workers(make_server: MakeServer, path: str) -> None:
    server = make_server(env={"SHARDD_UNIX_PATH": path})
    before = accepted(server.address)
    for _ in range(40):
        wire.connect(path).close()
    more = [now - then for now, then in zip(accepted(server.address), before, strict=True)]
    assert sum(more) >= 40 and min(more) >= 10, more


@pytest.mark.io_engine
def test_it_outlives_a_worker_and_its_successor_serves_it_again(make_server: MakeServer, path: str) -> None:
    server = make_server(env={"SHARDD_UNIX_PATH": path})
    for shard in range(2):
        os.kill(server.worker_pids()[shard], signal.SIGKILL)
        for _ in range(8):
            wire.connect(path).close()
        server.worker_pids()
        assert eventually(lambda: "is back" in server.log())
        before = accepted(server.address)
        for _ in range(20):
            wire.connect(path).close()
        after = accepted(server.address)
        assert after[0] > before[0] and after[1] > before[1]


@pytest.mark.io_engine
def test_a_worker_that_stands_still_does_not_keep_the_others_from_accepting(make_server: MakeServer, path: str) -> None:
    server = make_server(env={"SHARDD_UNIX_PATH": path})
    for pid in server.worker_pids():
        with stopped(server, pid):
            connections = [wire.Wire(path, timeout_s=60) for _ in range(2)]  # one of two is dealt to each
            for connection in connections:
                connection.socket.sendall(struct.pack("<II", 4, wire.PING))
                connection.socket.setblocking(False)
            assert eventually(lambda made=connections: any(answered(each) for each in made))  # type: ignore[misc]
        for connection in connections:
            connection.close()


def answered(connection: wire.Wire) -> bool:
    try:
        return len(connection.socket.recv(8)) == 8
    except BlockingIOError:
        return False


# ---- who they are ----


def test_a_mapped_uid_is_that_user_from_its_first_request_on(make_server: MakeServer, path: str) -> None:
    server = make_server(env={"SHARDD_UNIX_PATH": path, "SHARDD_UNIX_USERS": f"{MINE}:alice"})
    with wire.connect(server.address) as root:
        alice = create_user(root, "alice")
    for _ in range(50):  # what comes with the connect is not answered before it is known who asks
        user, address = who(path)
        assert user == alice
        assert address.startswith(f"unix:{MINE}:")
    with wire.Wire(path) as connection:
        assert connection.status(wire.CREATE_STREAM, wire.str8("s")) == Status.UNAUTHORIZED
        connection.login()
        connection.create_stream("s")
        connection.request(wire.LOGOUT_USER)
        assert connection.status(wire.GET_STREAMS) == Status.UNAUTHENTICATED


def create_user(root: wire.Wire, name: str, status: int = 1) -> int:
    payload = wire.str8(name) + wire.str8("secret") + bytes([status, 0]) + struct.pack("<I", 0)
    return int(struct.unpack_from("<I", root.request(33, payload))[0])


def test_nobody_is_anybody_without_an_entry_not_even_uid_0(make_server: MakeServer, path: str) -> None:
    make_server(env={"SHARDD_UNIX_PATH": path, "SHARDD_UNIX_USERS": f"{MINE + 1}:iggy"} | ONE_SHARD)
    with wire.Wire(path) as connection:
        assert connection.status(wire.GET_ME) == Status.UNAUTHENTICATED
        connection.login()


def test_a_user_who_does_not_exist_or_is_inactive_is_nobody(make_server: MakeServer, path: str) -> None:
    server = make_server(env={"SHARDD_UNIX_PATH": path, "SHARDD_UNIX_USERS": f"{MINE}:alice"} | ONE_SHARD)
    with wire.connect(server.address) as root, wire.Wire(path) as early:
        assert early.status(wire.GET_ME) == Status.UNAUTHENTICATED
        alice = create_user(root, "alice", status=2)
        with wire.Wire(path) as connection:
            assert connection.status(wire.GET_ME) == Status.UNAUTHENTICATED
        root.request(34, wire.identifier(alice))
        alice = create_user(root, "alice")
        with wire.Wire(path) as connection:
            assert connection.status(wire.GET_ME) == 0
            root.request(34, wire.identifier(alice))
            assert connection.status(wire.GET_STREAMS) != 0, "the account is gone"
        with wire.Wire(path) as connection:
            assert connection.status(wire.GET_ME) == Status.UNAUTHENTICATED


@needs_root
def test_users_of_this_host_are_told_apart_by_the_kernel(make_server: MakeServer, for_all: str) -> None:
    users = f"0:iggy,{STRANGER}:alice"
    server = make_server(
        env={"SHARDD_UNIX_PATH": for_all, "SHARDD_UNIX_MODE": "0666", "SHARDD_UNIX_USERS": users} | ONE_SHARD
    )
    with wire.connect(server.address) as root:
        alice = create_user(root, "alice")
    assert who(for_all)[0] == 0
    user, address = as_other_user(lambda: who(for_all))
    assert user == alice and address.startswith(f"unix:{STRANGER}:")


@needs_root
def test_a_socket_that_changes_hands_stays_that_of_who_connected(make_server: MakeServer, for_all: str) -> None:
    make_server(env={"SHARDD_UNIX_PATH": for_all, "SHARDD_UNIX_MODE": "0666", "SHARDD_UNIX_USERS": "0:iggy"})
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            made = socket.socket(socket.AF_UNIX)
            made.connect(for_all)
            socket.send_fds(theirs, [b"x"], [made.fileno()])
        finally:
            os._exit(0)
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(child, 0)
    with socket.socket(fileno=fds[0]) as given:
        given.settimeout(60)
        given.sendall(struct.pack("<II", 4, wire.GET_ME))
        assert struct.unpack("<II", given.recv(8))[0] == Status.UNAUTHENTICATED
    ours.close()
    theirs.close()


# ---- limits ----


@needs_root
def test_connections_are_limited_by_uid(make_server: MakeServer, for_all: str) -> None:
    limits = {"SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "3"}
    server = make_server(env={"SHARDD_UNIX_PATH": for_all, "SHARDD_UNIX_MODE": "0666"} | limits)

    def statuses() -> list[int]:
        connections = [wire.Wire(for_all) for _ in range(6)]
        found = [unsolicited_or_ping(each) for each in connections]
        for each in connections:
            each.close()
        return sorted(found)

    with wire.connect(server.address), wire.connect(server.address):  # another address
        assert as_other_user(statuses) == [0] * 3 + [Status.DISCONNECTED] * 3
        assert eventually(lambda: statuses() == [0] * 3 + [Status.DISCONNECTED] * 3)


def unsolicited_or_ping(connection: wire.Wire) -> int:
    with contextlib.suppress(OSError):
        connection.socket.sendall(struct.pack("<II", 4, wire.PING))
    return int(struct.unpack("<II", connection.socket.recv(8))[0])


@pytest.mark.io_engine
def test_descriptors_that_a_client_sends_along_stay_nowhere(make_server: MakeServer, path: str) -> None:
    server = make_server(env={"SHARDD_UNIX_PATH": path} | ONE_SHARD)
    worker = psutil.Process(server.worker_pids()[0])
    ping = struct.pack("<II", 4, wire.PING)
    with wire.connect(path) as connection:
        before = worker.num_fds()
        with Path(os.devnull).open("rb") as gift:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [gift.fileno()] * 100))]
            for _ in range(200):
                connection.socket.sendmsg([ping], rights)
                assert connection.socket.recv(8) == bytes(8)
        assert worker.num_fds() <= before + 2


# ---- life ----


@pytest.mark.io_engine
def test_the_path_goes_with_the_server_and_a_killed_one_is_followed(make_server: MakeServer, path: str) -> None:
    server = make_server(env={"SHARDD_UNIX_PATH": path} | ONE_SHARD)
    server.kill_supervisor()
    assert Path(path).exists()
    assert eventually(lambda: not connects(path))
    server.start()
    wire.connect(path).close()
    assert f", unix {path}, ready" in server.log()
    assert server.stop() == 0
    assert not Path(path).exists()


def connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def test_a_start_that_cannot_have_its_path_ends_with_one_sentence(make_server: MakeServer, path: str) -> None:
    Path(path).write_text("precious")
    server = make_server(env={"SHARDD_UNIX_PATH": path} | ONE_SHARD, start=False)
    server.spawn()
    assert server.wait() == 1
    assert f"unix.path: {path} is there, and no socket" in server.log()
    assert len([line for line in server.log().splitlines() if line]) == 1
    assert Path(path).read_text() == "precious"


def test_a_second_server_at_the_same_path_is_refused(make_server: MakeServer, path: str) -> None:
    first = make_server(env={"SHARDD_UNIX_PATH": path} | ONE_SHARD)
    second: Server = make_server(env={"SHARDD_UNIX_PATH": path} | ONE_SHARD, name="other", start=False)
    second.spawn()
    assert second.wait() == 1
    assert path in second.log()
    wire.connect(path).close()
    assert first.stop() == 0
