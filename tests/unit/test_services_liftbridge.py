"""The services behind Liftbridge's door: settings, streams, what is published, and the server's own tasks. What it says
of a partition holds for clients of every protocol."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from shardd.protocol import limits
from shardd.protocol import requests as classic
from shardd.protocol.codes import Code
from shardd.protocol.door_frames import Purpose
from shardd.protocol.errors import Status
from shardd.protocol.liftbridge import requests
from shardd.protocol.liftbridge.requests import ActivityOp
from shardd.protocol.topic_setting_table import SEGMENT_SIZE, SEGMENT_SIZE_LEAST
from shardd.runtime.audit_file import LOGGER
from shardd.service.identity import Identity
from shardd.service.liftbridge_settings import message_expiry_us, topic_settings_of
from shardd.service.liftbridge_streams import LiftbridgeStreamService, topic_name
from shardd.service.long_answers import LongAnswers
from shardd.service.sessions import Session
from tests.support.wire import Wire, batch, message, to_partition
from tests.unit.liftbridge_harness import (
    MILLISECONDS,
    NAMESPACE,
    ask,
    info,
    liftbridge_workers,
    listed,
    make,
    publishing,
    refused,
    root,
    services,
    status_of,
    topic_of,
    user,
)
from tests.unit.services_harness import Workers


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with liftbridge_workers(tmp_path_factory.mktemp("data")) as running:
        yield running


# ---- streams ----


def test_settings_of_a_stream_are_those_of_its_topic(workers: Workers) -> None:
    stream = make(
        workers,
        "settings",
        retentionMaxAge=5_000,
        retentionMaxMessages=7,
        retentionMaxBytes=1 << 21,
        segmentMaxBytes=1,
        segmentMaxAge=120_000,
        autoPauseTime=9,
        optimisticConcurrencyControl=True,
        compactEnabled=False,
    )
    topic = topic_of(workers, "settings")
    assert topic.message_expiry_us == 5_000 * MILLISECONDS
    assert dict(topic.settings) == {
        "retention": "on",
        "partition_messages_max": "7",
        "partition_size_max": str(1 << 21),
        "segment_size": str(SEGMENT_SIZE_LEAST),
        "segment_age_max": str(120_000 * MILLISECONDS),
    }
    assert stream.settings["autoPauseTime"] == 9 and stream.settings["optimisticConcurrencyControl"] is True
    assert (stream.subject, stream.native, stream.created_at_ns) == ("in.settings", False, topic.created_at_us * 1000)


def test_absent_is_the_default_and_0_is_no_limit(workers: Workers) -> None:
    defaults = replace(workers.context().settings.liftbridge.streams, retention_age_ms=60_000, retention_messages=3)
    assert message_expiry_us({}, defaults) == 60_000 * MILLISECONDS
    assert topic_settings_of({}, defaults) == (("partition_messages_max", "3"),)
    for unlimited in (0, -1, -(1 << 63)):
        asked = dict.fromkeys(
            ("retentionMaxAge", "retentionMaxMessages", "retentionMaxBytes", "segmentMaxAge", "segmentMaxBytes"),
            unlimited,
        )
        assert message_expiry_us(asked, defaults) == limits.UNLIMITED
        assert topic_settings_of(asked, defaults) == ()
    most = dict.fromkeys(("retentionMaxAge", "retentionMaxMessages", "segmentMaxAge", "segmentMaxBytes"), (1 << 63) - 1)
    assert message_expiry_us(most, defaults) == limits.UNLIMITED
    assert dict(topic_settings_of(most, defaults))[SEGMENT_SIZE.key] == str(SEGMENT_SIZE.type.most)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"compactEnabled": True}, Status.INVALID_CONFIGURATION),
        ({"encryption": True}, Status.INVALID_CONFIGURATION),
        ({"compactEnabled": 1}, Status.INVALID_COMMAND),
        ({"retentionMaxAge": True}, Status.INVALID_COMMAND),
        ({"retentionMaxAge": 1 << 63}, Status.INVALID_COMMAND),
        ({"nothing": 1}, Status.INVALID_COMMAND),
    ],
)
def test_settings_that_are_refused(workers: Workers, settings: dict[str, int | bool], status: Status) -> None:
    create = requests.CreateStream("refused", "x", "", 1, settings)
    assert refused(workers, services(workers).liftbridge_streams.create_stream(root(workers), create)) == status
    assert listed(workers, root(workers), "refused") == []


def test_names_are_unique_and_reserved_ones_are_the_servers(workers: Workers) -> None:
    streams = services(workers).liftbridge_streams
    make(workers, "unique")
    again = requests.CreateStream("unique", "other.subject", "", 1)
    assert refused(workers, streams.create_stream(root(workers), again)) == Status.TOPIC_NAME_ALREADY_EXISTS
    for name in ("__cursors", "__activity"):
        create = requests.CreateStream(name, "x", "", 1)
        assert refused(workers, streams.create_stream(root(workers), create)) == Status.FEATURE_UNAVAILABLE
        assert refused(workers, streams.delete_stream(root(workers), requests.DeleteStream(name))) == 5
        publish = services(workers).liftbridge_publish.publish(root(workers), publishing(info(workers, name), b"x"))
        assert refused(workers, publish) == Status.UNAUTHORIZED
    assert refused(workers, streams.delete_stream(root(workers), requests.DeleteStream("none"))) == 2010
    many = replace(again, name="many", partitions=1001)
    assert refused(workers, streams.create_stream(root(workers), many)) == Status.TOO_MANY_PARTITIONS


def test_a_name_that_no_topic_can_have_gets_a_shorter_one(workers: Workers) -> None:
    wire, streams = workers.connect(), services(workers).liftbridge_streams
    make(workers, "first-name")
    update = classic.UpdateTopicRequest(NAMESPACE, "first-name", 1, 0, 0, 1, "second-name")
    ask(workers, services(workers).topics.update_topic(root(workers), update))
    ask(workers, streams.create_stream(root(workers), requests.CreateStream("second-name", "x", "", 1)))
    assert topic_of(workers, "first-name").name == "second-name"
    assert topic_of(workers, "second-name").name.startswith("second-name~")
    home = workers.context(1).metadata.state.streams[info(workers, "first-name").stream_id]
    assert len(topic_name(home, "ä" * 300).encode()) <= limits.NAME_BYTES_MAX
    wire.close()


def test_a_topic_of_the_namespace_made_natively_is_a_stream(workers: Workers) -> None:
    wire = workers.connect()
    wire.create_topic(NAMESPACE, "native one", 3)
    found = info(workers, "native one")
    assert (found.subject, found.partitions, found.native, found.settings) == ("native%20one", 3, False, {})


def test_topics_of_other_streams_are_there_as_far_as_they_are_exposed(workers: Workers) -> None:
    wire = workers.connect()
    wire.create_stream("with/slash")
    wire.create_topic("with/slash", "t/t", 1)
    found = info(workers, "with/slash/t/t")
    assert (found.subject, found.native) == ("with/slash.t/t", True)
    context = workers.context(1)
    for exposed, seen, status in (("off", 0, 2010), ("read", 1, 41), ("readwrite", 1, 0)):
        settings = replace(context.settings.liftbridge, expose_native=exposed)
        streams = LiftbridgeStreamService(context.metadata, settings, LongAnswers(context.engine))
        request = requests.ListStreams(("with/slash/t/t",))
        assert len(ask(workers, streams.list_streams(root(workers), request, lambda each: each))) == seen
        everything = ask(workers, streams.list_streams(root(workers), requests.ListStreams(), lambda each: each.name))
        assert ("with/slash/t/t" in everything) == bool(seen)
        pause = streams.pause_stream(root(workers), requests.PauseStream("with/slash/t/t"))
        assert status_of(workers, pause) == status
    assert info(workers, "with/slash/t/t").paused == (0,)


def test_pause_and_resume(workers: Workers) -> None:
    streams = services(workers).liftbridge_streams
    make(workers, "paused", 3)
    ask(workers, streams.pause_stream(root(workers), requests.PauseStream("paused", (0, 2), True)))
    found = info(workers, "paused")
    assert found.paused == (0, 2) and set(found.pause_times) == {0, 2}
    assert found.pause_times[0].first_ns == found.pause_times[0].latest_ns > 0
    ask(workers, streams.resume_stream(root(workers), requests.ResumeStream("paused", 1)))
    assert info(workers, "paused").paused == (0, 2), "it was not paused"
    ask(workers, streams.resume_stream(root(workers), requests.ResumeStream("paused", 2)))
    found = info(workers, "paused")
    assert found.paused == () and found.pause_times[0].latest_ns > found.pause_times[0].first_ns
    for partitions in ((3,), (0, 99)):
        pause = streams.pause_stream(root(workers), requests.PauseStream("paused", partitions))
        assert refused(workers, pause) == Status.PARTITION_NOT_FOUND
    assert refused(workers, streams.resume_stream(root(workers), requests.ResumeStream("paused", 3))) == 3007
    assert info(workers, "paused").paused == ()


# ---- publishing ----


def test_a_published_batch_says_where_it_is(workers: Workers) -> None:
    stream = make(workers, "published")
    publish = services(workers).liftbridge_publish
    first = ask(workers, publish.publish(root(workers), publishing(stream, b"a", b"b", b"c")))
    second = ask(workers, publish.publish(root(workers), publishing(stream, b"d", fsync=True)))
    assert (first.base_offset, second.base_offset) == (0, 3)
    assert second.timestamp_us >= first.timestamp_us + 3, "each message has a timestamp of its own"
    expecting = publishing(stream, b"e", expected_offset=3)
    assert refused(workers, publish.publish(root(workers), expecting)) == Status.UNEXPECTED_OFFSET
    right = replace(expecting, expected_offset=4)
    assert ask(workers, publish.publish(root(workers), right)).base_offset == 4
    assert refused(workers, publish.publish(root(workers), right)) == Status.UNEXPECTED_OFFSET
    for expected in (-2, 1 << 62):
        wrong = replace(right, expected_offset=expected)
        assert refused(workers, publish.publish(root(workers), wrong)) == Status.UNEXPECTED_OFFSET


def test_what_is_not_published(workers: Workers) -> None:
    stream = make(workers, "unpublished")
    good = publishing(stream, b"a")
    cases = [
        (replace(good, count=0), Status.INVALID_MESSAGES_COUNT),
        (replace(good, count=requests.BATCH_MESSAGES_MAX + 1), Status.INVALID_COMMAND),
        (replace(good, partition=2), Status.PARTITION_NOT_FOUND),
        (replace(good, partition=-1), Status.INVALID_COMMAND),
        (replace(good, incarnation=stream.incarnation + 1), Status.TOPIC_ID_NOT_FOUND),
        (replace(good, topic_id=4_000), Status.TOPIC_ID_NOT_FOUND),
        (replace(good, batch=good.batch[:-1]), None),
    ]
    for request, status in cases:
        found = refused(workers, services(workers).liftbridge_publish.publish(root(workers), request))
        assert status is None or found == status
    publish = services(workers).liftbridge_publish
    assert ask(workers, publish.publish(root(workers), good)).base_offset == 0, "nothing of it was stored"


def sends(wire: Wire, topic: str, partitions: int) -> list[int]:
    places = (to_partition(number) for number in range(partitions))
    return [wire.status(Code.SEND_MESSAGES, batch(NAMESPACE, topic, place, [message(b"x")])) for place in places]


def test_a_read_only_partition_is_read_only_for_everybody(workers: Workers) -> None:
    stream = make(workers, "readonly", 4)
    streams, publish = services(workers).liftbridge_streams, services(workers).liftbridge_publish
    wires = [workers.connect(shard) for shard in (0, 1)]
    ask(workers, streams.set_readonly(root(workers), requests.SetReadonly("readonly", (1, 2), True)))
    expected = [0, Status.CANNOT_APPEND_MESSAGE, Status.CANNOT_APPEND_MESSAGE, 0]
    for wire in wires:
        assert sends(wire, "readonly", 4) == expected
    for partition in range(4):
        work = publish.publish(root(workers), publishing(stream, b"x", partition=partition))
        assert status_of(workers, work) == expected[partition]
    wires[0].purge_topic(NAMESPACE, "readonly")
    assert sends(wires[1], "readonly", 4) == expected, "also when it was opened anew"
    ask(workers, streams.pause_stream(root(workers), requests.PauseStream("readonly")))
    ask(workers, streams.resume_stream(root(workers), requests.ResumeStream("readonly", 1)))
    assert sends(wires[0], "readonly", 4) == expected, "over a pause"
    ask(workers, streams.set_readonly(root(workers), requests.SetReadonly("readonly", (), False)))
    assert sends(wires[0], "readonly", 4) == [0, 0, 0, 0]
    found = info(workers, "readonly")
    assert found.readonly == () and set(found.readonly_times) == {0, 1, 2, 3}


# ---- tasks ----


def test_what_is_prepared_is_prepared_once_and_the_server_keeps_its_id(workers: Workers) -> None:
    tasks = services(workers).liftbridge_tasks
    before = workers.context(1).metadata.state
    first, second = (ask(workers, tasks.prepare(requests.Prepare())) for _ in range(2))
    assert first == second and len(first.server_id) == 22
    assert workers.context(1).metadata.state is before
    events = ask(workers, tasks.events(requests.Events(0), lambda each: each))
    assert [(event.op, event.stream) for event in events[:2]] == [
        (ActivityOp.CREATE_STREAM, "__activity"),
        (ActivityOp.CREATE_STREAM, "__cursors"),
    ]
    assert topic_of(workers, "__cursors").message_expiry_us == limits.UNLIMITED
    assert info(workers, "__cursors").subject == f"{NAMESPACE}.cursors"


def test_what_the_server_writes_into_its_own_streams_is_read_from_there(workers: Workers) -> None:
    tasks = services(workers).liftbridge_tasks
    made = publishing(info(workers, "__cursors"), b"one", b"two")
    done = ask(workers, tasks.publish(requests.InternalPublish("__cursors", 0, made.count, made.batch)))
    polled = ask(workers, tasks.poll(requests.InternalPoll("__cursors", 0, done.base_offset + 1, 10)))
    assert polled.count == 1 and b"two" in polled.records and polled.current_offset == done.base_offset + 1
    make(workers, "not-own")
    for name in ("not-own", "none"):
        assert refused(workers, tasks.publish(requests.InternalPublish(name, 0, made.count, made.batch))) == 2010
        assert refused(workers, tasks.poll(requests.InternalPoll(name, 0, 0, 1))) == 2010
    assert refused(workers, tasks.poll(requests.InternalPoll("__cursors", 7, 0, 1))) == 3007


def test_events_are_told_behind_an_index(workers: Workers) -> None:
    tasks = services(workers).liftbridge_tasks
    before = workers.context(1).metadata.state.index
    stream = make(workers, "told", 2)
    ask(workers, tasks.pause_partitions(requests.PausePartitions("told", (1,))))
    ask(
        workers, services(workers).liftbridge_groups.join_group(root(workers), requests.JoinGroup("tg", "m", ("told",)))
    )
    group = workers.context(1).metadata.state.liftbridge.groups["tg"]
    ask(workers, tasks.expire_member(requests.ExpireMember("tg", "m", group.epoch + 1)))
    assert "tg" in workers.context(1).metadata.state.liftbridge.groups, "the epoch was another one"
    for _ in range(2):
        ask(workers, tasks.expire_member(requests.ExpireMember("tg", "m", group.epoch)))
    ask(workers, services(workers).liftbridge_streams.delete_stream(root(workers), requests.DeleteStream("told")))
    events = ask(workers, tasks.events(requests.Events(before), lambda each: each))
    assert [(event.op, event.stream or event.group, event.partitions, event.flag) for event in events] == [
        (ActivityOp.CREATE_STREAM, "told", (0, 1), False),
        (ActivityOp.PAUSE_STREAM, "told", (1,), False),
        (ActivityOp.JOIN_CONSUMER_GROUP, "tg", (), False),
        (ActivityOp.LEAVE_CONSUMER_GROUP, "tg", (), True),
        (ActivityOp.DELETE_STREAM, "told", (), False),
    ]
    assert [event.id for event in events] == sorted({event.id for event in events})
    assert ask(workers, tasks.events(requests.Events(events[-1].id), lambda each: each)) == []
    assert stream.incarnation == events[0].id


def test_all_streams_and_groups_are_told_to_the_door(workers: Workers) -> None:
    tasks, groups = services(workers).liftbridge_tasks, services(workers).liftbridge_groups
    make(workers, "every", 5)
    joined = ask(workers, groups.join_group(root(workers), requests.JoinGroup("eg", "m", ("every", "every"))))
    assert joined.epoch == 0 and joined.members["m"].streams == ("every",)
    streams = ask(workers, tasks.all_streams(requests.AllStreams(), lambda each: each))
    assert info(workers, "every") in streams and streams[0].stream_id == info(workers, "every").stream_id
    known = {each.name: each for each in ask(workers, tasks.all_groups(requests.AllGroups(), lambda each: each))}
    assert known["eg"] == joined
    [group] = ask(workers, groups.get_groups(root(workers), requests.GetGroups(("eg", "eg")), lambda each: each))
    assert group.members["m"].assigned == {"every": (0, 1, 2, 3, 4)}


# ---- logins by a setting ----


def session(workers: Workers, number: int) -> Session:
    return workers.context(1).sessions.open(number, "127.0.0.1:1", 1, "liftbridge", 1)


def test_a_login_by_a_setting_is_never_root_and_is_told(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    logins = services(workers).logins

    async def login(purpose: Purpose) -> int:
        entered = session(workers, next(numbers) << 32 | 0xFFFF_FFFF)
        return (await logins.login_by_setting(Identity(None, 0, entered), purpose)).user_id

    numbers = iter(range(7_000, 8_000))
    assert refused(workers, login(Purpose.ANONYMOUS)) == Status.INVALID_CREDENTIALS
    assert refused(workers, login(Purpose.NATS)) == Status.FEATURE_UNAVAILABLE
    guest = user(workers, "guest")
    with caplog.at_level(logging.INFO, LOGGER):
        for _ in range(3):
            assert ask(workers, login(Purpose.ANONYMOUS)) == guest.user_id
    lines = [record.getMessage() for record in caplog.records if "LoginBySetting" in record.getMessage()]
    assert len(lines) == 1 and "liftbridge.anonymous_user" in lines[0], "one line for many"
    names = {Purpose.NATS: "iggy", Purpose.ANONYMOUS: "asleep"}
    user(workers, "asleep", active=False)
    logins._users_by_setting, kept = names, logins._users_by_setting
    try:
        assert refused(workers, login(Purpose.NATS)) == Status.UNAUTHORIZED
        assert refused(workers, login(Purpose.ANONYMOUS)) == Status.USER_INACTIVE
    finally:
        logins._users_by_setting = kept
