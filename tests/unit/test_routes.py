"""What each kind of change ends of the decisions that engines remember about sends and polls, and what it leaves
(docs/adr/0036): sends through warm routes on both shards of a server, and the misses that they count."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from immutables import Map

from shardd.metadata import concerns
from shardd.metadata.commands import (
    ChangePassword,
    ChangeTopic,
    Command,
    CreateConsumerGroup,
    CreateLiftbridgeStream,
    CreatePartitions,
    CreateStream,
    CreateToken,
    CreateTopic,
    CreateTopicWithSettings,
    CreateUser,
    DeleteConsumerGroup,
    DeleteExpiredTokens,
    DeletePartitions,
    DeleteStream,
    DeleteToken,
    DeleteTopic,
    DeleteUser,
    ExpireProducers,
    InitProducer,
    JoinLiftbridgeGroup,
    LeaveLiftbridgeGroup,
    PauseLiftbridgeStream,
    PrepareLiftbridge,
    PurgeStream,
    PurgeTopic,
    Ref,
    ResumeLiftbridgeStream,
    RevokeAccessToken,
    SetLiftbridgeReadonly,
    SetTopicSettings,
    UpdatePermissions,
    UpdateStream,
    UpdateTopic,
    UpdateUser,
)
from shardd.metadata.state import Permissions, StreamPermissions, Topic, TopicPermissions
from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.service.base import find_stream, find_topic
from tests.support import wire
from tests.support.wire import Wire
from tests.unit.services_harness import Workers

SHARDS = 2
PARTITIONS = 3
FOREVER = 2**64 - 1
HASH = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$aaaa"
ROOT = Ref(0, 1)
SENDS = Permissions(send_messages=True)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("data"), shards=SHARDS) as running:
        yield running


@dataclass
class Scene:
    """Streams `changed` and `other` with a topic "t" each, a user who may send, connections of him and of root on each
    shard. `changed` has a second topic "u". All routes are warm."""

    workers: Workers
    changed: str
    other: str
    user: Ref
    roots: list[Wire]
    users: list[Wire]

    def misses(self) -> int:
        return sum(self.workers.context(shard).engine.counters()["route_misses"] for shard in range(SHARDS))

    def submit(self, command: Command, by: Ref | None = None) -> None:
        metadata = self.workers.context().metadata
        assert self.workers.call(metadata.submit(by or self.workers.root_ref(), command)).status == 0

    def sends(self, connections: list[Wire], stream: int | str, topic: int | str = "t") -> tuple[set[int], int]:
        """Statuses of a send through each of the connections, and the misses."""
        before = self.misses()
        payload = wire.batch(stream, topic, wire.to_partition(0), [wire.message(b"x")])
        statuses = {connection.status(Code.SEND_MESSAGES, payload) for connection in connections}
        return statuses, self.misses() - before

    @property
    def stream(self) -> Ref:
        stream = find_stream(self.workers.context().metadata.state, self.changed)
        assert stream is not None
        return Ref(stream.id, stream.incarnation)

    def find(self) -> Topic:
        topic = find_topic(self.workers.context().metadata.state.streams[self.stream.id], "t")
        assert topic is not None
        return topic

    @property
    def topic(self) -> Ref:
        return Ref(self.find().id, self.find().incarnation)

    def group(self) -> Ref:
        self.submit(CreateConsumerGroup(self.stream, self.topic, "g"))
        [group] = self.find().groups.values()
        return Ref(group.id, group.incarnation)

    def token(self) -> str:
        self.submit(new_token(self), self.user)
        return next(iter(self.workers.context().metadata.state.users[self.user.id].tokens))


@pytest.fixture
def scene(workers: Workers) -> Scene:
    number = next(_numbers)
    changed, other, user = f"changed{number}", f"other{number}", f"user{number}"
    user_id = workers.create_user(user, SENDS)
    incarnation = workers.context().metadata.state.users[user_id].incarnation
    roots = [workers.connect(shard) for shard in range(SHARDS)]
    users = [workers.connect(shard, user, "secret") for shard in range(SHARDS)]
    for stream in (changed, other):
        roots[0].create_stream(stream)
        for topic in ("t", "u"):
            roots[0].create_topic(stream, topic, PARTITIONS)
    made = Scene(workers, changed, other, Ref(user_id, incarnation), roots, users)
    for connections, stream, topic in (
        (roots, changed, "t"),
        (roots, changed, "u"),
        (roots, other, "t"),
        (users, other, "t"),
    ):
        assert made.sends(connections, stream, topic) == ({0}, SHARDS)
        assert made.sends(connections, stream, topic) == ({0}, 0)
    return made


def new_token(scene: Scene) -> CreateToken:
    return CreateToken(scene.user, f"token{next(_numbers)}", next(_numbers).to_bytes(32, "big"), 0, 100)


def new_liftbridge_stream(scene: Scene) -> CreateLiftbridgeStream:
    scene.submit(PrepareLiftbridge(scene.stream, "id"))
    return CreateLiftbridgeStream(scene.stream, "new", 1, 1, FOREVER, FOREVER, 1, title="new", subject="new")


def joined(scene: Scene) -> tuple[str, str]:
    scene.submit(JoinLiftbridgeGroup(ROOT, scene.changed, "m", ((scene.stream, scene.topic),)))
    return scene.changed, "m"


NOTHING, USER, TOPIC, STREAM = "nothing", "user", "topic", "stream"
CASES: dict[type[Command], tuple[str, Callable[[Scene], Command]]] = {
    CreateStream: (NOTHING, lambda s: CreateStream(f"{s.changed}-new")),
    UpdateStream: (STREAM, lambda s: UpdateStream(s.stream, f"{s.changed}-renamed")),
    DeleteStream: (STREAM, lambda s: DeleteStream(s.stream)),
    PurgeStream: (STREAM, lambda s: PurgeStream(s.stream)),
    CreateTopic: (NOTHING, lambda s: CreateTopic(s.stream, "new", 1, 1, FOREVER, FOREVER, 1)),
    CreateTopicWithSettings: (NOTHING, lambda s: CreateTopicWithSettings(s.stream, "new", 1, 1, FOREVER, FOREVER, 1)),
    UpdateTopic: (TOPIC, lambda s: UpdateTopic(s.stream, s.topic, "renamed", 1, FOREVER, FOREVER, 1)),
    DeleteTopic: (TOPIC, lambda s: DeleteTopic(s.stream, s.topic)),
    PurgeTopic: (TOPIC, lambda s: PurgeTopic(s.stream, s.topic)),
    ChangeTopic: (TOPIC, lambda s: ChangeTopic(s.stream, s.topic, "renamed")),
    SetTopicSettings: (NOTHING, lambda s: SetTopicSettings(s.stream, s.topic, (("ack", "memory"),))),
    CreatePartitions: (TOPIC, lambda s: CreatePartitions(s.stream, s.topic, 1)),
    DeletePartitions: (TOPIC, lambda s: DeletePartitions(s.stream, s.topic, 1)),
    CreateConsumerGroup: (NOTHING, lambda s: CreateConsumerGroup(s.stream, s.topic, "g")),
    DeleteConsumerGroup: (NOTHING, lambda s: DeleteConsumerGroup(s.stream, s.topic, s.group())),
    CreateUser: (NOTHING, lambda s: CreateUser(f"new{next(_numbers)}", HASH, True, SENDS)),
    DeleteUser: (USER, lambda s: DeleteUser(s.user)),
    UpdateUser: (USER, lambda s: UpdateUser(s.user, f"renamed{next(_numbers)}", None)),
    UpdatePermissions: (USER, lambda s: UpdatePermissions(s.user, None)),
    ChangePassword: (NOTHING, lambda s: ChangePassword(s.user, HASH)),
    CreateToken: (NOTHING, new_token),
    DeleteToken: (NOTHING, lambda s: DeleteToken(s.user, s.token())),
    RevokeAccessToken: (NOTHING, lambda s: RevokeAccessToken(s.user, next(_numbers).to_bytes(16, "big"), 0)),
    DeleteExpiredTokens: (NOTHING, lambda s: DeleteExpiredTokens()),
    InitProducer: (NOTHING, lambda s: InitProducer(s.user)),
    ExpireProducers: (NOTHING, lambda s: ExpireProducers(1)),
    PrepareLiftbridge: (NOTHING, lambda s: PrepareLiftbridge(s.stream, "id")),
    CreateLiftbridgeStream: (NOTHING, new_liftbridge_stream),
    PauseLiftbridgeStream: (NOTHING, lambda s: PauseLiftbridgeStream(s.stream, s.topic, (), False)),
    ResumeLiftbridgeStream: (NOTHING, lambda s: ResumeLiftbridgeStream(s.stream, s.topic, 0)),
    SetLiftbridgeReadonly: (NOTHING, lambda s: SetLiftbridgeReadonly(s.stream, s.topic, (1,), True)),
    JoinLiftbridgeGroup: (NOTHING, lambda s: JoinLiftbridgeGroup(ROOT, s.changed, "m", ((s.stream, s.topic),))),
    LeaveLiftbridgeGroup: (NOTHING, lambda s: LeaveLiftbridgeGroup(*joined(s))),
}
BY_THE_USER = (CreateToken, DeleteToken, RevokeAccessToken, InitProducer)


def test_every_kind_of_change_says_what_it_concerns() -> None:
    assert set(concerns._CONCERNS) == set(get_args(Command)) == set(CASES)


@pytest.mark.parametrize("kind", get_args(Command), ids=lambda kind: kind.__name__)
def test_a_change_ends_the_routes_that_it_concerns_and_no_others(scene: Scene, kind: type[Command]) -> None:
    concern, make = CASES[kind]
    command = make(scene)
    scene.submit(command, scene.user if kind in BY_THE_USER else None)

    assert scene.sends(scene.roots, scene.other) == ({0}, 0)
    _, misses = scene.sends(scene.users, scene.other)
    assert misses == (SHARDS if concern is USER else 0)
    _, misses = scene.sends(scene.roots, scene.changed)
    assert misses == (SHARDS if concern in (TOPIC, STREAM) else 0)
    _, misses = scene.sends(scene.roots, scene.changed, "u")
    assert misses == (SHARDS if concern is STREAM else 0)


def test_what_is_taken_from_a_user_is_taken_when_the_change_is_answered(scene: Scene) -> None:
    for permissions, status in ((None, Status.UNAUTHORIZED), (SENDS, 0), (Permissions(), Status.UNAUTHORIZED)):
        scene.submit(UpdatePermissions(scene.user, permissions))
        assert scene.sends(scene.users, scene.other)[0] == {status}
    scene.submit(UpdatePermissions(scene.user, SENDS))
    scene.submit(DeleteUser(scene.user))
    assert scene.sends(scene.users, scene.other)[0] == {Status.UNAUTHORIZED}


def test_the_next_user_with_the_id_gets_nothing_of_the_last_one(scene: Scene) -> None:
    scene.submit(DeleteUser(scene.user))
    name = f"next{next(_numbers)}"
    assert scene.workers.create_user(name, None) == scene.user.id
    connections = [scene.workers.connect(shard, name, "secret") for shard in range(SHARDS)]
    assert scene.sends(connections, scene.other)[0] == {Status.UNAUTHORIZED}


def test_a_name_leads_to_whoever_has_it_now(scene: Scene) -> None:
    """The topic that was renamed keeps its messages, and nothing more arrives there by the old name."""
    scene.submit(UpdateTopic(scene.stream, scene.topic, "renamed", 1, FOREVER, FOREVER, 1))
    assert scene.sends(scene.roots, scene.changed)[0] == {Status.TOPIC_ID_NOT_FOUND}
    before = scene.roots[0].partitions(scene.changed, "renamed")[0].messages_count
    scene.roots[0].create_topic(scene.changed, "t", 1)
    assert scene.sends(scene.roots, scene.changed)[0] == {0}
    assert scene.roots[0].partitions(scene.changed, "t")[0].messages_count == SHARDS
    scene.submit(UpdateStream(scene.stream, f"{scene.changed}-renamed"))
    scene.roots[0].create_stream(scene.changed)
    scene.roots[0].create_topic(scene.changed, "t", 1)
    assert scene.sends(scene.roots, scene.changed)[0] == {0}
    assert scene.roots[0].partitions(scene.changed, "t")[0].messages_count == SHARDS
    assert scene.roots[0].partitions(f"{scene.changed}-renamed", "renamed")[0].messages_count == before


def test_a_member_asks_again_when_the_name_of_its_stream_means_another_one(scene: Scene) -> None:
    """What is lent to the engine counts for the topic, not for its name."""
    names = wire.identifier(scene.changed) + wire.identifier("t")
    member = scene.roots[0]
    member.request(Code.CREATE_CONSUMER_GROUP, names + wire.str8("g"))
    member.request(Code.JOIN_CONSUMER_GROUP, names + wire.identifier("g"))
    assert member.poll(scene.changed, "t", None, who=wire.group("g")).partition in range(PARTITIONS)
    scene.submit(UpdateStream(scene.stream, f"{scene.changed}-renamed"))
    root = scene.roots[1]
    root.create_stream(scene.changed)
    root.create_topic(scene.changed, "t", 1)
    root.request(Code.CREATE_CONSUMER_GROUP, names + wire.str8("g"))
    with pytest.raises(wire.StatusError) as refused:
        member.poll(scene.changed, "t", None, who=wire.group("g"))
    assert refused.value.status == Status.CONSUMER_GROUP_MEMBER_NOT_FOUND


def test_users_and_spellings_share_the_partitions_of_a_topic(scene: Scene) -> None:
    def built() -> int:
        return sum(scene.workers.context(shard).engine.counters()["route_topics"] for shard in range(SHARDS))

    before = built()
    for stream in (scene.changed, scene.stream.id):
        for topic in ("t", scene.topic.id):
            assert scene.sends(scene.users, stream, topic)[0] == {0}
            assert scene.sends(scene.roots, stream, topic)[0] == {0}
    scene.submit(UpdatePermissions(scene.user, Permissions(manage_topics=True)))
    assert scene.sends(scene.users, scene.changed) == ({0}, SHARDS)
    assert built() == before
    scene.submit(CreatePartitions(scene.stream, scene.topic, 1))
    assert scene.sends(scene.roots, scene.changed) == ({0}, SHARDS)
    assert scene.sends(scene.users, scene.changed) == ({0}, SHARDS)
    assert built() == before + SHARDS


def test_a_change_without_an_entry_ends_everything(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(concerns._CONCERNS, CreateStream)
    scene.submit(CreateStream(f"{scene.changed}-new"))
    assert scene.sends(scene.roots, scene.other) == ({0}, SHARDS)
    assert scene.sends(scene.users, scene.other) == ({0}, SHARDS)


def test_permissions_that_go_with_a_topic_are_gone_for_its_routes(scene: Scene) -> None:
    """Deleting a topic takes the entries about it from every user; the next topic with its id starts without."""
    about = StreamPermissions(topics=Map({scene.topic.id: TopicPermissions(send_messages=True)}))
    scene.submit(UpdatePermissions(scene.user, Permissions(streams=Map({scene.stream.id: about}))))
    assert scene.sends(scene.users, scene.stream.id, scene.topic.id)[0] == {0}
    topic_id = scene.topic.id
    scene.submit(DeleteTopic(scene.stream, scene.topic))
    assert scene.roots[0].create_topic(scene.changed, "t", PARTITIONS) == topic_id
    assert scene.sends(scene.users, scene.stream.id, topic_id)[0] == {Status.UNAUTHORIZED}
    assert scene.sends(scene.roots, scene.changed)[0] == {0}


def test_the_engine_refuses_partitions_and_decisions_that_make_no_sense(scene: Scene) -> None:
    async def wrong(engine: Any) -> None:
        with pytest.raises(ValueError, match="incarnations"):
            engine.route_topic_put(1, 1 << 50, 0, b"1234567", b"1234")
        with pytest.raises(ValueError, match="slot"):
            engine.route_topic_put(1, 1 << 50, 0, array("Q", [1]), array("I"))
        with pytest.raises(ValueError, match="slot"):
            engine.route_topic_put(1, 1 << 50, 0, array("Q", [1]), array("I", [1 << 31]))
        with pytest.raises(KeyError):
            engine.route_put(0, b"s", b"t", 1 << 50, can_send=True, can_poll=True, user_incarnation=0)
        with pytest.raises(ValueError, match="identifiers"):
            engine.route_put(0, bytes(300), bytes(300), 1 << 50, can_send=True, can_poll=True, user_incarnation=0)
        engine.route_topic_put(1, 1 << 50, 0, array("Q"), array("I"))
        assert engine.route_topic_known(1 << 50)
        engine.routes_end_stream(1)
        assert not engine.route_topic_known(1 << 50)

    scene.workers.call(wrong(scene.workers.context().engine))
