"""Questions whose cost grows with what they ask about: whoever asks them pays, not the worker and not the others."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from shardd.protocol.bounds import PARTITIONS_MAX, GetPartitionBounds, TopicSelection
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.spark.commands import partition_bounds
from tests.hostile import crowd
from tests.support import wire
from tests.support.links import root_link
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

BOUNDS = ExtensionCode.GET_PARTITION_BOUNDS
READERS = 150
READY_S = 30.0
SILENT = "gives no sign of life"


def bounds_frame(topics: list[int | str], partitions: tuple[int, ...] = (), flags: int = 0) -> bytes:
    """By hand: the client's own code need not be able to ask this."""
    selection = struct.pack(f"<I{len(partitions)}I", len(partitions), *partitions)
    parts = [wire.identifier("s") + wire.identifier(topic) + selection for topic in topics]
    return wire.frame(BOUNDS, struct.pack("<BI", flags, len(topics)) + b"".join(parts))


def fill(server: Server) -> None:
    """Makes twelve topics of 1,000 partitions."""
    with wire.connect(server.address) as connection:
        stream = connection.create_stream("s")
        for number in range(12):
            connection.create_topic(stream, f"t{number}", 1000)


SERVER: Final = Serving(env=ONE_SHARD, fill=fill)


@pytest.fixture(scope="module")
def readers(server: Server) -> Iterator[list[wire.Wire]]:
    with crowd.crowd(server.address, READERS, login=True) as connections:
        yield connections


@contextlib.contextmanager
def others_go_on(server: Server) -> Iterator[None]:
    """No worker is replaced, and others are answered on every shard."""
    before, ended, silent = server.running_workers(), threading.Event(), server.log().count(SILENT)
    failed: list[BaseException] = []

    def ping() -> None:
        try:
            with wire.connect(server.address) as connection:
                while not ended.wait(0.05):
                    connection.ping()
        except BaseException as error:
            failed.append(error)

    pinging = [threading.Thread(target=ping) for _ in range(4)]
    for each in pinging:
        each.start()
    try:
        yield
    finally:
        ended.set()
        for each in pinging:
            each.join(READY_S)
    assert not failed
    assert server.running_workers() == before
    assert server.log().count(SILENT) == silent


def test_a_reader_cannot_stop_workers_with_bounds(server: Server) -> None:
    """One topic a thousand times in one request of 10 KB."""
    request = bounds_frame(["t0"] * 1000)
    with others_go_on(server), crowd.crowd(server.address, 4, login=True) as readers:
        for reader in readers:
            reader.send_bytes(request * 5)
        assert {reader.reply()[0] for reader in readers for _ in range(5)} == {Status.INVALID_FORMAT}


def test_the_sum_of_partitions_of_one_request_is_bounded(server: Server) -> None:
    with wire.connect(server.address) as connection:
        for request, status in (
            (bounds_frame([f"t{number}" for number in range(10)]), Status.OK),
            (bounds_frame([f"t{number}" for number in range(11)]), Status.TOO_MANY_PARTITIONS),
            (bounds_frame(["t0", 0]), Status.INVALID_FORMAT),  # the same topic by name and by number
            (bounds_frame(["t0"], (3, 5, 3)), Status.INVALID_FORMAT),
            (bounds_frame(["t0"], tuple(range(PARTITIONS_MAX + 1))), Status.TOO_MANY_PARTITIONS),
            (bounds_frame(["t0", "t1"], tuple(range(PARTITIONS_MAX // 2 + 1))), Status.TOO_MANY_PARTITIONS),
            (bounds_frame(["t0"], (5, 3)), Status.OK),
        ):
            connection.send_bytes(request)
            assert connection.reply()[0] == status


@pytest.mark.slow  # 150 logins
@pytest.mark.parametrize(
    "request_frame",
    [wire.frame(wire.GET_STREAMS), bounds_frame([f"t{number}" for number in range(10)])],
    ids=["streams", "bounds"],
)
def test_a_crowd_that_asks_about_all_partitions_stops_nobody(
    server: Server, readers: list[wire.Wire], request_frame: bytes
) -> None:
    """Each question is honest; all at once they are seconds of work."""
    with others_go_on(server):
        for reader in readers:
            reader.send_bytes(request_frame)
        assert {reader.reply()[0] for reader in readers} == {Status.OK}


def test_a_topic_wider_than_one_request_is_asked_for_in_pieces(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Spark does that by itself."""
    server = Server(tmp_path_factory.mktemp("pieces") / "data")
    with server, wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("s"), "t", 1000)
        more = wire.identifier("s") + wire.identifier("t") + struct.pack("<I", 1000)
        for _ in range(PARTITIONS_MAX // 1000):
            connection.request(wire.CREATE_PARTITIONS, more)
        whole = GetPartitionBounds((TopicSelection("s", "t"),))
        with root_link(server.address) as client:
            found = partition_bounds(client, whole)
        assert [each.id for each in found.partitions] == list(range(PARTITIONS_MAX + 1000))
        assert (found.stream, found.topic, found.stream_id, found.topic_id) == ("s", "t", 0, 0)
