"""A shard that cannot start any more is given up; the others go on, and its partitions are told after the hold."""

from __future__ import annotations

import os
import signal
import struct

from shardd.engine import owner
from shardd.protocol.namespaces import namespace
from tests.conftest import MakeServer
from tests.server.test_supervisor import wait_until
from tests.support import wire
from tests.support.wire import Wire, connect

LOST = 11001
VERSION_AT = 8  # of the header of state.messages
SHARDS, PARTITIONS = 2, 16


def test_a_given_up_shard_and_the_ones_that_go_on(make_server: MakeServer) -> None:
    server = make_server({"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": str(SHARDS)})
    with Wire(server.address) as client:
        client.login()
        client.create_stream("s")
        client.create_topic("s", "t", PARTITIONS)
    log = server.data_dir / "state.messages"
    header = log.read_bytes()[:16]
    with log.open("r+b") as file:
        file.seek(VERSION_AT)
        file.write(struct.pack("<I", 99))
    os.kill(server.running_workers()[1], signal.SIGKILL)
    wait_until(lambda: "shard 1 is given up; the others go on without its partitions" in server.log(), "given up")
    with log.open("r+b") as file:
        file.write(header)
    mine = [number for number in range(PARTITIONS) if owner(namespace(0, 0, number), SHARDS) == 0]
    lost = [number for number in range(PARTITIONS) if number not in mine]
    assert mine
    assert lost
    with connect(server.address) as client:
        client.login()
        client.send("s", "t", wire.to_partition(mine[0]), [wire.message(b"goes on")])
        request = wire.batch("s", "t", wire.to_partition(lost[0]), [wire.message(b"lost")])
        assert client.status(wire.SEND_MESSAGES, request) == LOST
        assert [each.payload for each in client.read_all("s", "t", mine[0])] == [b"goes on"]
