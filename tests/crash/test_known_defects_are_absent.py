"""Defects of the reference server that must not be copied, each by its name."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.metadata.commands import CreateStream, CreateUser
from shardd.metadata.log_file import FILE_HEADER, FILE_NAME, MAGIC, VERSION
from shardd.runtime.password_hash import hash_password
from shardd.security.root import ROOT_PERMISSIONS
from tests.support import wire
from tests.support.metadata_chain import chain
from tests.support.server import ONE_SHARD, Server

STREAMS_MAX = 4096  # 12 bits of the namespace
NO_ROOM_FOR_STREAM = 1001


@pytest.fixture
def connection(server: Server) -> Iterator[wire.Wire]:
    with wire.connect(server.address) as connection:
        yield connection
        for stream in sorted(connection.streams().values(), reverse=True):
            connection.delete_stream(stream)


def flush(connection: wire.Wire, stream: int, topic: int, partition: int) -> None:
    address = wire.identifier(stream) + wire.identifier(topic)
    connection.request(wire.FLUSH_UNSAVED_BUFFER, address + struct.pack("<IB", partition, 1))


@pytest.mark.parametrize("flushed", [False, True])
def test_purge_never_brings_messages_back(connection: wire.Wire, flushed: bool) -> None:
    connection.create_topic(connection.create_stream("purged"), "t", 2)
    for partition in (0, 1):
        old = [wire.message(f"old {n}".encode()) for n in range(10)]
        connection.send(0, 0, wire.to_partition(partition), old)
        if flushed:
            flush(connection, 0, 0, partition)
    connection.purge_topic(0, 0)
    for partition in (0, 1):
        assert connection.poll(0, 0, partition) == wire.Polled(partition, 0, ())
        connection.send(0, 0, wire.to_partition(partition), [wire.message(b"new")])
        flush(connection, 0, 0, partition)
        messages = connection.read_all(0, 0, partition)
        assert [(item.offset, item.payload) for item in messages] == [(0, b"new")]


def test_purged_messages_stay_away_after_a_restart(tmp_path: Path) -> None:
    server = Server(tmp_path, ONE_SHARD)
    server.start()
    try:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("purged"), "t", 2)
            for partition in (0, 1):
                connection.send(0, 0, wire.to_partition(partition), [wire.message(b"old")] * 5)
            connection.purge_topic(0, 0)
            connection.send(0, 0, wire.to_partition(1), [wire.message(b"new")])
        server.kill_supervisor()
        server.stop()
        server = Server(tmp_path, ONE_SHARD)
        server.start()
        with wire.connect(server.address) as connection:
            assert connection.read_all(0, 0, 0) == []
            assert [item.payload for item in connection.read_all(0, 0, 1)] == [b"new"]
    finally:
        server.stop()


@pytest.mark.parametrize("flushed", [False, True])
def test_timestamp_polls_skip_no_message(connection: wire.Wire, flushed: bool) -> None:
    connection.create_topic(connection.create_stream("clocks"), "t", 1)
    for size in (1, 8, 40, 100):
        batch = [wire.message(f"{size} {n}".encode()) for n in range(size)]
        connection.send(0, 0, wire.to_partition(0), batch)
        if flushed:
            flush(connection, 0, 0, 0)
    messages = connection.read_all(0, 0, 0)
    clocks = [item.timestamp_us for item in messages]
    for clock in sorted({*clocks, *(moment - 1 for moment in clocks), *(moment + 1 for moment in clocks)}):
        found = connection.poll(0, 0, 0, strategy=wire.POLL_TIMESTAMP, value=clock, count=1000).messages
        assert list(found) == [item for item in messages if item.timestamp_us >= clock]


def test_keyed_send_to_a_topic_without_partitions_is_refused_and_the_server_lives(
    server: Server, connection: wire.Wire
) -> None:
    workers = list(server.worker_pids())
    connection.create_topic(connection.create_stream("none"), "t", 0)
    for partitioning in (wire.to_key(b"key"), wire.balanced()):
        with pytest.raises(wire.StatusError) as refusal:
            connection.send(0, 0, partitioning, [wire.message(b"x")])
        assert refusal.value.status == 2010
    connection.ping()
    assert list(server.worker_pids()) == workers


def test_foreign_files_do_not_stop_the_start_and_stay(tmp_path: Path) -> None:
    server = Server(tmp_path, ONE_SHARD)
    server.start()
    try:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("kept"), "t", 1)
            connection.send(0, 0, wire.to_partition(0), [wire.message(b"kept")])
        server.stop()
        partition = tmp_path / "streams/0/topics/0/partitions/0"
        assert partition.is_dir()
        foreign = [tmp_path / "notes.txt", tmp_path / "streams/lost+found", tmp_path / "streams/99/old.log"]
        foreign += [partition / "notes.txt", partition / "00000000000000000000.log.bak", partition / "12.log"]
        foreign += [partition.parent / "7x" / "0.log"]
        no_offset = partition / "offsets/consumers/not-a-number"
        for path in (*foreign, no_offset):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"foreign")
        server = Server(tmp_path, ONE_SHARD)
        server.start()
        with wire.connect(server.address) as connection:
            assert connection.streams() == {"kept": 0}
            connection.send(0, 0, wire.to_partition(0), [wire.message(b"more")])
            assert [item.payload for item in connection.read_all(0, 0, 0)] == [b"kept", b"more"]
        foreign.append(partition / "offsets.imported/consumers/not-a-number")  # where nobody looks for offsets again
        assert [path.read_bytes() for path in foreign] == [b"foreign"] * len(foreign)
    finally:
        server.stop()


def with_streams(data: Path, count: int) -> None:
    """A data directory that has root and streams `s0` to `s<count - 1>`: a server that makes thousands of them, each
    durable before its answer, is busy for a quarter of a minute."""
    data.mkdir()
    root = CreateUser("iggy", hash_password("iggy"), True, ROOT_PERMISSIONS)
    records = chain([root, *(CreateStream(f"s{number}") for number in range(count))])
    header = FILE_HEADER.pack(MAGIC, VERSION, 0)
    (data / FILE_NAME).write_bytes(header + b"".join(encoded for encoded, _record in records))


def test_stream_4096_plus_k_does_not_write_into_stream_k(tmp_path: Path) -> None:
    with_streams(tmp_path / "data", STREAMS_MAX - 2)
    with Server(tmp_path / "data", ONE_SHARD) as server, wire.connect(server.address) as connection:
        check_stream_limit(connection)


def check_stream_limit(connection: wire.Wire) -> None:
    for number in (STREAMS_MAX - 2, STREAMS_MAX - 1):
        assert connection.create_stream(f"s{number}") == number
    connection.create_topic(0, "t", 1)
    connection.send(0, 0, wire.to_partition(0), [wire.message(b"in stream 0")])
    for number in range(2):
        with pytest.raises(wire.StatusError) as refusal:
            connection.create_stream(f"one too many {number}")
        assert refusal.value.status == NO_ROOM_FOR_STREAM
    assert len(connection.streams()) == STREAMS_MAX
    assert [item.payload for item in connection.read_all(0, 0, 0)] == [b"in stream 0"]
    connection.delete_stream(77)
    assert connection.create_stream("fits again") == 77
