"""Consumer groups over very many partitions: what their members do costs them, not shard 0 and not the others."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from pathlib import Path

from tests.conftest import MakeServer
from tests.support import wire
from tests.support.server import Server

PARTITIONS = 20_000
CREATE_GROUP, JOIN_GROUP = 602, 604
ROUNDS = 3
WAIT_S = 60.0
GROUP = wire.identifier("s") + wire.identifier("t") + wire.identifier("g")


def wide_topic(connection: wire.Wire) -> None:
    connection.create_topic(connection.create_stream("s"), "t", 1000)
    more = wire.identifier("s") + wire.identifier("t") + struct.pack("<I", 1000)
    for _ in range(PARTITIONS // 1000 - 1):
        connection.request(wire.CREATE_PARTITIONS, more)
    connection.request(CREATE_GROUP, wire.identifier("s") + wire.identifier("t") + wire.str8("g"))


def rejoin(server: Server, failed: list[str]) -> None:
    """As a client library: connect, join, poll, and from the beginning when the connection breaks."""
    for _ in range(ROUNDS):
        try:
            with wire.connect(server.address, timeout_s=30.0) as member:
                member.request(JOIN_GROUP, GROUP)
                for _ in range(3):
                    member.poll("s", "t", None, strategy=wire.POLL_NEXT, who=wire.group("g"))
        except (OSError, wire.StatusError) as error:
            failed.append(repr(error))


def test_members_that_join_again_and_again_do_not_stop_shard_0(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server({"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"})
    with wire.connect(server.address, timeout_s=30.0) as connection:
        wide_topic(connection)
        workers, failed = server.running_workers(), list[str]()
        members = [threading.Thread(target=rejoin, args=(server, failed)) for _ in range(3)]
        for each in members:
            each.start()
        deadline = time.monotonic() + WAIT_S
        while any(each.is_alive() for each in members):
            assert time.monotonic() < deadline
            with contextlib.suppress(ConnectionError):  # what is asserted below says more
                connection.ping()
            time.sleep(0.02)
    assert server.running_workers() == workers
    assert "gives no sign of life" not in server.log()
    assert failed == []
