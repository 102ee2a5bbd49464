"""Offsets, flush, group requests and route misses, from both shards to partitions of both shards (golden scenarios
`offsets`, `flush`, `poll-empty-and-missing`, `permissions-order`)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from immutables import Map

from shardd.engine import twin
from shardd.metadata.state import Permissions, StreamPermissions, TopicPermissions
from shardd.protocol.codes import Code
from shardd.protocol.namespaces import namespace
from tests.support import wire
from tests.support.wire import Wire
from tests.unit.calls_harness import workers_with_stream
from tests.unit.services_harness import Workers

GROUP = wire.group("cg")
ME = wire.consumer(1)


@pytest.fixture(scope="module", params=["written", "durable"])
def workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with workers_with_stream(tmp_path_factory.mktemp("data"), request.param) as running:
        running.connect().create_topic("st", "tp", 8)
        yield running


@pytest.fixture(params=[0, 1])
def root(workers: Workers, request: pytest.FixtureRequest) -> Wire:
    return workers.connect(request.param)


def address(topic: str = "tp", stream: str = "st", partition: int | None = 0, consumer: bytes = ME) -> bytes:
    return consumer + wire.identifier(stream) + wire.identifier(topic) + wire.optional_partition(partition)


def offset(value: int) -> bytes:
    return struct.pack("<Q", value)


def flush(partition: int, fsync: int = 0, topic: str = "tp", stream: str = "st") -> bytes:
    return wire.identifier(stream) + wire.identifier(topic) + struct.pack("<IB", partition, fsync)


def test_partitions_are_on_both_shards() -> None:
    assert {twin.owner(namespace(0, 0, partition), 2) for partition in range(8)} == {0, 1}


@pytest.mark.parametrize("partition", range(8))
def test_offsets_of_every_partition(root: Wire, partition: int) -> None:
    root.send("st", "tp", wire.to_partition(partition), [wire.message(b"m") for _ in range(10)])
    last = root.poll("st", "tp", partition).current_offset
    own = address(partition=partition)
    assert root.status(Code.DELETE_CONSUMER_OFFSET, own) == 3021
    assert root.exchange(Code.GET_CONSUMER_OFFSET, own) == (0, b"")
    assert root.status(Code.STORE_CONSUMER_OFFSET, own + offset(4)) == 0
    assert root.request(Code.GET_CONSUMER_OFFSET, own) == struct.pack("<IQQ", partition, last, 4)
    assert root.status(Code.STORE_CONSUMER_OFFSET, own + offset(last + 1)) == 4100
    named = address(partition=partition, consumer=wire.consumer("my-consumer"))
    assert root.status(Code.STORE_CONSUMER_OFFSET, named + offset(7)) == 0
    hashed = address(partition=partition, consumer=wire.consumer(2_115_191_887))
    assert root.request(Code.GET_CONSUMER_OFFSET, hashed) == struct.pack("<IQQ", partition, last, 7)
    assert root.status(Code.DELETE_CONSUMER_OFFSET, own) == 0
    assert root.status(Code.DELETE_CONSUMER_OFFSET, named) == 0
    assert root.exchange(Code.GET_CONSUMER_OFFSET, own) == (0, b"")


@pytest.mark.parametrize("partition", range(4))
def test_offsets_of_a_group(root: Wire, partition: int) -> None:
    topic = wire.identifier("st") + wire.identifier("tp")
    root.send("st", "tp", wire.to_partition(partition), [wire.message(b"m")])
    root.request(Code.CREATE_CONSUMER_GROUP, topic + wire.str8("cg"))
    try:
        root.request(Code.JOIN_CONSUMER_GROUP, topic + wire.identifier("cg"))
        own = address(partition=partition, consumer=wire.group("cg"))
        assert root.status(Code.STORE_CONSUMER_OFFSET, own + offset(0)) == 0
        assert struct.unpack_from("<Q", root.request(Code.GET_CONSUMER_OFFSET, own), 12) == (0,)
        assert root.status(Code.DELETE_CONSUMER_OFFSET, own) == 0
        assert root.exchange(Code.GET_CONSUMER_OFFSET, own) == (0, b"")
    finally:
        root.request(Code.DELETE_CONSUMER_GROUP, topic + wire.identifier("cg"))


def test_an_absent_partition_means_0(root: Wire) -> None:
    root.send("st", "tp", wire.to_partition(0), [wire.message(b"m")])
    assert root.status(Code.STORE_CONSUMER_OFFSET, address(partition=None) + offset(0)) == 0
    assert root.request(Code.GET_CONSUMER_OFFSET, address(partition=None))[:4] == bytes(4)
    assert root.status(Code.DELETE_CONSUMER_OFFSET, address(partition=None)) == 0


def test_offsets_of_what_is_missing(root: Wire) -> None:
    assert root.exchange(Code.GET_CONSUMER_OFFSET, address(stream="no")) == (0, b"")
    assert root.exchange(Code.GET_CONSUMER_OFFSET, address("no")) == (0, b"")
    assert root.exchange(Code.GET_CONSUMER_OFFSET, address(partition=99)) == (0, b"")
    assert root.exchange(Code.GET_CONSUMER_OFFSET, address(consumer=GROUP)) == (0, b"")
    for code, tail in ((Code.STORE_CONSUMER_OFFSET, offset(0)), (Code.DELETE_CONSUMER_OFFSET, b"")):
        assert root.status(code, address(stream="no") + tail) == 1009
        assert root.status(code, address("no") + tail) == 2010
        assert root.status(code, address(partition=99) + tail) == 3007
        assert root.status(code, address(consumer=GROUP) + tail) == 5000


@pytest.mark.parametrize("partition", range(8))
@pytest.mark.parametrize("fsync", [0, 1, 2])
def test_flush(root: Wire, partition: int, fsync: int) -> None:
    root.send("st", "tp", wire.to_partition(partition), [wire.message(b"flush me")])
    assert root.status(Code.FLUSH_UNSAVED_BUFFER, flush(partition, fsync)) == 0


def test_flush_of_what_is_missing(root: Wire) -> None:
    assert root.status(Code.FLUSH_UNSAVED_BUFFER, flush(99)) == 3007
    assert root.status(Code.FLUSH_UNSAVED_BUFFER, flush(0, topic="no")) == 2010
    assert root.status(Code.FLUSH_UNSAVED_BUFFER, flush(0, stream="no")) == 1009


def poll(partition: int | None = 0, topic: str = "tp", stream: str = "st", consumer: bytes = ME) -> bytes:
    return address(topic, stream, partition, consumer) + struct.pack("<BQIB", 3, 0, 100, 0)


def test_polls_and_sends_that_have_no_route(root: Wire) -> None:
    assert root.status(Code.POLL_MESSAGES, poll(topic="no")) == 2010
    assert root.status(Code.POLL_MESSAGES, poll(stream="no")) == 1009
    assert root.status(Code.POLL_MESSAGES, poll(99)) == 3007
    assert root.status(Code.POLL_MESSAGES, poll(consumer=GROUP)) == 5000
    assert root.status(Code.POLL_MESSAGES, poll(consumer=GROUP, topic="no")) == 2010
    assert root.status(Code.POLL_MESSAGES, poll(consumer=b"\x03" + wire.identifier(1))) == 3
    bad_text = b"\x02\x02\xff\xfe"
    assert root.status(Code.POLL_MESSAGES, ME + bad_text + poll()[len(ME) + 4 :]) == 3
    for stream, topic, partition, status in (("no", "tp", 0, 1009), ("st", "no", 0, 2010), ("st", "tp", 99, 3007)):
        payload = wire.batch(stream, topic, wire.to_partition(partition), [wire.message(b"x")])
        assert root.status(Code.SEND_MESSAGES, payload) == status


def test_login_is_needed(workers: Workers) -> None:
    anonymous = workers.anonymous()
    send = wire.batch("st", "tp", wire.to_partition(0), [wire.message(b"x")])
    for code, payload in (
        (Code.POLL_MESSAGES, poll()),
        (Code.SEND_MESSAGES, send),
        (Code.FLUSH_UNSAVED_BUFFER, flush(0)),
        (Code.GET_CONSUMER_OFFSET, address()),
        (Code.STORE_CONSUMER_OFFSET, address() + offset(0)),
        (Code.DELETE_CONSUMER_OFFSET, address()),
    ):
        assert anonymous.status(code, payload) == 40


def statuses(wire_: Wire) -> dict[str, int]:
    """One command of the rule for sends and one of that for polls, each way: the warm path and Python's."""
    send = wire.batch("st", "tp", wire.to_partition(99), [wire.message(b"x")])
    return {
        "send": wire_.status(Code.SEND_MESSAGES, send),
        "flush": wire_.status(Code.FLUSH_UNSAVED_BUFFER, flush(99)),
        "poll": wire_.status(Code.POLL_MESSAGES, poll(99)),
        "store": wire_.status(Code.STORE_CONSUMER_OFFSET, address(partition=99) + offset(0)),
        "delete": wire_.status(Code.DELETE_CONSUMER_OFFSET, address(partition=99)),
        "group": wire_.status(Code.POLL_MESSAGES, poll(consumer=GROUP)),
    }


REFUSED = {"send": 41, "flush": 41, "poll": 41, "store": 41, "delete": 41, "group": 41}
CAN_SEND = REFUSED | {"send": 3007, "flush": 3007}
CAN_POLL = REFUSED | {"poll": 3007, "store": 3007, "delete": 3007, "group": 5000}
CAN_BOTH = CAN_POLL | {"send": 3007, "flush": 3007}


def on_topic(topic: TopicPermissions) -> Permissions:
    return Permissions(streams=Map({0: StreamPermissions(topics=Map({0: topic}))}))


@pytest.mark.parametrize(
    ("name", "permissions", "expected"),
    [
        ("nothing", None, REFUSED),
        ("all false", Permissions(), REFUSED),
        ("sender", Permissions(send_messages=True), CAN_SEND),
        ("poller", Permissions(poll_messages=True), CAN_POLL),
        ("topic sender", on_topic(TopicPermissions(send_messages=True)), CAN_SEND),
        ("topic poller", on_topic(TopicPermissions(poll_messages=True)), CAN_POLL),
        ("topic manager", on_topic(TopicPermissions(manage_topic=True)), CAN_BOTH),
    ],
)
def test_permission_comes_before_the_partition(
    workers: Workers, name: str, permissions: Permissions | None, expected: dict[str, int]
) -> None:
    workers.create_user(name, permissions)
    wire_ = workers.connect(name=name, password="secret")
    assert statuses(wire_) == expected
    assert statuses(wire_) == expected  # again, now that the route table is filled
    if expected is REFUSED or expected is CAN_SEND:
        assert wire_.status(Code.GET_CONSUMER_OFFSET, address(partition=99)) == 41
        assert wire_.exchange(Code.GET_CONSUMER_OFFSET, address("no")) == (0, b"")


def test_messages_come_back_through_both_shards(workers: Workers) -> None:
    first, second = workers.connect(0), workers.connect(1)
    first.create_stream("echo")
    second.create_topic("echo", "tp", 4)
    for partition in range(4):
        writer, reader = (first, second) if partition % 2 else (second, first)
        writer.send("echo", "tp", wire.to_partition(partition), [wire.message(b"%d" % n) for n in range(3)])
        polled = reader.poll("echo", "tp", partition, strategy=wire.POLL_FIRST)
        assert [message.payload for message in polled.messages] == [b"0", b"1", b"2"]
    first.delete_stream("echo")
    assert second.status(Code.POLL_MESSAGES, poll(0, stream="echo")) == 1009
