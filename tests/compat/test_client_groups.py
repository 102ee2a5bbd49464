"""Consumers of the released clients: groups, every way to commit, two members; where a cluster sends a client; and what
older clients are told."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardd.protocol.codes import Code
from tests.support import clients, wire
from tests.support.server import ONE_SHARD, Server
from tests.support.venvs import CLIENT_VERSIONS

HERE = Path(__file__).parent
PLACE = wire.identifier("groups") + wire.identifier("t")
EVERYTHING = [[partition, offset] for partition in range(2) for offset in range(10)]
FIRST_BATCHES = [[partition, offset] for partition in range(2) for offset in range(5)]
# Making an environment fetches the client once.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=CLIENT_VERSIONS)
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Any]]:
    """The server and what the consumers saw."""
    with Server(tmp_path_factory.mktemp("groups") / "data") as server:
        (seen,) = clients.run(request.param, HERE / "client_group.py", [clients.connection_string(server.address)])
        yield server, seen


def places(seen: list[list[Any]]) -> list[list[int]]:
    """Partition and offset, sorted; the payload must fit them."""
    assert all(payload == f"{partition}.{offset}" for _member, partition, offset, payload in seen)
    return sorted([partition, offset] for _member, partition, offset, _payload in seen)


def stored(server: Server, group: str) -> list[int | None]:
    """The offset that the server has for each partition."""
    found: list[int | None] = []
    with wire.connect(server.address) as connection:
        for partition in range(2):
            who = wire.group(group) + PLACE + wire.optional_partition(partition)
            reply = connection.request(Code.GET_CONSUMER_OFFSET, who)
            found.append(struct.unpack_from("<Q", reply, 12)[0] if reply else None)
    return found


def test_a_consumer_that_stores_by_hand_gets_everything_once(session: tuple[Server, Any]) -> None:
    server, all_seen = session
    seen = all_seen["by_hand"]
    assert seen["before"] == ["by-hand", "groups", "t", 0, None, None]
    assert sorted(seen["seen"]) == EVERYTHING
    assert (seen["consumed"], seen["stored"]) == ([9, 9], [9, 9])
    assert seen["deleted"][0] == "" and seen["deleted"][1].startswith("ConsumerOffsetNotFound")
    assert stored(server, "by-hand") == [None, 9]


def test_every_auto_commit_reads_everything_once(session: tuple[Server, Any]) -> None:
    server, seen = session
    assert len(seen["modes"]) == 10
    for name, messages in seen["modes"].items():
        assert places(messages) == (FIRST_BATCHES if name == "after-all" else EVERYTHING), name
    for name in ("when-polling", "after-each"):
        assert stored(server, name) == [9, 9], name


def test_two_members_share_the_partitions(session: tuple[Server, Any]) -> None:
    _server, seen = session
    assert places(seen["shared"]) == EVERYTHING
    partitions = [{item[1] for item in seen["shared"] if item[0] == member} for member in (0, 1)]
    assert sorted(map(len, partitions)) == [1, 1]
    assert places(seen["one_partition"]) == [[1, offset] for offset in range(10)]


def test_consumers_start_where_their_strategy_says(session: tuple[Server, Any]) -> None:
    _server, seen = session
    first, last = [[0, offset] for offset in range(5)], [[0, offset] for offset in range(5, 10)]
    wanted = {"first": first, "last": last, "offset": last, "timestamp": first}
    assert {name: places(messages) for name, messages in seen["strategies"].items()} == wanted
    assert seen["missing_group"].startswith("ConsumerGroupNameNotFound")


def test_groups_and_options_are_what_the_server_has(session: tuple[Server, Any]) -> None:
    server, _seen = session
    with wire.connect(server.address) as connection:
        listed = connection.request(Code.GET_CONSUMER_GROUPS, PLACE)
        topic = connection.request(Code.GET_TOPIC, wire.identifier("groups") + wire.identifier("options"))
    assert all(name.encode() in listed for name in ("by-hand", "when-polling", "shared")) and b"missing" not in listed
    assert struct.unpack_from("<QBQB", topic, 16) == (3_600_000_000, 2, 2 << 30, 2)


@pytest.mark.parametrize("version", [CLIENT_VERSIONS[0], pytest.param(CLIENT_VERSIONS[1], marks=pytest.mark.slow)])
def test_a_client_goes_from_a_follower_to_the_leader(version: str, tmp_path: Path) -> None:
    with Server(tmp_path / "leader", ONE_SHARD) as leader:
        with wire.connect(leader.address) as connection:
            connection.create_topic(connection.create_stream("s"), "t", 1)
            connection.send("s", "t", wire.to_partition(0), [wire.message(b"of the leader")])
        cluster = {
            "IGGY_CLUSTER_ENABLED": "true",
            "IGGY_CLUSTER_NODE_OTHERS_0_NAME": "leader",
            "IGGY_CLUSTER_NODE_OTHERS_0_IP": "127.0.0.1",
            "IGGY_CLUSTER_NODE_OTHERS_0_PORTS_TCP": leader.address.rpartition(":")[2],
        }
        arguments = ("--with-default-root-credentials", "--follower")
        with Server(tmp_path / "follower", env=ONE_SHARD | cluster, arguments=arguments) as follower:
            url = clients.connection_string(follower.address)
            (seen,) = clients.run(version, HERE / "client_read.py", [url, "s", "t"])
            with wire.connect(follower.address) as connection:
                assert connection.streams() == {}
    assert seen == [b"of the leader".hex()]
