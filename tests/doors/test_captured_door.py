"""A door in wrong hands is no more than its present clients: what it may do, and what it costs the others."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from shardd.protocol.door_figures import What
from shardd.protocol.door_frames import (
    REQUEST_BYTES_MAX,
    CloseClient,
    Command,
    Figures,
    Kind,
    Login,
    LoginWithToken,
    Logout,
    OpenClient,
    Prove,
    Request,
    encode_request,
)
from tests.doors.door_server import WAIT_S, DoorServer, FrameWire
from tests.support import wire
from tests.support.descriptors import links
from tests.support.other_user import as_stranger, needs_root

pytestmark = pytest.mark.usefixtures("hashes_as_served")

EMPTY = msgspec.Raw(msgspec.msgpack.encode({}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorServer]:
    """Its workers must live through all of this."""
    with DoorServer(tmp_path_factory.mktemp("captured") / "data", doors=("json", "relay")) as running:
        with wire.connect(running.address) as tcp:
            tcp.create_topic(tcp.create_stream("s"), "t", 4)
        workers = running.worker_pids()
        yield running
        assert running.worker_pids() == workers
        assert "Traceback" not in running.log(), running.log()


@pytest.fixture
def captured(server: DoorServer) -> Iterator[FrameWire]:
    with server.relay(0) as relay:
        yield relay.proven()


def others_go_on(server: DoorServer) -> None:
    with wire.connect(server.address) as tcp, server.root() as other_door:
        for partition in range(4):
            tcp.send("s", "t", wire.to_partition(partition), [wire.message(b"x")])
        other_door.ask("ping")


def test_a_door_gets_nothing_without_a_login(captured: FrameWire) -> None:
    captured.open()
    for handle in (0, 1, 2, 3, 2**31, 2**63, -1):
        assert captured.command(handle, "get_users") == 40
        assert captured.ask(Kind.LOGOUT, Logout(handle))[0] == 40
    for what in What:
        assert captured.ask(Kind.FIGURES, Figures(what))[0] == 41
    for client in (0, 2, 999, -1):
        assert captured.ask(Kind.LOGIN, Login(client, "iggy", "iggy"))[0] == 100
        assert captured.ask(Kind.CLOSE_CLIENT, CloseClient(client))[0] == 100
    assert captured.ask(Kind.LOGIN_WITH_TOKEN, LoginWithToken(1, "x" * 50))[0] == 20


def test_handles_of_another_door_and_another_connection_are_worth_nothing(server: DoorServer) -> None:
    with server.root() as root, server.root(), server.relay(0) as first:
        root.ask("ping")
        handle = first.proven().login(first.open())
        assert first.command(handle, "ping") == 0
        with server.relay(1) as other_worker:
            other_worker.proven()
            assert [other_worker.command(each, "ping") for each in range(handle + 3)] == [40] * (handle + 3)
        with server.relay(0) as second:
            second.proven()
            assert first.is_closed(), "a door has one connection, the newest"
            second.open()
            assert [second.command(each, "ping") for each in range(handle + 3)] == [40] * (handle + 3)


def test_a_handle_ends_with_its_logout_its_next_login_and_its_client(captured: FrameWire) -> None:
    client = captured.open()
    handles = [captured.login(client), captured.login(client)]
    assert [captured.command(each, "ping") for each in handles] == [40, 0]
    assert captured.ask(Kind.LOGOUT, Logout(handles[1]))[0] == 0
    assert captured.command(handles[1], "ping") == 40
    handles.append(captured.login(client))
    assert len(set(handles)) == 3
    assert captured.ask(Kind.CLOSE_CLIENT, CloseClient(client))[0] == 0
    assert captured.command(handles[2], "ping") == 40
    assert captured.ask(Kind.LOGIN, Login(client, "iggy", "iggy"))[0] == 100


def test_a_handle_ends_with_its_user_whoever_gets_the_id_next(server: DoorServer, captured: FrameWire) -> None:
    with server.root() as root:
        user = {"username": "mallory", "password": "secret", "status": 1}
        root.ask("create_user", {**user, "permissions": {"read_users": True}})
        handle = captured.login(captured.open(), "mallory", "secret")
        assert captured.command(handle, "get_users") == 0
        root.ask("delete_user", {"user": "mallory"})
        assert captured.command(handle, "get_users") == 40
        root.ask("create_user", {**user, "permissions": {"read_users": True}})
        assert captured.command(handle, "get_users") == 40
        root.ask("delete_user", {"user": "mallory"})


def test_a_client_may_do_what_its_user_may_and_no_more(server: DoorServer, captured: FrameWire) -> None:
    with server.root() as root:
        root.ask("create_user", {"username": "guest", "password": "secret", "status": 1})
        handle = captured.login(captured.open(), "guest", "secret")
        rights = {"manage_users": True, "streams": {0: {"manage_stream": True, "topics": {0: {"read_topic": True}}}}}
        for name, request in (
            ("get_users", {}),
            ("create_user", {"username": "guest2", "password": "secret", "status": 1, "permissions": rights}),
            ("update_permissions", {"user": "guest", "permissions": rights}),
            ("update_permissions", {"user": "guest", "permissions": {"streams": {key: {} for key in range(30_000)}}}),
            ("delete_stream", {"stream": "s"}),
            ("get_snapshot", {"compression": 1, "types": [100]}),
        ):
            assert captured.command(handle, name, request) == 41, name
        root.ask("update_permissions", {"user": "guest", "permissions": {"manage_users": True}})
        assert captured.command(handle, "update_permissions", {"user": "guest", "permissions": rights}) == 0
        assert root.ask("get_user", {"user": "guest"})["permissions"]["streams"]["0"]["topics"]["0"]["read_topic"]
        root.ask("delete_user", {"user": "guest"})


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (0, b""),
        (99, b"\xc0"),
        (128, b"\x00" * 5),
        (Kind.COMMAND, b""),
        (Kind.COMMAND, b"\xc1"),
        (Kind.COMMAND, msgspec.msgpack.encode([1, "ping"])),
        (Kind.COMMAND, msgspec.msgpack.encode(["1", "ping", {}])),
        (Kind.COMMAND, msgspec.msgpack.encode([2**64 - 1, "ping", {}, 1])),
        (Kind.COMMAND, b"\x93\x01\xa4ping" + b"\x91" * 100_000),
        (Kind.LOGIN, msgspec.msgpack.encode({"client": 1})),
        (Kind.LOGIN, b"\x93\x01\xa1\xff\xa1x"),
        (Kind.OPEN_CLIENT, msgspec.msgpack.encode([None])),
        (Kind.PROVE, msgspec.msgpack.encode(["door-json.1", "0" * 64])),
        (Kind.PROVE, msgspec.msgpack.encode(["shard-1.1", "0" * 64])),
    ],
)
def test_a_frame_that_is_wrong_ends_the_connection_and_nothing_else(
    server: DoorServer, kind: int, payload: bytes
) -> None:
    with server.relay(1) as relay:
        relay.proven().send_raw(kind, payload)
        assert relay.is_closed()
    with server.root() as root:
        root.ask("ping")


@pytest.mark.parametrize("length", [0, 8, REQUEST_BYTES_MAX, 2**31, 2**32 - 1])
def test_a_length_that_is_wrong_ends_the_connection(server: DoorServer, length: int) -> None:
    with server.relay(0) as relay:
        relay.proven().socket.sendall(struct.pack("<I", length) + bytes(9))
        assert relay.is_closed()


@pytest.mark.parametrize(
    "address",
    ["", "x", "1.2.3.4", "1.2.3.4:", "1.2.3.4:65536", "1.2.3.4:-1", "300.1.1.1:1", "[::1]:x", "[fe80::1%eth0]:1",
     "1.2.3.4:1\nuser 0", "1.2.3.4:\u0661", "localhost:1", "x" * 100_000],
)  # fmt: skip
def test_what_is_not_an_address_is_refused(captured: FrameWire, address: str) -> None:
    assert captured.ask(Kind.OPEN_CLIENT, OpenClient(address))[0] == 4


@pytest.mark.parametrize(
    "proof",
    [("door-relay.1", "0" * 64), ("door-json.1", "0" * 64), ("shard-1.1", "0" * 64), ("door-relay.2", "0" * 64)],
)
def test_a_wrong_proof_is_closed_without_an_answer(server: DoorServer, proof: tuple[str, str]) -> None:
    with server.relay(0, *proof) as relay:
        assert relay.is_closed()
        assert not relay.answers
    others_go_on(server)


@pytest.mark.io_engine
def test_a_flood_that_is_never_read_costs_the_door_alone(server: DoorServer) -> None:
    """Polls of many megabytes, and sends beyond every bound: the worker stops reading, others go on."""
    with wire.connect(server.address) as tcp:
        for _ in range(20):
            tcp.send("s", "t", wire.to_partition(0), [wire.message(bytes(1 << 20))])
    before = [psutil.Process(pid).memory_info().rss for pid in server.worker_pids()]
    with server.relay(0) as relay:
        handle = relay.proven().login(relay.open())
        consumer = {"kind": 1, "identifier": 1}
        poll = {"consumer": consumer, "stream": "s", "topic": "t", "partition": 0, "strategy": 1, "value": 0}
        request = msgspec.Raw(msgspec.msgpack.encode({**poll, "count": 1000, "auto_commit": False}))
        frame = encode_request(7, Kind.COMMAND, Command(handle, "poll_messages", request))
        relay.socket.settimeout(0.5)
        sent = 0
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                sent += relay.socket.send(frame * 1000)
            except TimeoutError:
                break
        assert time.monotonic() < deadline, f"it reads on after {sent} bytes"
        others_go_on(server)
        after = [psutil.Process(pid).memory_info().rss for pid in server.worker_pids()]
        assert max(b - a for a, b in zip(before, after, strict=True)) < 300 << 20, "bytes of a flood that nobody reads"
    others_go_on(server)


@pytest.mark.io_engine
def test_a_flood_of_small_requests_lets_others_go_on(server: DoorServer) -> None:
    with server.relay(0) as relay:
        handle = relay.proven().login(relay.open())
        frame = encode_request(7, Kind.COMMAND, Command(handle, "ping", EMPTY))
        relay.socket.settimeout(0.5)
        try:
            for _ in range(200):
                relay.socket.sendall(frame * 1000)
        except TimeoutError:
            pass  # its answers are not read
        others_go_on(server)


def test_unknown_commands_and_overlong_requests_are_refused(captured: FrameWire) -> None:
    handle = captured.login(captured.open())
    for name in ("", "login", "logout", "__init__", "handle", "x" * 100_000, "metadata.submit"):
        assert captured.command(handle, name) == 3
    assert captured.command(handle, "join_consumer_group") == 5
    assert captured.command(handle, "create_stream", {"name": "x" * (2 << 20)}) == 3
    assert captured.command(handle, "get_stream", {"stream": "x" * 20_000}) == 3
    assert captured.command(handle, "poll_messages", {"count": 1}) == 3
    send = {"stream": "s", "topic": "t", "count": 1, "partitioning": {"kind": 2, "partition": 0}}
    for batch in (b"", b"x", bytes(16), bytes(80), os.urandom(300), bytes(1 << 20)):
        assert captured.command(handle, "send_messages", {**send, "batch": batch}) > 0
    assert captured.command(handle, "send_messages", {**send, "count": -1, "batch": b""}) == 3
    assert captured.command(handle, "ping") == 0


def test_a_client_of_a_door_is_no_member_of_a_group(captured: FrameWire) -> None:
    handle = captured.login(captured.open())
    topic = {"stream": "s", "topic": "t"}
    assert captured.command(handle, "create_consumer_group", {**topic, "name": "g"}) == 0
    as_member = {**topic, "consumer": {"kind": 2, "identifier": "g"}, "partition": 0}
    assert captured.command(handle, "join_consumer_group", {**topic, "group": "g"}) == 5
    poll = {**as_member, "strategy": 5, "value": 0, "count": 1, "auto_commit": True}
    assert captured.command(handle, "poll_messages", poll) == 5006
    assert captured.command(handle, "store_consumer_offset", {**as_member, "offset": 0}) == 5006
    assert captured.command(handle, "delete_consumer_offset", as_member) == 5006
    assert captured.command(handle, "get_consumer_offset", as_member) == 0


# ---- who is no door ----

STRANGER = """
answers = 0
for path in sys.argv[2:]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2.0)
        try:
            client.connect(path)
            client.sendall(bytes.fromhex(sys.argv[1]))
            answers += len(client.recv(100)) > 0
        except OSError:
            pass
print(answers)
"""


def places(pid: int) -> list[str]:
    """Ways to unix sockets that listen, for who may look into the descriptors of a process."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if link.is_socket() and not str(link.readlink()).startswith("socket:"):
            found.append(str(link))
    return found


def test_a_door_has_no_way_to_the_bus(server: DoorServer) -> None:
    """It inherits two places, one at each worker; the supervisor has four."""
    assert len(places(server.pid)) == 4
    assert len(places(server.door("json").pid)) == 2
    bus = {Path(path).stat().st_ino for pid in server.worker_pids() for path in places(pid)}
    assert not bus & {Path(path).stat().st_ino for path in places(server.door("json").pid)}
    targets = set(links(server.door("json").pid))
    places_of_workers = {f"{server.data_dir}/.sockets/{number} (deleted)" for number in (2, 3)}
    of_the_data = {each for each in targets if each.startswith((str(server.data_dir) + "/", "/memfd:"))}
    assert of_the_data == places_of_workers


def frames_of_a_stranger() -> list[Request]:
    return [Prove("door-json.1", "0" * 64), Prove("", ""), OpenClient("192.0.2.1:1")]


@pytest.mark.parametrize("said", frames_of_a_stranger(), ids=["a key", "nothing", "no proof"])
def test_a_program_of_the_same_user_without_a_key_is_closed(server: DoorServer, said: Request) -> None:
    kind = Kind.PROVE if isinstance(said, Prove) else Kind.OPEN_CLIENT
    arguments = [encode_request(1, kind, said).hex(), *places(server.door("json").pid)]
    command = [sys.executable, "-c", f"import socket, sys\n{STRANGER}", *arguments]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "0\n"
    others_go_on(server)


@needs_root
def test_another_user_cannot_reach_the_socket(server: DoorServer) -> None:
    arguments = [encode_request(1, Kind.PROVE, Prove("door-json.1", "0" * 64)).hex(), *places(server.pid)]
    command = as_stranger("socket, sys", STRANGER, *arguments)
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "0\n"


def test_connections_that_prove_nothing_keep_no_door_out(server: DoorServer) -> None:
    crowd = []
    for number in range(200):
        silent = socket.socket(socket.AF_UNIX)
        silent.connect(places(server.pid)[number % 4])
        crowd.append(silent)
    others_go_on(server)
    door = server.door("json")
    door.kill()
    for silent in crowd[100:]:
        silent.close()
    server.door("json", other_than=door.pid)
    others_go_on(server)
    for silent in crowd:
        silent.close()
