"""Random changes of the metadata with sends and polls of several users in between, on warm routes of a real server with
two shards. The oracle remembers nothing: it decides each request afresh from the state of the moment."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from immutables import Map

from shardd.metadata import commands
from shardd.metadata.commands import Command, Ref
from shardd.metadata.state import Permissions, State, Stream, StreamPermissions, Topic, TopicPermissions
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity
from shardd.worker.partition_marks import readonly_partitions
from tests.property.test_metadata_state_machine import NAMES, random_command
from tests.support import wire
from tests.support.wide import wide_but
from tests.support.wire import Wire
from tests.unit.services_harness import Workers

SHARDS = 2
STEPS = 600
CHANGES_PART = 0.2
HASH = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$aaaa"
GONE = (1 << 32) - 1  # no user: whom a connection belongs to when its user was deleted


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    kept = {"data_maintenance.messages.cleaner_enabled": "false"}  # random topics have limits of some microseconds
    with Workers(tmp_path_factory.mktemp("data"), shards=SHARDS, settings=kept) as running:
        yield running


class History:
    def __init__(self, workers: Workers, seed: int) -> None:
        self.workers = workers
        self.rng = random.Random(seed)
        self.seed = seed
        self.connections: list[tuple[Ref, Wire]] = []
        self.sent: Counter[tuple[int, int]] = Counter()  # (namespace, incarnation) -> messages
        self.made = 0

    @property
    def state(self) -> State:
        return self.workers.context().metadata.state

    def permissions(self) -> Permissions | None:
        rng = self.rng
        topics = Map({n: TopicPermissions(send_messages=rng.random() < 0.7) for n in range(rng.randint(0, 3))})
        streams = Map(
            {n: StreamPermissions(topics=topics, poll_messages=rng.random() < 0.3) for n in range(rng.randint(0, 3))}
        )
        everywhere = Permissions(send_messages=rng.random() < 0.4, poll_messages=rng.random() < 0.4, streams=streams)
        return rng.choice([everywhere, everywhere, None])

    def add_user(self) -> None:
        self.made += 1
        name = f"user{self.seed}-{self.made}"
        user_id = self.workers.create_user(name, self.permissions())
        ref = Ref(user_id, self.state.users[user_id].incarnation)
        self.connections += [(ref, self.workers.connect(shard, name, "secret")) for shard in range(SHARDS)]

    def change(self) -> None:
        rng = self.rng
        users = [user for user in self.state.users.values() if user.id != 0 and user.name.startswith("user")]
        command: Command = random_command(rng, self.state)
        if isinstance(command, commands.DeleteStream | commands.DeleteTopic) and rng.random() < 0.7:
            return  # else there is little to send to
        by = self.workers.root_ref()
        if users and rng.random() < 0.4:
            user = rng.choice(sorted(users, key=lambda each: each.id))
            ref = Ref(user.id, user.incarnation)
            token = commands.CreateToken(ref, f"token{rng.random()}", rng.randbytes(32), 0, 100)
            kinds: list[Command] = [
                commands.UpdatePermissions(ref, self.permissions()),
                commands.UpdateUser(ref, None, rng.random() < 0.9),
                commands.ChangePassword(ref, HASH),
                token,
                commands.DeleteExpiredTokens(),
                commands.DeleteUser(ref),
            ]
            command = rng.choices(kinds, [6, 2, 1, 3, 1, 1])[0]
            by = ref if command is token else by
        if isinstance(command, commands.CreateUser | commands.DeleteUser) and rng.random() < 0.7:
            self.add_user()  # somebody gets the ids that are free
        else:
            self.workers.call(self.workers.context().metadata.submit(by, command))  # some are refused

    def names(self) -> tuple[Identifier, Identifier]:
        rng = self.rng
        there: list[Identifier] = [*sorted(self.state.stream_ids), *sorted(self.state.streams)]
        stream = rng.choice([*there, *there, rng.choice(NAMES), rng.randint(0, 4)])
        found = base.find_stream(self.state, stream)
        topics: list[Identifier] = [] if found is None else [*sorted(found.topic_ids), *sorted(found.topics)]
        return stream, rng.choice([*topics, *topics, rng.choice(NAMES), rng.randint(0, 4)])

    def request(self) -> None:
        rng = self.rng
        user, connection = rng.choice(self.connections[: rng.choice([SHARDS, len(self.connections)])])
        stream, topic = self.names()
        partition, sends = rng.choice([0, 0, 1, 1, 2, 3, 4]), rng.random() < 0.7
        rule = Rule.SEND_MESSAGES if sends else Rule.POLL_MESSAGES
        status, place = self.oracle(user, rule, (stream, topic), partition)
        payload = wire.batch(stream, topic, wire.to_partition(partition), [wire.message(b"x")])
        if not sends:
            address = wire.consumer() + wire.identifier(stream) + wire.identifier(topic)
            payload = address + wire.optional_partition(partition) + bytes([1, *bytes(8), 1, 0, 0, 0, 0])
        told = connection.status(Code.SEND_MESSAGES if sends else Code.POLL_MESSAGES, payload)
        assert told == status, (user, rule, stream, topic, partition)
        if sends and place is not None:
            self.sent[place] += 1

    def oracle(
        self, user: Ref, rule: Rule, names: tuple[Identifier, Identifier], partition: int
    ) -> tuple[int, tuple[int, int] | None]:
        state = self.state
        known = state.users.get(user.id)
        user_id = user.id if known is not None and known.incarnation == user.incarnation else GONE
        try:
            stream, topic = base.topic_of(state, *names)
            base.require(state, Identity(user_id), rule, stream, topic)
            found = base.partition_of(topic, partition)
        except ShardError as error:
            return error.status, None
        if rule is Rule.SEND_MESSAGES and partition in readonly_partitions(topic):
            return Status.CANNOT_APPEND_MESSAGE, None
        return 0, (base.partition_namespace(stream, topic, found), found.incarnation)

    def check_where_messages_are(self) -> None:
        root = self.connections[0][1]
        for stream in self.state.streams.values():
            for topic in stream.topics.values():
                self.check_topic(root, stream, topic)

    def check_topic(self, root: Wire, stream: Stream, topic: Topic) -> None:
        expected = [
            self.sent[base.partition_namespace(stream, topic, each), each.incarnation] for each in topic.partitions
        ]
        assert [each.messages_count for each in root.partitions(stream.id, topic.id)] == expected


@pytest.mark.parametrize("seed", wide_but(range(2), range(4)))
def test_remembered_decisions_are_those_of_the_moment(workers: Workers, seed: int) -> None:
    history = History(workers, seed)
    root = workers.root_ref()
    history.connections = [(root, workers.connect(shard)) for shard in range(SHARDS)]
    for name in list(history.state.stream_ids):  # of the last seed
        history.connections[0][1].delete_stream(name)
    for name in NAMES[:3]:
        history.connections[0][1].create_stream(name)
        for topic in NAMES[:3]:
            history.connections[0][1].create_topic(name, topic, 3)
    for _ in range(3):
        history.add_user()
    statuses = 0
    for _ in range(STEPS):
        if history.rng.random() < CHANGES_PART:
            history.change()
        else:
            history.request()
            statuses += 1
    history.check_where_messages_are()
    misses = sum(workers.context(shard).engine.counters()["route_misses"] for shard in range(SHARDS))
    print(f"{history.sent.total()} sends were taken, {misses} misses")
    assert statuses > STEPS // 2 and history.sent.total() > 20 and misses > 0


def test_the_oracle_sees_a_right_that_stays_behind(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary of this file: with changes that end nothing, a history fails."""
    monkeypatch.setattr("shardd.service.routes.concern_of", lambda old, command: None)
    with pytest.raises(AssertionError):
        for seed in range(100, 110):
            test_remembered_decisions_are_those_of_the_moment(workers, seed)
