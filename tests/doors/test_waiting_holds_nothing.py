"""Who waits for a turn holds nothing that others need: whatever waits in a line of a worker fills no place and no
budget of the door, and somebody else is served beside it. Nothing is measured: it is counted how many of the crowd have
their answer when somebody else gets his."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import pytest

from shardd.protocol.door_frames import Command, Kind, Login
from shardd.transport.door.places import REQUESTS_MAX
from tests.doors.door_server import DoorServer, FrameWire
from tests.support.serving import Serving

pytestmark = pytest.mark.usefixtures("hashes_as_served")

CROWD: Final = REQUESTS_MAX * 5 // 2
ATTACKER: Final = "198.51.100.1:7"
PASSWORD: Final = "attacker-password"
SETTINGS: Final = {"SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "2000"}


def fill(server: DoorServer) -> None:
    with server.relay(0) as relay:
        handle = relay.proven().login(relay.open())
        assert relay.command(handle, "create_user", new_user("attacker")) == 0


SERVER: Final = Serving(partial(DoorServer, doors=("relay",)), SETTINGS, fill=fill)


def new_user(name: str) -> dict[str, object]:
    return {"username": name, "password": PASSWORD, "status": 1, "permissions": None}


def ask(relay: FrameWire, handle: int, name: str, request: object = None) -> int:
    """The number of its answer."""
    return relay.send(Kind.COMMAND, Command(handle, name, msgspec.Raw(msgspec.msgpack.encode(request or {}))))


def change_passwords(relay: FrameWire) -> list[int]:
    handle = relay.login(relay.open(ATTACKER), "attacker", PASSWORD)
    change = {"user": "attacker", "current_password": "wrong", "new_password": "another"}
    return [ask(relay, handle, "change_password", change) for _ in range(CROWD)]


def log_in(relay: FrameWire) -> list[int]:
    clients = [relay.open(ATTACKER) for _ in range(CROWD)]
    return [relay.send(Kind.LOGIN, Login(client, "attacker", "wrong")) for client in clients]


def create_users(relay: FrameWire) -> list[int]:
    """Each waits for a hash of its password."""
    handle = relay.login(relay.open(ATTACKER))
    return [ask(relay, handle, "create_user", new_user(f"user-{number}")) for number in range(CROWD)]


def ask_for_snapshots(relay: FrameWire) -> list[int]:
    """One after the other is made; all that wait are gone with their door."""
    handle = relay.login(relay.open(ATTACKER))
    return [ask(relay, handle, "get_snapshot", {"compression": 1, "types": [4]}) for _ in range(CROWD)]


WAITERS: Final = {
    "changes of a password": change_passwords,
    "logins": log_in,
    "new users": create_users,
    "snapshots": ask_for_snapshots,
}


@pytest.mark.parametrize("begin", WAITERS.values(), ids=WAITERS.keys())
def test_a_crowd_that_waits_in_a_line_takes_no_place_of_others(
    server: DoorServer, begin: Callable[[FrameWire], list[int]]
) -> None:
    with server.relay(0) as relay:
        handle = relay.proven().login(relay.open())
        crowd = set(begin(relay))
        for _ in range(3):
            assert relay.answer(ask(relay, handle, "get_streams"))[0] == 0
        assert len(crowd.intersection(relay.answered)) < CROWD // 4
