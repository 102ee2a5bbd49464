"""Each thing that waits beside the places that users share: while a crowd of one user waits for the device, for
messages, or for the turn of a password, a stranger is served. Nothing is measured: the crowd is shown to wait still
when the stranger has been served."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec
import pytest
from immutables import Map

from shardd.protocol.account_requests import CreateUserRequest, UpdatePermissionsRequest
from shardd.protocol.codes import Code
from shardd.protocol.door_frames import Command, Kind
from shardd.protocol.errors import Status
from shardd.protocol.permissions import Permissions, StreamPermissions
from shardd.transport.door.places import REQUESTS_MAX
from tests.doors.door_server import DoorServer, FrameWire
from tests.hostile.crowd import allow_descriptors
from tests.support import wire
from tests.support.frozen_disk import FrozenDisk, mounted_disk
from tests.support.serving import Serving

pytestmark = pytest.mark.usefixtures("hashes_as_served")

CROWD: Final = REQUESTS_MAX * 3 // 2
ATTACKER: Final = "198.51.100.1:7"
PASSWORD: Final = "attacker-password"
RIGHTS: Final = {"manage_users": True, "manage_streams": True, "send_messages": True, "poll_messages": True}


def prepare(server: DoorServer) -> None:
    with wire.connect(server.address) as root:
        root.create_topic(root.create_stream("s"), "t", 2)
        root.create_topic("s", "purged", 1)
    with server.relay(0) as relay:
        user = {"username": "attacker", "password": PASSWORD, "status": 1, "permissions": {**RIGHTS}}
        assert relay.command(relay.proven().login(relay.open()), "create_user", user) == 0


SERVER: Final = Serving(partial(DoorServer, doors=("relay",)), fill=prepare)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DoorServer, FrozenDisk]]:
    with (
        mounted_disk(tmp_path_factory.mktemp("frozen") / "data") as disk,
        DoorServer(disk.place, doors=("relay",)) as running,
    ):
        prepare(running)
        yield running, disk


# ---- the places of a door at a worker ----


def ask(relay: FrameWire, handle: int, name: str, request: object = None) -> int:
    """The number of its answer."""
    return relay.send(Kind.COMMAND, Command(handle, name, msgspec.Raw(msgspec.msgpack.encode(request or {}))))


def waits_for_messages(relay: FrameWire, handle: int) -> list[int]:
    place = {"stream": "s", "topic": "t", "partition": 0, "offset": 1 << 40, "timeout_ms": 60_000}
    return [ask(relay, handle, "wait_for_messages", place) for _ in range(CROWD)]


def password_changes(relay: FrameWire, handle: int) -> list[int]:
    change = {"user": "attacker", "current_password": "wrong", "new_password": "another"}
    return [ask(relay, handle, "change_password", change) for _ in range(CROWD)]


Begin = Callable[[FrameWire, int], list[int]]
WAITERS: Final[dict[str, Begin]] = {
    "waits for messages": waits_for_messages,
    "the line of passwords": password_changes,
}


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("begin", WAITERS.values(), ids=WAITERS.keys())
def test_a_stranger_at_a_door_is_served_while_a_crowd_waits(server: DoorServer, begin: Begin, shard: int) -> None:
    with server.relay(shard) as relay:
        relay.proven()
        stranger = relay.login(relay.open())
        attacker = relay.login(relay.open(ATTACKER), "attacker", PASSWORD)
        crowd = set(begin(relay, attacker))
        for _ in range(3):
            assert relay.answer(ask(relay, stranger, "get_streams"))[0] == 0
        assert len(crowd.intersection(relay.answered)) < CROWD // 4


def new_streams(relay: FrameWire, handle: int) -> list[int]:
    return [ask(relay, handle, "create_stream", {"name": f"{id(relay)}, {number}"}) for number in range(CROWD)]


def purges(relay: FrameWire, handle: int) -> list[int]:
    """One at a time passes the gate of deletions (DeletionGate)."""
    return [ask(relay, handle, "purge_topic", {"stream": "s", "topic": "purged"}) for _ in range(CROWD)]


CHANGES: Final[dict[str, Begin]] = {"new streams": new_streams, "purges at the gate": purges}


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("begin", CHANGES.values(), ids=CHANGES.keys())
def test_a_stranger_at_a_door_reads_while_changes_of_a_crowd_wait_for_the_device(
    on_disk: tuple[DoorServer, FrozenDisk], begin: Begin, shard: int
) -> None:
    server, disk = on_disk
    with server.relay(shard) as relay:
        relay.proven()
        stranger = relay.login(relay.open())
        attacker = relay.login(relay.open(ATTACKER), "attacker", PASSWORD)
        with disk.frozen():
            crowd = set(begin(relay, attacker))
            for _ in range(3):
                assert relay.answer(ask(relay, stranger, "get_streams"))[0] == 0
            assert not crowd.intersection(relay.answered)
        for each in crowd:
            assert relay.answer(each)[0] == 0, "a change that has begun is made"


# ---- the engine's own port ----


CHANGE: Final = wire.frame(37, wire.identifier("attacker") + wire.str8("wrong") + wire.str8("another"))
FRAMES: Final[dict[str, Callable[[int], bytes]]] = {
    "changes of the metadata for the device": lambda number: wire.frame(wire.CREATE_STREAM, wire.str8(f"s{number}")),
    "the line of passwords": lambda _: CHANGE,
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
def test_a_stranger_over_tcp_is_served_while_a_crowd_waits(
    on_disk: tuple[DoorServer, FrozenDisk], frame: Callable[[int], bytes]
) -> None:
    server, disk = on_disk
    allow_descriptors(2 * CROWD)
    with contextlib.ExitStack() as held:
        stranger = held.enter_context(wire.connect(server.address))
        stranger_token = stranger.create_token(f"token {id(frame)}")
        with wire.Wire(server.address) as attacker:
            attacker.login("attacker", PASSWORD)
            token = attacker.create_token(f"token {id(frame)}")
        crowd = [held.enter_context(wire.Wire(server.address)) for _ in range(CROWD)]
        for each in crowd:
            each.login_with_token(token)
        with disk.frozen():
            for number, each in enumerate(crowd):
                each.send_bytes(frame(number))
            for _ in range(3):
                stranger.ping()
                stranger.request(wire.GET_STREAMS)
                newcomer = held.enter_context(wire.Wire(server.address))
                newcomer.login_with_token(stranger_token)
                newcomer.poll("s", "t", 0, strategy=wire.POLL_FIRST, count=1)
            poller = select.poll()
            for each in crowd:
                poller.register(each.socket, select.POLLIN)
            assert len(poller.poll(0)) < CROWD // 4, "the crowd does not wait"


LARGE_CROWD: Final = 64  # at two workers of 16 places each
LARGE: Final = Permissions(streams=Map({number: StreamPermissions() for number in range(1, 600)}))


def test_large_requests_of_one_user_that_wait_leave_a_place_to_another_user(
    on_disk: tuple[DoorServer, FrozenDisk],
) -> None:
    """Of two workers: Python has so many requests above 4 KiB at a time (LARGE_REQUESTS_MAX)."""
    server, disk = on_disk
    change = wire.frame(Code.UPDATE_PERMISSIONS, UpdatePermissionsRequest("another", LARGE).encode())
    known = CreateUserRequest("another", PASSWORD, 1, LARGE).encode()
    with contextlib.ExitStack() as held:
        others = [held.enter_context(wire.connect(server.address)) for _ in range(4)]
        others[0].request(Code.CREATE_USER, CreateUserRequest("another", PASSWORD, 1, None).encode())
        crowd = [held.enter_context(wire.Wire(server.address)) for _ in range(LARGE_CROWD)]
        token = ""
        for each in crowd:
            if token:
                each.login_with_token(token)
            else:
                each.login("attacker", PASSWORD)
                token = each.create_token("large")
        with disk.frozen():
            for each in crowd:
                each.send_bytes(change)
            for other in others:
                other.send_bytes(wire.frame(Code.CREATE_USER, known))
                assert other.reply()[0] == Status.USER_ALREADY_EXISTS, "there was no place for it"
            poller = select.poll()
            for each in crowd:
                poller.register(each.socket, select.POLLIN)
            assert not poller.poll(0), "the crowd does not wait"
