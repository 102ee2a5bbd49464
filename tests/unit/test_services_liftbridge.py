"""The services behind Liftbridge's door: settings, streams, what is published, and the server's own tasks. What it says
of a partition holds for clients of every protocol."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from shardd.protocol import limits
from shardd.protocol import requests as classic
from shardd.protocol.codes import Code
from shardd.protocol.door_frames import Purpose
from shardd.protocol.errors import Status
from shardd.protocol.liftbridge import requests
from shardd.protocol.liftbridge.requests import ActivityOp, StreamInfo
from shardd.protocol.topic_setting_table import SEGMENT_SIZE, SEGMENT_SIZE_LEAST
from shardd.runtime.audit_file import LOGGER
from shardd.service.identity import Identity
from shardd.service.liftbridge.settings import message_expiry_us, topic_settings_of
from shardd.service.liftbridge.streams import LiftbridgeStreamService, topic_name
from shardd.service.long_answers import LongAnswers
from shardd.service.sessions import Session
from tests.support.wire import Wire, batch, identifier, message, str8, to_partition
from tests.unit.liftbridge_harness import MILLISECONDS, NAMESPACE, LiftbridgeWorkers, liftbridge_workers, publishing


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftbridgeWorkers]:
    with liftbridge_workers(tmp_path_factory.mktemp("data")) as running:
        yield running


# ---- streams ----


def test_settings_of_a_stream_are_those_of_its_topic(workers: LiftbridgeWorkers) -> None:
    stream = workers.make(
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
    topic = workers.topic_of("settings")
    assert topic.message_expiry_us == 5_000 * MILLISECONDS
    assert dict(topic.settings) == {
        "retention": "on",
        "size_held_max": "0",
        "partition_messages_max": "7",
        "partition_size_max": str(1 << 21),
        "segment_size": str(SEGMENT_SIZE_LEAST),
        "segment_age_max": str(120_000 * MILLISECONDS),
    }
    assert stream.settings["autoPauseTime"] == 9 and stream.settings["optimisticConcurrencyControl"] is True
    assert (stream.subject, stream.native, stream.created_at_ns) == ("in.settings", False, topic.created_at_us * 1000)


def test_absent_is_the_default_and_0_is_no_limit(workers: LiftbridgeWorkers) -> None:
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
def test_settings_that_are_refused(workers: LiftbridgeWorkers, settings: dict[str, int | bool], status: Status) -> None:
    create = requests.CreateStream("refused", "x", "", 1, settings)
    assert workers.refused(workers.services.liftbridge_streams.create_stream(workers.root, create)) == status
    assert workers.listed(workers.root, "refused") == []


def test_names_are_unique_and_reserved_ones_are_the_servers(workers: LiftbridgeWorkers) -> None:
    streams = workers.services.liftbridge_streams
    workers.make("unique")
    again = requests.CreateStream("unique", "other.subject", "", 1)
    assert workers.refused(streams.create_stream(workers.root, again)) == Status.TOPIC_NAME_ALREADY_EXISTS
    for name in ("__cursors", "__activity"):
        create = requests.CreateStream(name, "x", "", 1)
        assert workers.refused(streams.create_stream(workers.root, create)) == Status.FEATURE_UNAVAILABLE
        assert workers.refused(streams.delete_stream(workers.root, requests.DeleteStream(name))) == 5
        publish = workers.services.liftbridge_publish.publish(workers.root, publishing(workers.info(name), b"x"))
        assert workers.refused(publish) == Status.UNAUTHORIZED
    assert workers.refused(streams.delete_stream(workers.root, requests.DeleteStream("none"))) == 2010
    many = replace(again, name="many", partitions=1001)
    assert workers.refused(streams.create_stream(workers.root, many)) == Status.TOO_MANY_PARTITIONS


def test_a_name_that_no_topic_can_have_gets_a_shorter_one(workers: LiftbridgeWorkers) -> None:
    wire, streams = workers.connect(), workers.services.liftbridge_streams
    workers.make("first-name")
    update = classic.UpdateTopicRequest(NAMESPACE, "first-name", 1, 0, 0, 1, "second-name")
    workers.ask(workers.services.topics.update_topic(workers.root, update))
    workers.ask(streams.create_stream(workers.root, requests.CreateStream("second-name", "x", "", 1)))
    assert workers.topic_of("first-name").name == "second-name"
    assert workers.topic_of("second-name").name.startswith("second-name~")
    home = workers.state.streams[workers.info("first-name").stream_id]
    assert len(topic_name(home, "ä" * 300).encode()) <= limits.NAME_BYTES_MAX
    wire.close()


def test_a_topic_of_the_namespace_made_natively_is_a_stream(workers: LiftbridgeWorkers) -> None:
    wire = workers.connect()
    wire.create_topic(NAMESPACE, "native one", 3)
    found = workers.info("native one")
    assert (found.subject, found.partitions, found.native, found.settings) == ("native%20one", 3, False, {})


def test_topics_of_other_streams_are_there_as_far_as_they_are_exposed(workers: LiftbridgeWorkers) -> None:
    wire = workers.connect()
    wire.create_stream("with/slash")
    wire.create_topic("with/slash", "t/t", 1)
    found = workers.info("with/slash/t/t")
    assert (found.subject, found.native) == ("with/slash.t/t", True)
    context = workers.context(1)
    for exposed, seen, status in (("off", 0, 2010), ("read", 1, 41), ("readwrite", 1, 0)):
        settings = replace(context.settings.liftbridge, expose_native=exposed)
        streams = LiftbridgeStreamService(context.metadata, settings, LongAnswers(context.engine))
        request = requests.ListStreams(("with/slash/t/t",))
        assert len(workers.ask(streams.list_streams(workers.root, request, lambda each: each))) == seen
        everything = workers.ask(streams.list_streams(workers.root, requests.ListStreams(), lambda each: each.name))
        assert ("with/slash/t/t" in everything) == bool(seen)
        pause = streams.pause_stream(workers.root, requests.PauseStream("with/slash/t/t"))
        assert workers.status_of(pause) == status
    assert workers.info("with/slash/t/t").paused == (0,)


def everything(workers: LiftbridgeWorkers) -> list[StreamInfo]:
    """What the router of the door is told."""
    tasks = workers.services.liftbridge_tasks
    return workers.ask(tasks.all_streams(requests.AllStreams(), lambda each: each))


def test_native_topic_with_the_name_of_a_stream_is_not_told(workers: LiftbridgeWorkers) -> None:
    made = workers.make("taken/name", 1)
    wire = workers.connect()
    wire.create_stream("taken")
    wire.create_topic("taken", "name", 1)
    wire.create_topic("taken", "free", 1)
    assert workers.info("taken/name") == made
    names = [each.name for each in everything(workers)]
    assert [each for each in everything(workers) if each.name == "taken/name"] == [made]
    assert "taken/free" in names and len(names) == len(set(names))
    assert [each for each in workers.listed(workers.root) if each.name == "taken/name"] == [made]


def test_name_of_two_native_topics_is_that_of_the_first(workers: LiftbridgeWorkers) -> None:
    wire = workers.connect()
    wire.create_stream("split/in")
    wire.create_topic("split/in", "two", 2)
    first = workers.info("split/in/two")
    wire.create_stream("split")
    wire.create_topic("split", "in/two", 3)
    assert workers.info("split/in/two") == first
    assert [each for each in everything(workers) if each.name == "split/in/two"] == [first]


def test_topic_of_the_namespace_cannot_take_the_name_of_an_exposed_topic(workers: LiftbridgeWorkers) -> None:
    wire = workers.connect()
    wire.create_stream("exposed")
    wire.create_topic("exposed", "topic", 2)
    found = workers.info("exposed/topic")
    fixed = struct.pack("<IBQQB", 1, 1, 0, 0, 0)
    assert wire.status(Code.CREATE_TOPIC, identifier(NAMESPACE) + fixed + str8("exposed/topic")) == 2013
    assert workers.info("exposed/topic") == found


def test_pause_and_resume(workers: LiftbridgeWorkers) -> None:
    streams = workers.services.liftbridge_streams
    workers.make("paused", 3)
    workers.ask(streams.pause_stream(workers.root, requests.PauseStream("paused", (0, 2), True)))
    found = workers.info("paused")
    assert found.paused == (0, 2) and set(found.pause_times) == {0, 2}
    assert found.pause_times[0].first_ns == found.pause_times[0].latest_ns > 0
    workers.ask(streams.resume_stream(workers.root, requests.ResumeStream("paused", 1)))
    assert workers.info("paused").paused == (0, 2), "it was not paused"
    workers.ask(streams.resume_stream(workers.root, requests.ResumeStream("paused", 2)))
    found = workers.info("paused")
    assert found.paused == () and found.pause_times[0].latest_ns > found.pause_times[0].first_ns
    for partitions in ((3,), (0, 99)):
        pause = streams.pause_stream(workers.root, requests.PauseStream("paused", partitions))
        assert workers.refused(pause) == Status.PARTITION_NOT_FOUND
    assert workers.refused(streams.resume_stream(workers.root, requests.ResumeStream("paused", 3))) == 3007
    assert workers.info("paused").paused == ()


# ---- publishing ----


def test_a_published_batch_says_where_it_is(workers: LiftbridgeWorkers) -> None:
    stream = workers.make("published")
    publish = workers.services.liftbridge_publish
    first = workers.ask(publish.publish(workers.root, publishing(stream, b"a", b"b", b"c")))
    second = workers.ask(publish.publish(workers.root, publishing(stream, b"d", fsync=True)))
    assert (first.base_offset, second.base_offset) == (0, 3)
    assert second.timestamp_us >= first.timestamp_us + 3, "each message has a timestamp of its own"
    expecting = publishing(stream, b"e", expected_offset=3)
    assert workers.refused(publish.publish(workers.root, expecting)) == Status.UNEXPECTED_OFFSET
    right = replace(expecting, expected_offset=4)
    assert workers.ask(publish.publish(workers.root, right)).base_offset == 4
    assert workers.refused(publish.publish(workers.root, right)) == Status.UNEXPECTED_OFFSET
    for expected in (-2, 1 << 62):
        wrong = replace(right, expected_offset=expected)
        assert workers.refused(publish.publish(workers.root, wrong)) == Status.UNEXPECTED_OFFSET


def test_what_is_not_published(workers: LiftbridgeWorkers) -> None:
    stream = workers.make("unpublished")
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
        found = workers.refused(workers.services.liftbridge_publish.publish(workers.root, request))
        assert status is None or found == status
    publish = workers.services.liftbridge_publish
    assert workers.ask(publish.publish(workers.root, good)).base_offset == 0, "nothing of it was stored"


def sends(wire: Wire, topic: str, partitions: int) -> list[int]:
    places = (to_partition(number) for number in range(partitions))
    return [wire.status(Code.SEND_MESSAGES, batch(NAMESPACE, topic, place, [message(b"x")])) for place in places]


def test_a_read_only_partition_is_read_only_for_everybody(workers: LiftbridgeWorkers) -> None:
    stream = workers.make("readonly", 4)
    streams, publish = workers.services.liftbridge_streams, workers.services.liftbridge_publish
    wires = [workers.connect(shard) for shard in (0, 1)]
    workers.ask(streams.set_readonly(workers.root, requests.SetReadonly("readonly", (1, 2), True)))
    expected = [0, Status.CANNOT_APPEND_MESSAGE, Status.CANNOT_APPEND_MESSAGE, 0]
    for wire in wires:
        assert sends(wire, "readonly", 4) == expected
    for partition in range(4):
        work = publish.publish(workers.root, publishing(stream, b"x", partition=partition))
        assert workers.status_of(work) == expected[partition]
    wires[0].purge_topic(NAMESPACE, "readonly")
    assert sends(wires[1], "readonly", 4) == expected, "also when it was opened anew"
    workers.ask(streams.pause_stream(workers.root, requests.PauseStream("readonly")))
    workers.ask(streams.resume_stream(workers.root, requests.ResumeStream("readonly", 1)))
    assert sends(wires[0], "readonly", 4) == expected, "over a pause"
    workers.ask(streams.set_readonly(workers.root, requests.SetReadonly("readonly", (), False)))
    assert sends(wires[0], "readonly", 4) == [0, 0, 0, 0]
    workers.wait_for_paused("readonly")
    found = workers.info("readonly")
    assert found.readonly == () and set(found.readonly_times) == {0, 1, 2, 3}


# ---- tasks ----


def test_what_is_prepared_is_prepared_once_and_the_server_keeps_its_id(workers: LiftbridgeWorkers) -> None:
    tasks = workers.services.liftbridge_tasks
    before = workers.state
    first, second = (workers.ask(tasks.prepare(requests.Prepare())) for _ in range(2))
    assert first == second and len(first.server_id) == 22
    assert workers.state is before
    events = workers.ask(tasks.events(requests.Events(0), lambda each: each))
    assert [(event.op, event.stream) for event in events[:2]] == [
        (ActivityOp.CREATE_STREAM, "__activity"),
        (ActivityOp.CREATE_STREAM, "__cursors"),
    ]
    assert workers.topic_of("__cursors").message_expiry_us == limits.UNLIMITED
    assert workers.info("__cursors").subject == f"{NAMESPACE}.cursors"


def test_what_the_server_writes_into_its_own_streams_is_read_from_there(workers: LiftbridgeWorkers) -> None:
    tasks = workers.services.liftbridge_tasks
    made = publishing(workers.info("__cursors"), b"one", b"two")
    done = workers.ask(tasks.publish(requests.InternalPublish("__cursors", 0, made.count, made.batch)))
    polled = workers.ask(tasks.poll(requests.InternalPoll("__cursors", 0, done.base_offset + 1, 10)))
    assert polled.count == 1 and b"two" in polled.records and polled.current_offset == done.base_offset + 1
    workers.make("not-own")
    for name in ("not-own", "none"):
        assert workers.refused(tasks.publish(requests.InternalPublish(name, 0, made.count, made.batch))) == 2010
        assert workers.refused(tasks.poll(requests.InternalPoll(name, 0, 0, 1))) == 2010
    assert workers.refused(tasks.poll(requests.InternalPoll("__cursors", 7, 0, 1))) == 3007


def test_events_are_told_behind_an_index(workers: LiftbridgeWorkers) -> None:
    tasks = workers.services.liftbridge_tasks
    before = workers.state.index
    stream = workers.make("told", 2)
    workers.ask(tasks.pause_partitions(requests.PausePartitions("told", (1,))))
    workers.ask(workers.services.liftbridge_groups.join_group(workers.root, requests.JoinGroup("tg", "m", ("told",))))
    group = workers.state.liftbridge.groups["tg"]
    workers.ask(tasks.expire_member(requests.ExpireMember("tg", "m", group.epoch + 1)))
    assert "tg" in workers.state.liftbridge.groups, "the epoch was another one"
    for _ in range(2):
        workers.ask(tasks.expire_member(requests.ExpireMember("tg", "m", group.epoch)))
    workers.ask(workers.services.liftbridge_streams.delete_stream(workers.root, requests.DeleteStream("told")))
    events = workers.ask(tasks.events(requests.Events(before), lambda each: each))
    assert [(event.op, event.stream or event.group, event.partitions, event.flag) for event in events] == [
        (ActivityOp.CREATE_STREAM, "told", (0, 1), False),
        (ActivityOp.PAUSE_STREAM, "told", (1,), False),
        (ActivityOp.JOIN_CONSUMER_GROUP, "tg", (), False),
        (ActivityOp.LEAVE_CONSUMER_GROUP, "tg", (), True),
        (ActivityOp.DELETE_STREAM, "told", (), False),
    ]
    assert [event.id for event in events] == sorted({event.id for event in events})
    assert workers.ask(tasks.events(requests.Events(events[-1].id), lambda each: each)) == []
    assert stream.incarnation == events[0].id


def test_all_streams_and_groups_are_told_to_the_door(workers: LiftbridgeWorkers) -> None:
    tasks, groups = workers.services.liftbridge_tasks, workers.services.liftbridge_groups
    workers.make("every", 5)
    joined = workers.ask(groups.join_group(workers.root, requests.JoinGroup("eg", "m", ("every", "every"))))
    assert joined.epoch == 0 and joined.members["m"].streams == ("every",)
    streams = workers.ask(tasks.all_streams(requests.AllStreams(), lambda each: each))
    assert workers.info("every") in streams and streams[0].stream_id == workers.info("every").stream_id
    known = {each.name: each for each in workers.ask(tasks.all_groups(requests.AllGroups(), lambda each: each))}
    assert known["eg"] == joined
    [group] = workers.ask(groups.get_groups(workers.root, requests.GetGroups(("eg", "eg")), lambda each: each))
    assert group.members["m"].assigned == {"every": (0, 1, 2, 3, 4)}


# ---- logins by a setting ----


def session(workers: LiftbridgeWorkers, number: int) -> Session:
    return workers.context(1).sessions.open(number, "127.0.0.1:1", 1, "liftbridge", 1)


def test_a_login_by_a_setting_is_never_root_and_is_told(
    workers: LiftbridgeWorkers, caplog: pytest.LogCaptureFixture
) -> None:
    logins = workers.services.logins

    async def login(purpose: Purpose) -> int:
        entered = session(workers, next(numbers) << 32 | 0xFFFF_FFFF)
        return (await logins.login_by_setting(Identity(None, 0, entered), purpose)).user_id

    numbers = iter(range(7_000, 8_000))
    assert workers.refused(login(Purpose.ANONYMOUS)) == Status.INVALID_CREDENTIALS
    assert workers.refused(login(Purpose.NATS)) == Status.FEATURE_UNAVAILABLE
    guest = workers.user("guest")
    with caplog.at_level(logging.INFO, LOGGER):
        for _ in range(3):
            assert workers.ask(login(Purpose.ANONYMOUS)) == guest.user_id
    lines = [record.getMessage() for record in caplog.records if "LoginBySetting" in record.getMessage()]
    assert len(lines) == 1 and "liftbridge.anonymous_user" in lines[0], "one line for many"
    names = {Purpose.NATS: "iggy", Purpose.ANONYMOUS: "asleep"}
    workers.user("asleep", active=False)
    logins._users_by_setting, kept = names, logins._users_by_setting
    try:
        assert workers.refused(login(Purpose.NATS)) == Status.UNAUTHORIZED
        assert workers.refused(login(Purpose.ANONYMOUS)) == Status.USER_INACTIVE
    finally:
        logins._users_by_setting = kept
