"""GET_PARTITION_BOUNDS against a real server."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from shardd.client.errors import ServerError
from shardd.protocol.bounds import GetPartitionBounds, PartitionBounds, TopicSelection
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.service.bounds import with_segments
from shardd.spark.commands import partition_bounds
from tests.spark.support import Topic, settle
from tests.support import wire
from tests.support.links import root_link
from tests.support.server import Server


def test_bounds_tell_where_a_partition_begins_and_ends(topic: Topic) -> None:
    first, second = topic.bounds()
    assert [(each.id, each.first, each.end, each.durable_end) for each in (first, second)] == [
        (0, 0, 3000, 3000),
        (1, 0, 3000, 3000),
    ]
    assert first.incarnation == second.incarnation > 0 and first.messages_count == 3000


def test_segments_are_dense_and_only_the_last_is_not_sealed(topic: Topic) -> None:
    for partition in topic.bounds():
        starts = [each.start for each in partition.segments]
        ends = [each.end for each in partition.segments]
        assert starts[0] == 0 and ends[-1] == 3000 and starts[1:] == ends[:-1]
        assert [each.sealed for each in partition.segments] == [True] * (len(starts) - 1) + [False]
        assert sum(each.size_bytes for each in partition.segments) == partition.size_bytes


def test_a_purge_changes_the_incarnation(topic: Topic) -> None:
    before = topic.bounds()[0].incarnation
    topic.connection.purge_topic(topic.stream, "rows")
    topic.payloads.clear()
    topic.send(0, 10)
    settle(topic)
    after = topic.bounds()[0]
    assert after.incarnation != before and (after.first, after.end) == (0, 10)


def test_refusals_are_typed_and_leave_the_connection_usable(topic: Topic) -> None:
    with root_link(topic.server.address) as connection:
        for selection, status in (
            (TopicSelection("nope", "rows"), Status.STREAM_ID_NOT_FOUND),
            (TopicSelection(topic.stream, "nope"), Status.TOPIC_ID_NOT_FOUND),
            (TopicSelection(topic.stream, "rows", (7,)), Status.PARTITION_NOT_FOUND),
        ):
            with pytest.raises(ServerError) as caught:
                partition_bounds(connection, GetPartitionBounds((selection,)))
            assert caught.value.status == status
        for payload in (b"", b"\x02\x01\x00\x00\x00", b"\x00\x00\x00\x00\x00", b"\x00\xff\xff\xff\xff"):
            with pytest.raises(ServerError):
                connection.request(ExtensionCode.GET_PARTITION_BOUNDS, payload)
        assert partition_bounds(connection, GetPartitionBounds((TopicSelection(topic.stream, "rows", (1,)),)))


def test_bounds_need_a_login_and_the_right_to_poll(topic: Topic) -> None:
    request = GetPartitionBounds((TopicSelection(topic.stream, "rows"),)).encode()
    with wire.Wire(topic.server.address) as stranger:
        assert stranger.status(ExtensionCode.GET_PARTITION_BOUNDS, request) == Status.UNAUTHENTICATED


def test_the_request_survives_its_own_encoding() -> None:
    request = GetPartitionBounds((TopicSelection("s", 3), TopicSelection(1, "t", (0, 5))), True)
    assert GetPartitionBounds.read(Reader(request.encode())) == request


def test_the_durable_end_comes_back_after_a_kill_without_new_messages(tmp_path: Path) -> None:
    """Readers that stop at the durable end would wait for ever otherwise."""
    with Server(tmp_path / "data") as server, wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("st"), "rows", 4)
        topic = Topic(server, "st", connection)
        for partition in range(4):
            topic.send(partition, 10)
        settle(topic)
        for pid in server.worker_pids():
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while True:
            try:
                settle(topic)
                return
            except (OSError, ShardError):  # the owners are on their way
                assert time.monotonic() < deadline
                time.sleep(0.1)


def test_polls_and_sends_behind_a_kill_do_not_wait_for_the_first_sync(tmp_path: Path) -> None:
    """Which comes an hour later: bounds alone say that it is not known what is on the device."""
    env = {"SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "1 h"}
    with Server(tmp_path / "data", env) as server:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("st"), "rows", 1)
            Topic(server, "st", connection).send(0, 300)
        server.kill_supervisor()
        server.start()
        with wire.connect(server.address, timeout_s=20) as connection:
            assert len(connection.read_all("st", "rows", 0)) == 300
            topic = Topic(server, "st", connection)
            topic.send(0, 10)
            assert len(connection.read_all("st", "rows", 0)) == 310
            [bounds] = topic.bounds(segments=False)
            assert bounds.end == 310 and bounds.durable_end < 310


def test_a_partition_whose_first_log_is_being_made_has_no_segments(tmp_path: Path) -> None:
    """Directory and manifest are there before the log, and the statistics may be those of the moment before."""
    fresh = PartitionBounds(id=0, state=0, incarnation=5, first=0, end=0, durable_end=0, size_bytes=0, messages_count=0)
    assert with_segments(tmp_path / "missing", fresh) == fresh
    assert with_segments(tmp_path, fresh) == fresh
    (tmp_path / f"{0:020}.log").touch()
    assert with_segments(tmp_path, fresh) == fresh
