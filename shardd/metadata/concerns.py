"""What a change of the metadata concerns of the decisions about requests that workers remember: who may send to and
poll a topic, what its names mean, and which partitions it has (docs/adr/0036).

Every kind of change has its entry. Whatever else a change does, remembered decisions that it does not name stay right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from shardd.metadata import commands
from shardd.metadata.apply import created_id
from shardd.metadata.state import State


class OfUser(msgspec.Struct, frozen=True):
    """What one user may do, anywhere."""

    user_id: int


class OfTopic(msgspec.Struct, frozen=True):
    """Names and partitions of one topic, and what anybody may do with it."""

    stream_id: int
    topic_id: int


class OfStream(msgspec.Struct, frozen=True):
    """The same of every topic of a stream."""

    stream_id: int


Concern = OfUser | OfTopic | OfStream


def concern_of(old: State, command: commands.Command) -> Concern | None:
    """What `command` concerns when it is applied to `old`; None: nothing that anybody remembers. KeyError for a kind of
    change without an entry."""
    return _CONCERNS[type(command)](old, command)


def _nothing(_old: State, _command: Any) -> None:
    return None


def _user(_old: State, command: Any) -> OfUser:
    return OfUser(command.user.id)


def _new_user(old: State, command: commands.CreateUser) -> OfUser:
    """The id may have been another user's."""
    return OfUser(created_id(old, command))


def _topic(_old: State, command: Any) -> OfTopic:
    return OfTopic(command.stream.id, command.topic.id)


def _stream(_old: State, command: Any) -> OfStream:
    return OfStream(command.stream.id)


_CONCERNS: Final[dict[type[commands.Command], Callable[[State, Any], Concern | None]]] = {
    commands.CreateStream: _nothing,  # nobody can have a decision about what was not there
    commands.UpdateStream: _stream,
    commands.DeleteStream: _stream,
    commands.PurgeStream: _stream,
    commands.CreateTopic: _nothing,
    commands.CreateTopicWithSettings: _nothing,
    commands.UpdateTopic: _topic,
    commands.ChangeTopic: _topic,
    commands.DeleteTopic: _topic,
    commands.PurgeTopic: _topic,
    commands.SetTopicSettings: _nothing,  # the owner of a partition knows its level
    commands.CreatePartitions: _topic,
    commands.DeletePartitions: _topic,
    commands.CreateConsumerGroup: _nothing,  # memberships end one by one (shardd/groups/members.py)
    commands.DeleteConsumerGroup: _nothing,
    commands.CreateUser: _new_user,
    commands.DeleteUser: _user,
    commands.UpdateUser: _user,
    commands.UpdatePermissions: _user,
    commands.ChangePassword: _nothing,  # a password and a token say who somebody is, not what he may do
    commands.CreateToken: _nothing,
    commands.DeleteToken: _nothing,
    commands.RevokeAccessToken: _nothing,
    commands.DeleteExpiredTokens: _nothing,
    commands.InitProducer: _nothing,  # the engine knows producers by themselves
    commands.ExpireProducers: _nothing,
    commands.PrepareLiftbridge: _nothing,
    commands.CreateLiftbridgeStream: _nothing,
    commands.PauseLiftbridgeStream: _nothing,
    commands.ResumeLiftbridgeStream: _nothing,
    commands.SetLiftbridgeReadonly: _nothing,  # the owner of a partition knows whether it may be written
    commands.JoinLiftbridgeGroup: _nothing,
    commands.LeaveLiftbridgeGroup: _nothing,
}
