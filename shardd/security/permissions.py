"""Who may do what: the permission matrix of docs/protocol/commands.md#permissions as pure functions.

Permissions add up over the levels: one true flag at any level that a rule names is enough, false never revokes. Without
a permission record a user has no rights but those that need a login only.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from shardd.metadata import commands
from shardd.metadata.commands import Command, Ref
from shardd.metadata.state import ROOT_USER_ID, Permissions, State
from shardd.metadata.validate_users import find_user
from shardd.protocol.liftbridge.creation import RESERVED_STREAMS

__all__ = ["ROOT_USER_ID", "Rule", "allowed", "command_allowed", "grants"]


class Rule(Enum):
    """The rules of the matrix; the value is the letter there."""

    READ_SERVER = "A"
    READ_USER = "B"
    MANAGE_USERS = "C"
    GET_STREAM = "D"
    GET_STREAMS = "D'"
    CREATE_STREAM = "E"
    CHANGE_STREAM = "F"
    GET_TOPIC = "G"
    GET_TOPICS = "G'"
    CREATE_TOPIC = "H"
    CHANGE_TOPIC = "J"
    POLL_MESSAGES = "K"
    SEND_MESSAGES = "L"


class _Grants(msgspec.Struct, frozen=True):
    """Names of the flags that grant a rule: global ones, of the stream's entry, of the topic's entry in it."""

    everywhere: tuple[str, ...]
    stream: tuple[str, ...] = ()
    topic: tuple[str, ...] = ()


_GET_TOPICS: Final = _Grants(
    ("manage_streams", "read_streams", "manage_topics", "read_topics"),
    ("manage_stream", "read_stream", "manage_topics", "read_topics"),
)
_MATRIX: Final = {
    Rule.READ_SERVER: _Grants(("manage_servers", "read_servers")),
    Rule.READ_USER: _Grants(("manage_users", "read_users")),
    Rule.MANAGE_USERS: _Grants(("manage_users",)),
    Rule.GET_STREAM: _Grants(("manage_streams", "read_streams"), ("manage_stream", "read_stream")),
    Rule.GET_STREAMS: _Grants(("manage_streams", "read_streams")),
    Rule.CREATE_STREAM: _Grants(("manage_streams",)),
    Rule.CHANGE_STREAM: _Grants(("manage_streams",), ("manage_stream",)),
    Rule.GET_TOPIC: _Grants(_GET_TOPICS.everywhere, _GET_TOPICS.stream, ("manage_topic", "read_topic")),
    Rule.GET_TOPICS: _GET_TOPICS,
    Rule.CREATE_TOPIC: _Grants(("manage_streams", "manage_topics"), ("manage_stream", "manage_topics")),
    Rule.CHANGE_TOPIC: _Grants(
        ("manage_streams", "manage_topics"), ("manage_stream", "manage_topics"), ("manage_topic",)
    ),
    Rule.POLL_MESSAGES: _Grants(
        (*_GET_TOPICS.everywhere, "poll_messages"),
        (*_GET_TOPICS.stream, "poll_messages"),
        ("manage_topic", "read_topic", "poll_messages"),
    ),
    Rule.SEND_MESSAGES: _Grants(
        ("send_messages", "manage_streams", "manage_topics"),
        ("send_messages", "manage_stream", "manage_topics"),
        ("send_messages", "manage_topic"),
    ),
}


def grants(
    permissions: Permissions | None, rule: Rule, stream_id: int | None = None, topic_id: int | None = None
) -> bool:
    """Whether a permission record grants `rule` on a stream and a topic in it (None: the rule is about neither)."""
    if permissions is None:
        return False
    flags = _MATRIX[rule]
    if any(getattr(permissions, flag) for flag in flags.everywhere):
        return True
    stream = None if stream_id is None else permissions.streams.get(stream_id)
    if stream is None:
        return False
    if any(getattr(stream, flag) for flag in flags.stream):
        return True
    topic = None if topic_id is None else stream.topics.get(topic_id)
    return topic is not None and any(getattr(topic, flag) for flag in flags.topic)


def allowed(state: State, user_id: int, rule: Rule, stream_id: int | None = None, topic_id: int | None = None) -> bool:
    """Whether a user may do what `rule` is about. Unknown users may nothing, root may everything. What the server alone
    writes nobody else sends to, whatever he may elsewhere."""
    user = state.users.get(user_id)
    if user is None:
        return False
    if user_id == ROOT_USER_ID:
        return True
    if rule is Rule.SEND_MESSAGES:
        names = state.liftbridge.names
        if any(names.get(reserved) == (stream_id, topic_id) for reserved in RESERVED_STREAMS):
            return False
    return grants(user.permissions, rule, stream_id, topic_id)


def command_allowed(state: State, user: Ref, command: Command) -> bool:
    """Whether a user may submit `command`: what shard 0 asks before it makes a record of it.

    A user who was deleted on the way may nothing, whoever has its id now.
    """
    return find_user(state, user) is not None and _command_allowed(state, user.id, command)


def _command_allowed(state: State, user_id: int, command: Command) -> bool:
    match command:
        case commands.CreateStream():
            return allowed(state, user_id, Rule.CREATE_STREAM)
        case commands.UpdateStream() | commands.DeleteStream() | commands.PurgeStream():
            return allowed(state, user_id, Rule.CHANGE_STREAM, command.stream.id)
        case commands.CreateTopic():
            return allowed(state, user_id, Rule.CREATE_TOPIC, command.stream.id)
        case commands.CreateConsumerGroup() | commands.DeleteConsumerGroup():
            return allowed(state, user_id, Rule.GET_TOPIC, command.stream.id, command.topic.id)
        case commands.UpdateUser() if command.user.id == ROOT_USER_ID and user_id != ROOT_USER_ID:
            activates = command.name is None and command.active is not False
            return activates and allowed(state, user_id, Rule.MANAGE_USERS)  # nobody locks root out
        case commands.CreateUser() | commands.DeleteUser() | commands.UpdateUser() | commands.UpdatePermissions():
            return allowed(state, user_id, Rule.MANAGE_USERS)
        case commands.ChangePassword():
            return command.user.id == user_id or allowed(state, user_id, Rule.MANAGE_USERS)
        case commands.CreateToken() | commands.DeleteToken() | commands.RevokeAccessToken() | commands.InitProducer():
            return command.user.id == user_id
        case commands.DeleteExpiredTokens() | commands.ExpireProducers():
            return user_id == ROOT_USER_ID  # the server itself
        case (
            commands.PrepareLiftbridge()
            | commands.ResumeLiftbridgeStream()
            | commands.JoinLiftbridgeGroup()
            | commands.LeaveLiftbridgeGroup()
        ):
            return _liftbridge_allowed(state, user_id, command)
        case _:
            return allowed(state, user_id, Rule.CHANGE_TOPIC, command.stream.id, command.topic.id)


def _liftbridge_allowed(state: State, user_id: int, command: Command) -> bool:
    """Whoever may use a partition resumes it. A member has to be one that polls all its streams, and leaves by the
    hand of somebody who may do that, too."""
    match command:
        case commands.ResumeLiftbridgeStream():
            return any(
                allowed(state, user_id, rule, command.stream.id, command.topic.id)
                for rule in (Rule.SEND_MESSAGES, Rule.POLL_MESSAGES)
            )
        case commands.JoinLiftbridgeGroup():
            places = set(command.streams)
            return command.user.id == user_id and all(
                allowed(state, user_id, Rule.POLL_MESSAGES, stream.id, topic.id) for stream, topic in places
            )
        case commands.LeaveLiftbridgeGroup() if not command.expired:
            return may_be_member(state, user_id, command.group_name, command.consumer)
        case _:
            return user_id == ROOT_USER_ID  # the server itself


def may_be_member(state: State, user_id: int, group_name: str, consumer: str) -> bool:
    """Whether a user may poll every stream that a member of a group of Liftbridge has subscribed to. Of one that has
    none any more: whoever may poll the topics of the home stream."""
    liftbridge = state.liftbridge
    group = liftbridge.groups.get(group_name)
    streams = None if group is None else group.members.get(consumer)
    if streams is None:
        return False
    if not streams:
        home = None if liftbridge.home is None else liftbridge.home[0]
        return allowed(state, user_id, Rule.POLL_MESSAGES, home)
    return all(allowed(state, user_id, Rule.POLL_MESSAGES, *liftbridge.names[stream]) for stream in streams)
