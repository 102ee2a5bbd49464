"""The blocking client connection: what it decodes is what the server has, and an answer that cannot be read is a failed
connection, never an answer."""

from __future__ import annotations

import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardd.client import Connection, ConnectionFailedError, Credentials
from shardd.protocol.primitives import Consumer, ConsumerKind, PollingKind, Reader
from shardd.protocol.replies import ConsumerOffset, PartitionSummary, PolledHead, StreamSummary, TopicSummary
from shardd.protocol.requests import OffsetRequest, PollMessages, StoreOffset
from tests.support import wire
from tests.unit.services_harness import Workers

READER = Consumer(ConsumerKind.CONSUMER, "reader")
POLL = PollMessages(READER, "s", "t", 1, PollingKind.OFFSET, 0, 10, False)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with Workers(tmp_path_factory.mktemp("data"), shards=2) as workers:
        root = workers.connect()
        for stream in ("s", "empty"):
            root.create_stream(stream)
        root.create_topic("s", "t", 2)
        root.create_topic("s", "other", 1)
        root.send("s", "t", wire.to_partition(1), [wire.message(b"first"), wire.message(b"")])
        with Connection(workers.addresses[1], Credentials("iggy", "iggy")) as made:
            yield made


def test_lists_have_every_stream_and_topic(connection: Connection) -> None:
    assert [(each.id, each.name, each.topics_count) for each in connection.streams()] == [(0, "s", 2), (1, "empty", 0)]
    topics = connection.topics("s")
    assert [(each.id, each.name, each.partitions_count) for each in topics] == [(0, "t", 2), (1, "other", 1)]
    assert connection.topics("empty") == []
    found = connection.topic("s", "t")
    assert found is not None and found.topic == topics[0]
    assert [each.messages_count for each in found.partitions] == [0, 2]
    assert connection.topic("s", "no") is None


def test_polls_give_messages_and_offsets_are_kept(connection: Connection) -> None:
    polled = connection.poll(POLL)
    assert polled.head == PolledHead(1, 1, 2)
    assert [(each.offset, each.payload, each.user_headers) for each in polled.messages] == [
        (0, b"first", b""),
        (1, b"", b""),
    ]
    assert 0 < polled.messages[0].timestamp_us <= polled.messages[1].timestamp_us
    assert all(each.id and each.checksum for each in polled.messages)
    asked = OffsetRequest(READER, "s", "t", 1)
    assert connection.stored_offset(asked) is None
    connection.store_offset(StoreOffset(READER, "s", "t", 1, 1))
    assert connection.stored_offset(asked) == ConsumerOffset(1, 1, 1)


@pytest.mark.parametrize(
    "value",
    [
        StreamSummary(1, 2, 3, 4, 5, "s"),
        TopicSummary(1, 2, 3, 4, 1, 5, 1, 6, 7, "t"),
        PartitionSummary(1, 2, 3, 4, 5, 6),
        ConsumerOffset(1, 2, 3),
        PolledHead(1, 2, 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_encoded_is_read_again(value: Any) -> None:
    reader = Reader(value.encode())
    assert type(value).read(reader) == value and reader.remaining == 0


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda c: c.streams(), StreamSummary(1, 2, 3, 4, 5, "s").encode()[:-1]),
        (lambda c: c.topics("s"), TopicSummary(1, 2, 3, 4, 1, 5, 1, 6, 7, "t").encode() + b"\0"),
        (lambda c: c.topic("s", "t"), TopicSummary(1, 2, 2**32 - 1, 4, 1, 5, 1, 6, 7, "t").encode()),
        (lambda c: c.poll(POLL), PolledHead(1, 1, 2**32 - 1).encode() + bytes(64)),
        (lambda c: c.poll(POLL), PolledHead(1, 1, 1).encode() + bytes(48) + struct.pack("<IIQ", 0, 2**32 - 1, 0)),
        (lambda c: c.poll(POLL), b""),
        (lambda c: c.stored_offset(OffsetRequest(READER, "s", "t", 1)), bytes(19)),
    ],
)
def test_an_answer_that_cannot_be_read_is_a_failed_connection(
    ask: Callable[[Connection], object], answer: bytes
) -> None:
    """From a server that answers every request with these bytes."""

    def serve(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(10)
            peer.recv(4096)
            peer.sendall(struct.pack("<II", 0, len(answer)) + answer)
            peer.recv(4096)  # until the client closes

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with (
            Connection(address, timeout_s=10) as made,
            pytest.raises(ConnectionFailedError, match="the answer cannot be read"),
        ):
            ask(made)
        thread.join(10)
        assert not thread.is_alive()


def test_an_answer_takes_memory_as_it_arrives_and_not_as_it_claims() -> None:
    """From something that is no server: it claims 4 GiB, sends 3 MiB and closes."""

    def serve(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(10)
            peer.recv(4096)
            peer.sendall(struct.pack("<II", 0, 2**32 - 1) + bytes(3 << 20))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        tracemalloc.start()
        try:
            with (
                Connection(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=10) as made,
                pytest.raises(ConnectionFailedError),
            ):
                made.poll(POLL)
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
        finally:
            tracemalloc.stop()
        thread.join(10)
        assert not thread.is_alive()
