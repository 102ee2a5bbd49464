"""Who may do what through Liftbridge's services."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from immutables import Map
from msgspec.structs import replace

from shardd.protocol.errors import Status
from shardd.protocol.liftbridge import requests
from shardd.protocol.liftbridge.creation import RESERVED_STREAMS
from shardd.protocol.liftbridge.requests import StreamInfo
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from shardd.service.identity import Identity
from shardd.service.services import Services
from tests.unit.liftbridge_harness import LiftbridgeWorkers, liftbridge_workers, publishing


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftbridgeWorkers]:
    with liftbridge_workers(tmp_path_factory.mktemp("data")) as running:
        yield running


Ask = Callable[[Services, Identity, StreamInfo], Coroutine[Any, Any, object]]
MATRIX: dict[str, tuple[Ask, set[str]]] = {
    "create": (
        lambda s, who, stream: s.liftbridge_streams.create_stream(
            who, requests.CreateStream(f"{stream.name}-{who.user_id}", "x", "", 1)
        ),
        {"manage_stream", "manage_topics", "root"},
    ),
    "delete": (
        lambda s, who, stream: s.liftbridge_streams.delete_stream(who, requests.DeleteStream(stream.name)),
        {"manage_topic", "manage_stream", "manage_topics", "root"},
    ),
    "pause": (
        lambda s, who, stream: s.liftbridge_streams.pause_stream(who, requests.PauseStream(stream.name)),
        {"manage_topic", "manage_stream", "manage_topics", "root"},
    ),
    "readonly": (
        lambda s, who, stream: s.liftbridge_streams.set_readonly(who, requests.SetReadonly(stream.name, (), False)),
        {"manage_topic", "manage_stream", "manage_topics", "root"},
    ),
    "resume": (
        lambda s, who, stream: s.liftbridge_streams.resume_stream(who, requests.ResumeStream(stream.name, 0)),
        {"send", "poll", "read_topic", "manage_topic", "manage_stream", "manage_topics", "root"},
    ),
    "publish": (
        lambda s, who, stream: s.liftbridge_publish.publish(who, publishing(stream, b"x")),
        {"send", "manage_topic", "manage_stream", "manage_topics", "root"},
    ),
    "join": (
        lambda s, who, stream: s.liftbridge_groups.join_group(
            who, requests.JoinGroup(f"g-{stream.name}", f"m-{who.user_id}", (stream.name,))
        ),
        {"poll", "read_topic", "manage_topic", "manage_stream", "manage_topics", "root"},
    ),
}
TOPIC_FLAGS = {
    "poll": "poll_messages",
    "send": "send_messages",
    "read_topic": "read_topic",
    "manage_topic": "manage_topic",
}
STREAM_FLAGS = {"manage_stream": "manage_stream", "manage_topics": "manage_topics"}


def everybody(workers: LiftbridgeWorkers, stream: StreamInfo, about: str) -> dict[str, Identity]:
    """One user for each flag that counts, on this stream only; one without any; root."""
    users = {"root": workers.root, "nobody": workers.user(f"{about}-nobody")}
    for name, flag in TOPIC_FLAGS.items():
        topics = Map({stream.topic_id: TopicPermissions(**{flag: True})})
        entry = StreamPermissions(topics=topics)
        users[name] = workers.user(f"{about}-{name}", Permissions(streams=Map({stream.stream_id: entry})))
    for name, flag in STREAM_FLAGS.items():
        entry = replace(StreamPermissions(), **{flag: True})
        users[name] = workers.user(f"{about}-{name}", Permissions(streams=Map({stream.stream_id: entry})))
    return users


@pytest.mark.parametrize("command", sorted(MATRIX.keys() - {"delete"}))
def test_who_may_do_what(workers: LiftbridgeWorkers, command: str) -> None:
    work, may = MATRIX[command]
    stream = workers.make(f"rights-{command}")
    pause = requests.PauseStream(stream.name)
    allowed = set()
    for name, who in everybody(workers, stream, command).items():
        if command == "resume":
            workers.ask(workers.services.liftbridge_streams.pause_stream(workers.root, pause))
        status = workers.status_of(work(workers.services, who, stream))
        assert status in (0, Status.UNAUTHORIZED), (name, status)
        if status == 0:
            allowed.add(name)
    assert allowed == may


@pytest.mark.parametrize("flag", sorted(MATRIX["delete"][1] | {"poll", "send", "read_topic", "nobody"}))
def test_who_may_delete(workers: LiftbridgeWorkers, flag: str) -> None:
    stream = workers.make(f"delete-{flag}")
    who = everybody(workers, stream, f"delete-{flag}"[:30])[flag]
    work = workers.services.liftbridge_streams.delete_stream(who, requests.DeleteStream(stream.name))
    assert workers.status_of(work) == (0 if flag in MATRIX["delete"][1] else Status.UNAUTHORIZED)


def test_a_stream_is_seen_by_whoever_may_do_something_with_it(workers: LiftbridgeWorkers) -> None:
    stream = workers.make("seen")
    for name, who in everybody(workers, stream, "see").items():
        assert bool(workers.listed(who, "seen")) == (name != "nobody")
        assert ("seen" in [each.name for each in workers.listed(who)]) == (name != "nobody")


def test_a_member_is_seen_and_removed_by_whoever_could_be_it(workers: LiftbridgeWorkers) -> None:
    one, two = workers.make("member-one"), workers.make("member-two")
    groups = workers.services.liftbridge_groups
    users = everybody(workers, one, "member")
    workers.ask(groups.join_group(workers.root, requests.JoinGroup("mg", "both", (one.name, two.name))))
    workers.ask(groups.join_group(users["poll"], requests.JoinGroup("mg", "first", (one.name,))))
    assert workers.refused(groups.join_group(users["poll"], requests.JoinGroup("mg", "x", (two.name,)))) == 41
    assert workers.refused(groups.join_group(users["poll"], requests.JoinGroup("mg", "x", ("none",)))) == 41
    assert workers.refused(groups.join_group(workers.root, requests.JoinGroup("mg", "x", ("none",)))) == 2010

    def members(who: Identity) -> set[str]:
        found = workers.ask(groups.get_groups(who, requests.GetGroups(("mg", "other")), lambda each: each))
        return {member for group in found for member in group.members}

    assert members(workers.root) == {"both", "first"}
    assert members(users["poll"]) == members(users["read_topic"]) == {"first"}
    assert members(users["send"]) == members(users["nobody"]) == set()
    assert workers.refused(groups.leave_group(users["poll"], requests.LeaveGroup("mg", "both"))) == 41
    assert workers.refused(groups.leave_group(users["send"], requests.LeaveGroup("mg", "first"))) == 41
    workers.ask(groups.leave_group(users["read_topic"], requests.LeaveGroup("mg", "first")))
    assert workers.refused(groups.leave_group(workers.root, requests.LeaveGroup("mg", "first"))) == 5006
    assert workers.refused(groups.leave_group(workers.root, requests.LeaveGroup("no", "first"))) == 5000


def test_without_a_login_nothing_is_done(workers: LiftbridgeWorkers) -> None:
    stream = workers.make("login")
    nobody = Identity(None)
    for work, _ in MATRIX.values():
        assert workers.refused(work(workers.services, nobody, stream)) == Status.UNAUTHENTICATED
    assert workers.refused(workers.services.liftbridge_groups.get_groups(nobody, requests.GetGroups(("x",)), str)) == 40
    assert workers.refused(workers.services.liftbridge_streams.list_streams(nobody, requests.ListStreams(), str)) == 40
    leave = workers.services.liftbridge_groups.leave_group(nobody, requests.LeaveGroup("a", "b"))
    assert workers.refused(leave) == 40


def test_a_member_whose_streams_are_gone_leaves_by_whoever_may_poll_the_namespace(workers: LiftbridgeWorkers) -> None:
    stream = workers.make("going")
    groups, streams = workers.services.liftbridge_groups, workers.services.liftbridge_streams
    users = everybody(workers, stream, "going")
    workers.ask(groups.join_group(users["poll"], requests.JoinGroup("left", "m", ("going",))))
    workers.ask(streams.delete_stream(workers.root, requests.DeleteStream("going")))
    leave = requests.LeaveGroup("left", "m")
    assert workers.refused(groups.leave_group(users["poll"], leave)) == Status.UNAUTHORIZED
    workers.ask(groups.leave_group(users["manage_topics"], leave))
    assert workers.refused(groups.leave_group(workers.root, leave)) == Status.CONSUMER_GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("name", sorted(RESERVED_STREAMS))
def test_nobody_sends_natively_to_what_the_server_writes(workers: LiftbridgeWorkers, name: str) -> None:
    everything = Permissions(manage_streams=True, manage_topics=True, send_messages=True, poll_messages=True)
    who, messages = workers.user(f"mighty-{name}", everything), workers.services.messages
    other = workers.make(f"beside-{name}")
    for stream, expected in ((workers.info(name), Status.UNAUTHORIZED), (other, 0)):
        place = Partitioning(PartitioningKind.PARTITION, 0)
        batch = SendMessages.of(stream.stream_id, stream.topic_id, place, [NewMessage(b"forged")])
        assert workers.status_of(messages.send_messages(who, batch)) == expected
