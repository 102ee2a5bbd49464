"""A shard that cannot start any more is given up; the others go on, and its partitions are told after the hold."""

from __future__ import annotations

from shardd.engine import owner
from shardd.protocol.namespaces import namespace
from tests.conftest import MakeServer
from tests.server.given_up import give_up_shard_1
from tests.support import wire
from tests.support.wire import Wire, connect

LOST = 11001
SHARDS, PARTITIONS = 2, 16


def test_a_given_up_shard_and_the_ones_that_go_on(make_server: MakeServer) -> None:
    server = make_server({"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": str(SHARDS)})
    with Wire(server.address) as client:
        client.login()
        client.create_stream("s")
        client.create_topic("s", "t", PARTITIONS)
    give_up_shard_1(server)
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
