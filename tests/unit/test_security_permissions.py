"""The permission matrix, flag by flag, against a second transcription of it."""

from __future__ import annotations

from typing import Any

import pytest
from immutables import Map

from shardd.metadata import commands
from shardd.metadata.commands import Command, Ref
from shardd.metadata.state import Permissions, State, StreamPermissions, TopicPermissions, User
from shardd.security import Rule, allowed, command_allowed, grants
from shardd.security.root import ROOT_PERMISSIONS

# rule: flags as `G` (global), `S` (stream), `T` (topic), as the table of the protocol lists them
TABLE = {
    Rule.READ_SERVER: "G.manage_servers G.read_servers",
    Rule.READ_USER: "G.manage_users G.read_users",
    Rule.MANAGE_USERS: "G.manage_users",
    Rule.GET_STREAM: "G.manage_streams G.read_streams S.manage_stream S.read_stream",
    Rule.GET_STREAMS: "G.manage_streams G.read_streams",
    Rule.CREATE_STREAM: "G.manage_streams",
    Rule.CHANGE_STREAM: "G.manage_streams S.manage_stream",
    Rule.GET_TOPICS: "G.manage_streams G.read_streams G.manage_topics G.read_topics "
    "S.manage_stream S.read_stream S.manage_topics S.read_topics",
    Rule.GET_TOPIC: "G.manage_streams G.read_streams G.manage_topics G.read_topics "
    "S.manage_stream S.read_stream S.manage_topics S.read_topics T.manage_topic T.read_topic",
    Rule.CREATE_TOPIC: "G.manage_streams G.manage_topics S.manage_stream S.manage_topics",
    Rule.CHANGE_TOPIC: "G.manage_streams G.manage_topics S.manage_stream S.manage_topics T.manage_topic",
    Rule.POLL_MESSAGES: "G.manage_streams G.read_streams G.manage_topics G.read_topics G.poll_messages "
    "S.manage_stream S.read_stream S.manage_topics S.read_topics S.poll_messages "
    "T.manage_topic T.read_topic T.poll_messages",
    Rule.SEND_MESSAGES: "G.send_messages G.manage_streams G.manage_topics S.send_messages S.manage_stream "
    "S.manage_topics T.send_messages T.manage_topic",
}
STREAM, TOPIC = 3, 5


def one_flag(level: str, flag: str) -> Permissions:
    """A record with a single right on stream 3 and its topic 5."""
    right: dict[str, Any] = {flag: True}
    if level == "G":
        return Permissions(**right)
    if level == "S":
        return Permissions(streams=Map({STREAM: StreamPermissions(**right)}))
    topics = Map({TOPIC: TopicPermissions(**right)})
    return Permissions(streams=Map({STREAM: StreamPermissions(topics=topics)}))


def all_flags() -> list[str]:
    levels = {"G": Permissions, "S": StreamPermissions, "T": TopicPermissions}
    return [
        f"{level}.{name}"
        for level, kind in levels.items()
        for name in kind.__struct_fields__
        if name not in ("streams", "topics")
    ]


def test_the_matrix_covers_every_rule_and_flag() -> None:
    assert set(TABLE) == set(Rule)
    assert len(all_flags()) == 20


@pytest.mark.parametrize("rule", list(Rule), ids=lambda rule: rule.name)
def test_each_flag_grants_exactly_what_the_table_says(rule: Rule) -> None:
    granting = {flag for flag in all_flags() if grants(one_flag(*flag.split(".")), rule, STREAM, TOPIC)}
    assert granting == set(TABLE[rule].split())


@pytest.mark.parametrize("flag", [flag for flag in all_flags() if flag[0] != "G"])
def test_entries_of_other_streams_and_topics_grant_nothing(flag: str) -> None:
    permissions = one_flag(*flag.split("."))
    for rule in Rule:
        assert not grants(permissions, rule, STREAM + 1, TOPIC)
        assert not grants(permissions, rule)
        if flag[0] == "T":
            assert not grants(permissions, rule, STREAM, TOPIC + 1)
            assert not grants(permissions, rule, STREAM)


def test_a_false_flag_below_never_revokes() -> None:
    entry = StreamPermissions(topics=Map({TOPIC: TopicPermissions()}))
    assert grants(Permissions(poll_messages=True, streams=Map({STREAM: entry})), Rule.POLL_MESSAGES, STREAM, TOPIC)


def state_with(permissions: Permissions | None) -> State:
    root = User(0, "root", 0, True, "", ROOT_PERMISSIONS)
    return State(users=Map({0: root, 1: User(1, "user", 0, True, "", permissions)}))


@pytest.mark.parametrize("rule", list(Rule), ids=lambda rule: rule.name)
def test_root_may_everything_and_nobody_without_a_record_anything(rule: Rule) -> None:
    state = state_with(None)
    assert allowed(state, 0, rule, STREAM, TOPIC)
    assert not allowed(state, 1, rule, STREAM, TOPIC)
    assert not allowed(state, 2, rule, STREAM, TOPIC), "an unknown user"
    assert not allowed(State(), 0, rule), "root before it exists"


def test_every_command_asks_for_its_rule() -> None:
    stream, topic = Ref(STREAM, 1), Ref(TOPIC, 2)
    cases: list[tuple[Command, Rule]] = [
        (commands.CreateStream("s"), Rule.CREATE_STREAM),
        (commands.UpdateStream(stream, "s"), Rule.CHANGE_STREAM),
        (commands.DeleteStream(stream), Rule.CHANGE_STREAM),
        (commands.PurgeStream(stream), Rule.CHANGE_STREAM),
        (commands.CreateTopic(stream, "t", 1, 1, 0, 0, 1), Rule.CREATE_TOPIC),
        (commands.UpdateTopic(stream, topic, "t", 1, 0, 0, 1), Rule.CHANGE_TOPIC),
        (commands.DeleteTopic(stream, topic), Rule.CHANGE_TOPIC),
        (commands.PurgeTopic(stream, topic), Rule.CHANGE_TOPIC),
        (commands.SetTopicSettings(stream, topic, (("ack", ""),)), Rule.CHANGE_TOPIC),
        (commands.CreatePartitions(stream, topic, 1), Rule.CHANGE_TOPIC),
        (commands.DeletePartitions(stream, topic, 1), Rule.CHANGE_TOPIC),
        (commands.CreateUser("user", "", True, None), Rule.MANAGE_USERS),
    ]
    for command, rule in cases:
        for flag in all_flags():
            state = state_with(one_flag(*flag.split(".")))
            assert command_allowed(state, Ref(1, state.users[1].incarnation), command) == (
                flag in TABLE[rule].split()
            ), (command, flag)
