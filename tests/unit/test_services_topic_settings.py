"""Topic settings: who may change and see them, what is refused, and that every partition has the level at once."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from shardd.engine import owner
from shardd.protocol import bounds, requests
from shardd.protocol.bounds import GetPartitionBounds, TopicSelection
from shardd.protocol.catalogue import decode
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.namespaces import namespace
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions
from shardd.protocol.primitives import Reader
from shardd.protocol.topic_change import ChangeTopic
from shardd.protocol.topic_settings import GetTopicSettings, SetTopicSettings, TopicSetting, decode_reply, encode_reply
from tests.support import wire
from tests.support.generated import examples
from tests.support.wire import Wire, identifier
from tests.unit.services_harness import Workers

PARTITIONS = 6
SET, GET = ExtensionCode.SET_TOPIC_SETTINGS, ExtensionCode.GET_TOPIC_SETTINGS
identifiers = st.integers(0, 2**32 - 1) | st.text(min_size=1, max_size=20)
keys = st.text(max_size=20)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("data"), shards=2) as running:
        root = running.connect()
        root.create_topic(root.create_stream("s"), "t", PARTITIONS)
        root.create_topic("s", "other", 1)
        reads = TopicPermissions(read_topic=True)
        manages = TopicPermissions(manage_topic=True)
        for name, topic in (("reader", reads), ("manager", manages)):
            running.create_user(name, Permissions(streams=Map({0: StreamPermissions(topics=Map({0: topic}))})))
        running.create_user("stranger", Permissions())
        yield running


def change(connection: Wire, **settings: str) -> int:
    return connection.status(SET, SetTopicSettings("s", "t", tuple(settings.items())).encode())


def settings_of(connection: Wire, topic: str = "t") -> tuple[TopicSetting, ...]:
    """Level and compression, which are asked for here."""
    found = decode_reply(connection.request(GET, GetTopicSettings("s", topic).encode()))
    return tuple(each for each in found if each.key in ("ack", "compression"))


PLAIN = TopicSetting("compression", "none", False)


def durable_partitions(workers: Workers, topic: int = 0, count: int = PARTITIONS) -> list[bool]:
    """What the engines of the owners say."""

    async def ask(shard: int, packed: int) -> bool:
        return bool(workers.context(shard).engine.partition_is_durable(packed))

    places = [namespace(0, topic, partition) for partition in range(count)]
    return [workers.call(ask(owner(each, 2), each), owner(each, 2)) for each in places]


def test_the_level_of_every_partition_has_changed_when_the_answer_comes(workers: Workers) -> None:
    assert {owner(namespace(0, 0, each), 2) for each in range(PARTITIONS)} == {0, 1}
    here, there = workers.connect(0), workers.connect(1)
    assert settings_of(here) == (TopicSetting("ack", "written", False), PLAIN)
    for value, durable in (("durable", True), ("memory", False), ("durable", True), ("written", False)):
        assert change(there, ack=value) == Status.OK
        assert durable_partitions(workers) == [durable] * PARTITIONS
        assert settings_of(here) == settings_of(there) == (TopicSetting("ack", value, True), PLAIN)
    assert durable_partitions(workers, 1, 1) == [False] and settings_of(here, "other")[0].value == "written"
    assert change(here, ack="durable") == change(here, ack="") == Status.OK
    assert durable_partitions(workers) == [False] * PARTITIONS
    assert settings_of(there) == (TopicSetting("ack", "written", False), PLAIN)


def test_new_and_purged_partitions_have_it_and_classic_clients_see_no_difference(workers: Workers) -> None:
    root = workers.connect(1)
    root.send("s", "t", wire.to_partition(0), [wire.message(b"x")])
    place = identifier("s") + identifier("t")
    seen = root.request(wire.GET_TOPIC, place)
    assert change(root, ack="durable") == Status.OK
    assert root.request(wire.GET_TOPIC, place) == seen
    root.request(wire.CREATE_PARTITIONS, place + struct.pack("<I", 2))
    root.purge_topic("s", "t")
    assert durable_partitions(workers, count=PARTITIONS + 2) == [True] * (PARTITIONS + 2)
    root.send("s", "t", wire.to_partition(7), [wire.message(b"x")])
    assert len(root.poll("s", "t", 7).messages) == 1
    update = requests.UpdateTopicRequest("s", "t", 1, 0, 0, 1, "t")
    assert root.status(wire.UPDATE_TOPIC, update.encode()) == Status.OK
    assert settings_of(root)[0].value == "durable"
    root.request(wire.DELETE_PARTITIONS, place + struct.pack("<I", 2))
    assert change(root, ack="") == Status.OK


def test_bounds_end_where_polls_end(workers: Workers) -> None:
    root = workers.connect()
    selection = GetPartitionBounds((TopicSelection("s", "other"),)).encode()
    for sent, level in enumerate(("durable", "written", "memory", "durable"), 1):
        request = SetTopicSettings("s", "other", (("ack", level),))
        root.request(SET, request.encode())
        root.send("s", "other", wire.to_partition(0), [wire.message(b"x")])
        [topic] = bounds.decode_reply(root.request(ExtensionCode.GET_PARTITION_BOUNDS, selection))
        assert topic.partitions[0].end == len(root.poll("s", "other", 0).messages) == sent
        if level == "durable":
            assert topic.partitions[0].durable_end == sent


def test_changing_wants_the_permission_to_change_the_topic_and_reading_that_to_see_it(workers: Workers) -> None:
    get = GetTopicSettings("s", "t").encode()
    for name, may_set, may_get in (("reader", 41, 0), ("manager", 0, 0), ("stranger", 41, 41)):
        connection = workers.connect(1, name, "secret")
        assert change(connection, ack="memory") == may_set
        assert connection.status(GET, get) == may_get
    assert workers.connect(1, "manager", "secret").status(GET, GetTopicSettings("s", "other").encode()) == 41
    assert change(workers.connect(), ack="") == Status.OK


def test_what_is_refused_changes_nothing(workers: Workers) -> None:
    root = workers.connect()
    assert change(root, ack="durable") == Status.OK
    address = identifier("s") + identifier("t")
    ack = wire.str8("ack") + wire.str8("memory")
    for payload, status in (
        (SetTopicSettings("s", "t", (("ack", "sure"),)).encode(), Status.INVALID_CONFIGURATION),
        (SetTopicSettings("s", "t", (("colour", "red"),)).encode(), Status.FEATURE_UNAVAILABLE),
        (SetTopicSettings("s", "t", (("ack", "memory"), ("colour", ""))).encode(), Status.FEATURE_UNAVAILABLE),
        (address + b"\0", Status.INVALID_FORMAT),
        (address + b"\2" + ack + ack, Status.INVALID_FORMAT),
        (address + bytes([65]) + b"".join(wire.str8(f"k{n}") + b"\0" for n in range(65)), Status.INVALID_FORMAT),
        (address + b"\1" + ack[:-1], Status.INVALID_COMMAND),
        (address + b"\1" + wire.str8("ack") + b"\2\xff\xfe", Status.INVALID_COMMAND),
        (SetTopicSettings("no", "t", (("ack", "memory"),)).encode(), Status.STREAM_ID_NOT_FOUND),
        (SetTopicSettings("s", "no", (("ack", "memory"),)).encode(), Status.TOPIC_ID_NOT_FOUND),
    ):
        assert root.status(SET, payload) == status, payload
    assert settings_of(root) == (TopicSetting("ack", "durable", True), PLAIN)
    assert change(root, ack="") == Status.OK


def test_a_start_keeps_the_setting_over_the_default(tmp_path: Path) -> None:
    for default in ("written", "memory"):
        with Workers(tmp_path / "data", settings={"system.partition.ack": default}) as running:
            root = running.connect()
            if default == "written":
                root.create_topic(root.create_stream("s"), "t", 1)
                root.create_topic("s", "default", 1)
                assert change(root, ack="durable") == Status.OK
            assert settings_of(root) == (TopicSetting("ack", "durable", True), PLAIN)
            assert settings_of(root, "default") == (TopicSetting("ack", default, False), PLAIN)

            async def durable(running: Workers, topic: int) -> bool:
                await asyncio.sleep(0)
                return bool(running.context().engine.partition_is_durable(namespace(0, topic, 0)))

            assert running.call(durable(running, 0))
            assert not running.call(durable(running, 1))


@settings(max_examples=examples(20))
@given(identifiers, identifiers, st.dictionaries(keys, keys, min_size=1, max_size=64), st.data())
def test_codecs_survive_the_wire_and_refuse_what_is_cut(
    stream: int | str, topic: int | str, values: dict[str, str], data: st.DataObject
) -> None:
    for code, request in (
        (SET, SetTopicSettings(stream, topic, tuple(values.items()))),
        (GET, GetTopicSettings(stream, topic)),
    ):
        payload = request.encode()
        assert decode(code, payload) == request
        with pytest.raises(ShardError) as caught:
            decode(code, payload[: data.draw(st.integers(0, len(payload) - 1))])
        assert caught.value.status is Status.INVALID_COMMAND
    reply = tuple(TopicSetting(key, value, bool(value)) for key, value in values.items())
    assert decode_reply(encode_reply(reply)) == reply


def update_with(workers: Workers, compression: int) -> int:
    request = requests.UpdateTopicRequest("s", "t", compression, 0, 0, 1, "t")
    return workers.connect(0).status(wire.UPDATE_TOPIC, request.encode())


def shown(root: Wire) -> tuple[int, str]:
    """(what the classic wire shows, the setting in effect)."""
    reply = root.request(wire.GET_TOPIC, identifier("s") + identifier("t"))
    return reply[24], settings_of(root)[1].value


def test_the_classic_wire_asks_for_gzip_keeps_a_choice_and_ends_it(workers: Workers) -> None:
    root = workers.connect(1)
    assert shown(root) == (1, "none")
    assert update_with(workers, 2) == Status.OK and shown(root) == (2, "gzip")
    assert change(root, compression="zstd:9") == Status.OK and shown(root) == (2, "zstd:9")
    assert update_with(workers, 2) == Status.OK and shown(root) == (2, "zstd:9")
    assert update_with(workers, 1) == Status.OK and shown(root) == (1, "none")
    assert change(root, compression="lz4") == Status.OK and shown(root) == (2, "lz4")
    assert change(root, compression="none") == Status.OK and shown(root) == (1, "none")
    assert update_with(workers, 2) == Status.OK and shown(root) == (2, "gzip")
    assert [update_with(workers, value) for value in (0, 3, 4, 255)] == [Status.INVALID_COMMAND] * 4
    for value in ("snappy", "zstd:20", "zstd:0", "gzip:10", "lz4:13", "none:1", "zstd:", "lz4:-1"):
        assert change(root, compression=value) == Status.INVALID_CONFIGURATION
    assert shown(root) == (2, "gzip")


changes = st.builds(
    ChangeTopic,
    identifiers,
    identifiers,
    st.none() | st.text(min_size=1, max_size=20),
    st.none() | st.integers(0, 255),
    st.none() | st.integers(0, 2**64 - 1),
    st.none() | st.integers(0, 2**64 - 1),
    st.none() | st.integers(0, 255),
).filter(lambda change: any(getattr(change, name) is not None for name in ChangeTopic.__struct_fields__[2:]))


@settings(max_examples=examples(100))
@given(changes)
def test_topic_change_is_read_as_written(change: ChangeTopic) -> None:
    assert ChangeTopic.read(Reader(change.encode())) == change


@pytest.mark.parametrize("present", [0, 32, 255])
def test_topic_change_with_other_presence_bits_is_refused_with_4(workers: Workers, present: int) -> None:
    head = identifier("s") + identifier("t")
    assert workers.connect().status(ExtensionCode.CHANGE_TOPIC, head + bytes((present,)) + bytes(40)) == 4


def test_topic_change_wants_the_right_and_keeps_the_rest(workers: Workers) -> None:
    root = workers.connect(1)
    root.create_topic("s", "kept", 1)
    update = requests.UpdateTopicRequest("s", "kept", 2, 60_000_000, 5 << 30, 3, "kept")
    assert root.status(Code.UPDATE_TOPIC, update.encode()) == 0
    change = ChangeTopic("s", "kept", "changed").encode()
    assert workers.connect(0, "reader", "secret").status(ExtensionCode.CHANGE_TOPIC, change) == 41
    assert root.status(ExtensionCode.CHANGE_TOPIC, change) == 0
    assert root.status(ExtensionCode.CHANGE_TOPIC, change) == 2010
    assert root.status(ExtensionCode.CHANGE_TOPIC, ChangeTopic("s", "changed", "t").encode()) == 2013
    shown = root.request(Code.GET_TOPIC, identifier("s") + identifier("changed"))
    assert struct.unpack_from("<QBQB", shown, 16) == (60_000_000, 2, 5 << 30, 3)
