"""Members of released clients that are stopped, so they never send PING: they have announced no heartbeat, and keep
their partitions. A member that has announced one loses them meanwhile."""

from __future__ import annotations

import signal
import struct
import time
from pathlib import Path
from typing import Final

import pytest

from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.heartbeats import TIMEOUT_MIN_MS
from tests.compat.matrix import APACHE_IGGY, python_of
from tests.compat.members import GROUP, PATIENCE_S, STREAM, TOPIC, Member
from tests.support import wire
from tests.support.server import Server
from tests.support.wire import Wire

PARTITIONS: Final = 2 * len(APACHE_IGGY)
PLACE = wire.identifier(STREAM) + wire.identifier(TOPIC)
# Making an environment fetches the client once.
pytestmark = pytest.mark.timeout(1800)


def until_shared(root: Wire, count: int) -> dict[int, list[int]]:
    """The partitions of the members, when each of so many has some."""
    deadline = time.monotonic() + 2 * PATIENCE_S
    while len(members := root.group_members(STREAM, TOPIC, GROUP)) != count or not all(members.values()):
        assert time.monotonic() < deadline, members
        time.sleep(0.05)
    return members


def evicted(server: Server) -> None:
    """A member of another group that has announced a heartbeat comes, is silent, and hears that it is out."""
    with wire.connect(server.address) as silent:
        silent.request(Code.CREATE_CONSUMER_GROUP, PLACE + wire.str8("announced"))
        silent.request(ExtensionCode.ANNOUNCE_HEARTBEAT, struct.pack("<I", TIMEOUT_MIN_MS))
        silent.request(Code.JOIN_CONSUMER_GROUP, PLACE + wire.identifier("announced"))
        assert silent.reply() == (Status.STALE_CLIENT, b"")


@pytest.mark.parametrize(
    "silent_s",
    [
        pytest.param(10.0, id="10 seconds"),
        pytest.param(600.0, id="10 minutes", marks=pytest.mark.slow),
    ],
)
def test_silent_members_of_released_clients_keep_their_partitions(silent_s: float, tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, wire.connect(server.address) as root:
        root.create_stream(STREAM)
        root.create_topic(STREAM, TOPIC, PARTITIONS)
        root.request(Code.CREATE_CONSUMER_GROUP, PLACE + wire.str8(GROUP))
        pythons = [(f"apache-iggy {version}", str(python_of(f"apache-iggy {version}"))) for version in APACHE_IGGY]
        members = [Member(client, python, server.address) for client, python in pythons]
        try:
            before = until_shared(root, len(members))
            for member in members:
                member.send_signal(signal.SIGSTOP)
            end = time.monotonic() + silent_s
            evicted(server)
            while time.monotonic() < end:
                assert root.group_members(STREAM, TOPIC, GROUP) == before
                time.sleep(min(5.0, silent_s / 10))
            assert root.group_members(STREAM, TOPIC, GROUP) == before
            for member in members:
                member.send_signal(signal.SIGCONT)
            for partition in range(PARTITIONS):
                payload = str(partition).encode()
                root.send(STREAM, TOPIC, wire.to_partition(partition), [wire.message(payload)])
            deadline = time.monotonic() + PATIENCE_S
            while not all(member.got for member in members):
                assert time.monotonic() < deadline, {each.client: each.got for each in members}
                time.sleep(0.05)
        finally:
            for member in members:
                member.send_signal(signal.SIGCONT)
                member.end()
