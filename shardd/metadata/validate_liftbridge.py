"""Whether a change of Liftbridge's streams and groups may become a record: part of `validate.py`."""

from __future__ import annotations

from typing import Final

from shardd.metadata import commands
from shardd.metadata.commands import Command, Ref
from shardd.metadata.liftbridge import described, is_home, partitions_of
from shardd.metadata.liftbridge_runs import marked
from shardd.metadata.liftbridge_shares import may_join, owner_of
from shardd.metadata.liftbridge_state import ID_BYTES_MAX, NAME_BYTES_MAX, RUNS_MAX, SUBJECT_BYTES_MAX
from shardd.metadata.refs import find_stream, find_topic
from shardd.metadata.state import State
from shardd.protocol import limits
from shardd.protocol.errors import Status
from shardd.protocol.liftbridge.requests import NAMES_MAX, STREAMS_OF_MEMBER_MAX

SERVER_ID_BYTES_MAX: Final = 64
ATTRIBUTES_MAX: Final = 32  # of a stream
_ATTRIBUTE_MIN: Final = -(1 << 63)


def liftbridge_values(command: Command) -> Status:
    """4 for names, 3 for everything else."""
    match command:
        case commands.CreateLiftbridgeStream():
            fits = _bytes_fit(command.title, NAME_BYTES_MAX) and _bytes_fit(command.subject, SUBJECT_BYTES_MAX)
            if not fits or len(command.queue_group.encode()) > ID_BYTES_MAX:
                return Status.INVALID_FORMAT
            return Status.OK if _attributes_fit(command.attributes) else Status.INVALID_COMMAND
        case commands.PrepareLiftbridge():
            return Status.OK if _bytes_fit(command.server_id, SERVER_ID_BYTES_MAX) else Status.INVALID_FORMAT
        case commands.MarkPartitions():
            return Status.OK if _ids_fit(command.partitions) else Status.INVALID_COMMAND
        case commands.ResumeLiftbridgeStream():
            return Status.OK if _ids_fit((command.partition,)) else Status.INVALID_COMMAND
        case commands.JoinLiftbridgeGroup() | commands.LeaveLiftbridgeGroup():
            if not (_bytes_fit(command.group_name, ID_BYTES_MAX) and _bytes_fit(command.consumer, ID_BYTES_MAX)):
                return Status.INVALID_FORMAT
            fits = isinstance(command, commands.LeaveLiftbridgeGroup) or 1 <= len(command.streams) <= NAMES_MAX
            return Status.OK if fits else Status.INVALID_COMMAND
        case _:
            return Status.OK


def liftbridge_existence(state: State, command: Command) -> Status:
    """2010 for a stream to join, 5000, 5006; 20 when the epoch is another one by now. Streams and topics of the other
    commands are looked up where those of native ones are."""
    match command:
        case commands.JoinLiftbridgeGroup():
            found = all(_is_there(state, *place) for place in command.streams)
            return Status.OK if found else Status.TOPIC_ID_NOT_FOUND
        case commands.LeaveLiftbridgeGroup():
            group = state.liftbridge.groups.get(command.group_name)
            if group is None:
                return Status.CONSUMER_GROUP_ID_NOT_FOUND
            if command.consumer not in group.members:
                return Status.CONSUMER_GROUP_MEMBER_NOT_FOUND
            stale = command.expired and command.epoch != group.epoch
            return Status.RESOURCE_NOT_FOUND if stale else Status.OK
        case _:
            return Status.OK


def liftbridge_effect(state: State, command: Command) -> Status:
    """2013 for a name that is taken; 3007, 2015, 5004, 5."""
    match command:
        case commands.CreateTopic():
            return _create(state, command)
        case commands.MarkPartitions():
            return _mark(state, command)
        case commands.ResumeLiftbridgeStream():
            topic = state.streams[command.stream.id].topics[command.topic.id]
            if command.partition >= len(topic.partitions):
                return Status.PARTITION_NOT_FOUND
            return _adopt(state, command.stream, command.topic)
        case commands.JoinLiftbridgeGroup():
            return _join(state, command)
        case _:
            return Status.OK


def _create(state: State, command: commands.CreateTopic) -> Status:
    """A name is one stream of Liftbridge, in whatever way the topic is made."""
    home = is_home(state, state.streams[command.stream.id])
    if isinstance(command, commands.CreateLiftbridgeStream):
        if not home:
            return Status.STREAM_ID_NOT_FOUND
        return Status.TOPIC_NAME_ALREADY_EXISTS if command.title in state.liftbridge.names else Status.OK
    return Status.TOPIC_NAME_ALREADY_EXISTS if home and command.name in state.liftbridge.names else Status.OK


def _mark(state: State, command: commands.MarkPartitions) -> Status:
    topic = state.streams[command.stream.id].topics[command.topic.id]
    if any(partition >= len(topic.partitions) for partition in command.partitions):
        return Status.PARTITION_NOT_FOUND
    known = topic.liftbridge
    if known is not None:
        runs = known.paused if isinstance(command, commands.PauseLiftbridgeStream) else known.readonly
        ranges = partitions_of(topic, command.partitions)
        at_most = min(2 * (len(runs) + len(ranges)), len(topic.partitions))  # as many as there are borders
        if at_most > RUNS_MAX and len(marked(runs, ranges, _is_mark(command), 0)) > RUNS_MAX:
            return Status.TOO_MANY_PARTITIONS
    return _adopt(state, command.stream, command.topic)


def _is_mark(command: commands.MarkPartitions) -> bool:
    return not isinstance(command, commands.SetLiftbridgeReadonly) or command.readonly


def _adopt(state: State, stream: Ref, topic: Ref) -> Status:
    """Whether the topic may have something stored by its name: it is no other stream's."""
    found = state.streams[stream.id]
    name = described(state, found, found.topics[topic.id]).name
    place = state.liftbridge.names.get(name)
    return Status.OK if place is None or place == (stream.id, topic.id) else Status.TOPIC_NAME_ALREADY_EXISTS


def _join(state: State, command: commands.JoinLiftbridgeGroup) -> Status:
    liftbridge, places = state.liftbridge, set(command.streams)
    for stream, topic in places:
        refused = _adopt(state, stream, topic)
        if refused != Status.OK:
            return refused
    group = liftbridge.groups.get(command.group_name)
    if group is not None and command.consumer in group.members:
        return Status.CONSUMER_GROUP_NAME_ALREADY_EXISTS
    owner = owner_of(state, command.user)
    fits = len(places) <= STREAMS_OF_MEMBER_MAX and may_join(liftbridge, command.group_name, owner, 1 + len(places))
    return Status.OK if fits else Status.FEATURE_UNAVAILABLE


def _is_there(state: State, stream: Ref, topic: Ref) -> bool:
    found = find_stream(state, stream)
    return found is not None and find_topic(found, topic) is not None


def _bytes_fit(text: str, most: int) -> bool:
    return 1 <= len(text.encode()) <= most


def _ids_fit(partitions: tuple[int, ...]) -> bool:
    return len(partitions) <= NAMES_MAX and all(0 <= each <= limits.U32_MAX for each in partitions)


def _attributes_fit(attributes: tuple[tuple[str, int | bool], ...]) -> bool:
    return len(attributes) <= ATTRIBUTES_MAX and all(
        _bytes_fit(name, ID_BYTES_MAX) and _ATTRIBUTE_MIN <= value < -_ATTRIBUTE_MIN for name, value in attributes
    )
