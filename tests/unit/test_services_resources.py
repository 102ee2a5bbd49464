"""Streams, topics and partitions over the wire: replies, statuses and their order (golden scenarios `streams`,
`topics`, `partitions`, `permissions-order`, `streams-id-reuse`)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from shardd.protocol import requests
from shardd.protocol.codes import Code
from tests.support import wire
from tests.support.wire import Wire
from tests.unit.services_harness import Workers

UNLIMITED = 2**64 - 1
GIB = 1 << 30


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("data")) as running:
        running.create_user("limited")
        yield running


@pytest.fixture
def root(workers: Workers) -> Iterator[Wire]:
    connection = workers.connect()
    yield connection
    # highest first, so that the next test starts at id 0
    for stream_id in sorted(connection.streams().values(), reverse=True):
        connection.delete_stream(stream_id)


@pytest.fixture
def limited(workers: Workers) -> Wire:
    return workers.connect(name="limited", password="secret")


def stream(value: int | str) -> bytes:
    return wire.identifier(value)


def topic(stream_value: int | str, topic_value: int | str) -> bytes:
    return wire.identifier(stream_value) + wire.identifier(topic_value)


def new_topic(name: str = "tp", in_stream: int | str = "st", partitions: int = 1, **fields: int) -> bytes:
    values = {"compression": 1, "message_expiry_us": 0, "max_topic_size_bytes": 0, "replication_factor": 0} | fields
    return requests.CreateTopicRequest(in_stream, partitions, name=name, **values).encode()


def without_time(reply: bytes, *positions: int) -> str:
    """The reply in hex with the 8-byte times at `positions` blanked; each must be a clock of this century."""
    blank = bytearray(reply)
    for position in positions:
        assert 1_500_000_000_000_000 < int.from_bytes(blank[position : position + 8], "little") < 5_000_000_000_000_000
        blank[position : position + 8] = bytes(8)
    return blank.hex()


def test_stream_replies(root: Wire) -> None:
    head = "000000000000000000000000000000000000000000000000000000000000000002" + b"st".hex()
    assert without_time(root.request(Code.CREATE_STREAM, wire.str8("st")), 4) == head
    assert without_time(root.request(Code.GET_STREAM, stream("st")), 4) == head
    assert root.request(Code.GET_STREAM, stream(0)) == root.request(Code.GET_STREAM, stream("st"))
    assert root.request(Code.GET_STREAMS) == root.request(Code.GET_STREAM, stream(0))
    assert root.exchange(Code.GET_STREAM, stream("no")) == (0, b"")
    assert root.exchange(Code.GET_STREAM, stream(77)) == (0, b"")


def test_stream_names_and_numbers(root: Wire) -> None:
    for name in ("one", "One", "1", " blank ünï/\n", "x" * 255):
        root.create_stream(name)
    assert root.status(Code.CREATE_STREAM, wire.str8("one")) == 1012
    assert root.request(Code.GET_STREAM, stream("1"))[:4] == struct.pack("<I", 2)  # a text is a name
    assert root.status(Code.UPDATE_STREAM, stream("one") + wire.str8("two")) == 0
    assert root.exchange(Code.GET_STREAM, stream("one")) == (0, b"")
    assert root.status(Code.UPDATE_STREAM, stream("two") + wire.str8("two")) == 0
    assert root.status(Code.UPDATE_STREAM, stream("two") + wire.str8("One")) == 1012
    assert root.status(Code.UPDATE_STREAM, stream("no") + wire.str8("One")) == 1009
    assert root.status(Code.DELETE_STREAM, stream(77)) == 1009
    assert root.status(Code.PURGE_STREAM, stream(77)) == 1009


def test_stream_ids_freed_last_are_given_out_first(root: Wire) -> None:
    first = [root.create_stream(name) for name in "abcd"]
    root.delete_stream(first[1])
    root.delete_stream(first[3])
    later = [root.create_stream(name) for name in "efg"]
    assert later[:2] == [first[3], first[1]]
    assert later[2] not in first
    ids = list(root.streams().values())
    assert ids == sorted(ids)
    assert set(ids) == {*first, later[2]}


def test_create_topic_reply_and_defaults(root: Wire) -> None:
    root.create_stream("st")
    reply = root.request(Code.CREATE_TOPIC, new_topic(partitions=2))
    fixed = "0000000000000000000000000200000" + "0" + "ff" * 8 + "01" + "ff" * 8 + "01" + "00" * 16 + "02" + b"tp".hex()
    partitions = ["".join((struct.pack("<I", number).hex(), "00" * 36)) for number in (0, 1)]
    assert without_time(reply, 4, 57, 97) == fixed + "".join(partitions)
    shown = root.request(Code.GET_TOPIC, topic("st", "tp"))
    assert [details.segments_count for details in root.partitions("st", "tp")] == [1, 1]
    assert shown[:53] == reply[:53]


def test_topic_options_are_kept(root: Wire) -> None:
    root.create_stream("st")
    options = {
        "compression": 2,
        "message_expiry_us": 60_000_000,
        "max_topic_size_bytes": 2 * GIB,
        "replication_factor": 3,
    }
    reply = root.request(Code.CREATE_TOPIC, new_topic("full", **options))
    assert struct.unpack_from("<QBQB", reply, 16) == (60_000_000, 2, 2 * GIB, 3)
    update = requests.UpdateTopicRequest("st", "full", 1, 1000, 5, 7, "changed").encode()
    assert root.status(Code.UPDATE_TOPIC, update) == 0
    reply = root.request(Code.GET_TOPIC, topic("st", "changed"))
    assert struct.unpack_from("<QBQB", reply, 16) == (1000, 1, 5, 7)
    zeros = requests.UpdateTopicRequest("st", "changed", 2, 0, 0, 0, "changed").encode()
    assert root.status(Code.UPDATE_TOPIC, zeros) == 0
    reply = root.request(Code.GET_TOPIC, topic("st", "changed"))
    assert struct.unpack_from("<QBQB", reply, 16) == (0, 2, 0, 1)  # stored as sent


def test_topic_errors_in_order(root: Wire, limited: Wire) -> None:
    root.create_stream("st")
    root.request(Code.CREATE_TOPIC, new_topic())

    def status(payload: bytes, connection: Wire = root) -> int:
        return connection.status(Code.CREATE_TOPIC, payload)

    assert status(new_topic(partitions=1001, in_stream="no", compression=9)) == 2015
    assert status(new_topic(in_stream="no", compression=9)) == 3
    assert status(new_topic(in_stream="no")) == 1009
    assert status(new_topic("new", partitions=1001), limited) == 2015
    assert status(new_topic("new", max_topic_size_bytes=1), limited) == 41
    assert status(new_topic(max_topic_size_bytes=GIB - 1)) == 1019  # before the name
    assert status(new_topic()) == 2013
    assert status(new_topic("edge", max_topic_size_bytes=GIB)) == 0
    assert status(new_topic("none", partitions=0)) == 0
    update = requests.UpdateTopicRequest("st", "edge", 1, 0, 0, 1, "tp").encode()
    assert root.status(Code.UPDATE_TOPIC, update) == 2013
    assert root.status(Code.UPDATE_TOPIC, requests.UpdateTopicRequest("no", "no", 3, 0, 0, 1, "x").encode()) == 3
    assert root.status(Code.UPDATE_TOPIC, requests.UpdateTopicRequest("no", "no", 1, 0, 0, 1, "x").encode()) == 1009
    assert root.status(Code.UPDATE_TOPIC, requests.UpdateTopicRequest("st", "no", 1, 0, 0, 1, "x").encode()) == 2010
    for code in (Code.DELETE_TOPIC, Code.PURGE_TOPIC):
        assert root.status(code, topic("no", "tp")) == 1009
        assert root.status(code, topic("st", "no")) == 2010
    for payload in (topic("no", "tp"), topic("st", "no"), topic(0, 77)):
        assert root.exchange(Code.GET_TOPIC, payload) == (0, b"")
    assert root.exchange(Code.GET_TOPICS, stream("no")) == (0, b"")


def test_topic_ids_are_reused_and_lists_sorted(root: Wire) -> None:
    root.create_stream("st")
    assert [root.create_topic("st", name, 1) for name in "abc"] == [0, 1, 2]
    root.request(Code.DELETE_TOPIC, topic("st", "a"))
    root.request(Code.DELETE_TOPIC, topic("st", "c"))
    assert [root.create_topic("st", name, 1) for name in "de"] == [2, 0]
    data = root.request(Code.GET_TOPICS, stream("st"))
    assert [data[at] for at in range(0, len(data), 52)] == [0, 1, 2]
    assert root.request(Code.GET_STREAM, stream("st"))[35:] == data


def test_partitions_are_appended_and_removed_from_the_end(root: Wire) -> None:
    root.create_stream("st")
    root.create_topic("st", "tp", 1)

    def change(code: Code, count: int, address: bytes = topic("st", "tp")) -> int:
        return root.status(code, address + struct.pack("<I", count))

    assert change(Code.CREATE_PARTITIONS, 2) == 0
    assert [details.id for details in root.partitions("st", "tp")] == [0, 1, 2]
    assert [change(Code.CREATE_PARTITIONS, count) for count in (0, 1001)] == [2015, 2015]
    assert [change(Code.DELETE_PARTITIONS, count) for count in (0, 4, 1001)] == [2015, 2019, 2019]
    for code in (Code.CREATE_PARTITIONS, Code.DELETE_PARTITIONS):
        assert change(code, 1, topic("st", "no")) == 2010
        assert change(code, 1, topic("no", "tp")) == 1009
    root.send("st", "tp", wire.to_partition(0), [wire.message(b"kept")])
    root.send("st", "tp", wire.to_partition(2), [wire.message(b"gone")])
    assert change(Code.DELETE_PARTITIONS, 2) == 0
    assert [(p.id, p.messages_count, p.size_bytes) for p in root.partitions("st", "tp")] == [(0, 1, 68)]
    assert change(Code.CREATE_PARTITIONS, 2) == 0
    assert root.poll("st", "tp", 2).messages == ()
    assert change(Code.DELETE_PARTITIONS, 3) == 0
    assert root.partitions("st", "tp") == []


def test_sizes_are_summed_up_and_purged(root: Wire) -> None:
    root.create_stream("st")
    for name in ("ta", "tb"):
        root.create_topic("st", name, 2)
        root.send("st", name, wire.to_partition(1), [wire.message(b"hello"), wire.message(b"", b"ab")])
    details = root.partitions("st", "ta")[1]
    assert (details.current_offset, details.size_bytes, details.messages_count) == (1, 135, 2)
    reply = root.request(Code.GET_STREAM, stream("st"))
    assert struct.unpack_from("<IQQ", reply, 12) == (2, 270, 4)
    assert struct.unpack_from("<QQ", reply, 35 + 34) == (135, 2)
    assert root.status(Code.PURGE_TOPIC, topic("st", "ta")) == 0
    assert struct.unpack_from("<IQQ", root.request(Code.GET_STREAM, stream("st")), 12) == (2, 135, 2)
    assert root.poll("st", "ta", 1).messages == ()
    assert root.status(Code.PURGE_STREAM, stream("st")) == 0
    assert struct.unpack_from("<IQQ", root.request(Code.GET_STREAM, stream("st")), 12) == (2, 0, 0)
    root.send("st", "ta", wire.to_partition(1), [wire.message(b"again")])
    assert [message.offset for message in root.poll("st", "ta", 1).messages] == [0]


def test_existence_comes_before_permission(root: Wire, limited: Wire) -> None:
    root.create_stream("st")
    root.create_topic("st", "tp", 1)
    count = struct.pack("<I", 9)
    update = requests.UpdateTopicRequest("st", "tp", 1, 0, 0, 1, "x").encode()
    refused = [
        (Code.GET_STREAM, stream("st")),
        (Code.GET_STREAMS, b""),
        (Code.CREATE_STREAM, wire.str8("new")),
        (Code.DELETE_STREAM, stream("st")),
        (Code.UPDATE_STREAM, stream("st") + wire.str8("x")),
        (Code.PURGE_STREAM, stream("st")),
        (Code.GET_TOPIC, topic("st", "tp")),
        (Code.GET_TOPICS, stream("st")),
        (Code.DELETE_TOPIC, topic("st", "tp")),
        (Code.PURGE_TOPIC, topic("st", "tp")),
        (Code.UPDATE_TOPIC, update),
        (Code.CREATE_PARTITIONS, topic("st", "tp") + count),
        (Code.DELETE_PARTITIONS, topic("st", "tp") + count),
    ]
    assert {code: limited.status(code, payload) for code, payload in refused} == {code: 41 for code, _ in refused}
    assert limited.exchange(Code.GET_STREAM, stream("no")) == (0, b"")
    assert limited.exchange(Code.GET_TOPIC, topic("st", "no")) == (0, b"")
    assert limited.exchange(Code.GET_TOPICS, stream("no")) == (0, b"")
    assert limited.status(Code.DELETE_STREAM, stream("no")) == 1009
    assert limited.status(Code.DELETE_TOPIC, topic("st", "no")) == 2010
    assert limited.status(Code.DELETE_PARTITIONS, topic("st", "no") + count) == 2010
