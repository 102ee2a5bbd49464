"""Whether a command may become a record: pure checks in the order of docs/protocol/framing.md#checks.

Values first, then existence, then (by the caller) permission, then what the change would break. Ids that do not fit
their bits of a namespace are refused, never wrapped: 1001 for streams, 2001 for topics, 3000 for partitions and for
the slots of the statistics table, 55 for users.
"""

from __future__ import annotations

from typing import Final

from shardd.metadata import commands
from shardd.metadata.commands import Command
from shardd.metadata.group_shares import may_create
from shardd.metadata.ids import is_free
from shardd.metadata.refs import find_group, find_stream, find_topic
from shardd.metadata.state import State
from shardd.metadata.validate_liftbridge import liftbridge_effect, liftbridge_existence, liftbridge_values
from shardd.metadata.validate_users import user_effect, user_values
from shardd.protocol import limits
from shardd.protocol.errors import Status
from shardd.protocol.topic_setting_table import check_stored

STREAMS_MAX: Final = 1 << limits.STREAM_ID_BITS
TOPICS_MAX: Final = 1 << limits.TOPIC_ID_BITS  # of one stream
CHOSEN_GROUPS_MAX: Final = 4096  # below it an id of a group may be chosen
PARTITIONS_MAX: Final = 1 << limits.PARTITION_ID_BITS  # of one topic
SLOTS_MAX: Final = 1 << 20  # of the server: SHARED_STATS_SLOTS of native/src/base/shared.h


def validate(state: State, command: Command) -> Status:
    """OK, or the first status that refuses `command`, permission aside."""
    return validate_values(command) or validate_existence(state, command) or validate_effect(state, command)


def validate_values(command: Command) -> Status:
    """What the command says in itself: 2015, 5, 2, 3, 4, 43, 50."""
    match command:
        case commands.CreateTopic() if not 0 <= command.partitions_count <= limits.PARTITIONS_PER_REQUEST_MAX:
            return Status.TOO_MANY_PARTITIONS
        case commands.CreatePartitions() if not 1 <= command.count <= limits.PARTITIONS_PER_REQUEST_MAX:
            return Status.TOO_MANY_PARTITIONS
        case commands.DeletePartitions() if command.count <= 0:
            return Status.TOO_MANY_PARTITIONS
    if isinstance(command, commands.SetTopicSettings | commands.CreateTopicWithSettings):
        refused = next(filter(None, (check_stored(key, value) for key, value in command.settings)), None)
        if refused is not None:
            return refused
    if isinstance(
        command, commands.CreateTopic | commands.UpdateTopic | commands.ChangeTopic
    ) and not _topic_values_fit(command):
        return Status.INVALID_COMMAND
    if (
        isinstance(command, _NAMED)
        and command.name is not None
        and not 1 <= len(command.name.encode()) <= limits.NAME_BYTES_MAX
    ):
        return Status.INVALID_FORMAT
    return liftbridge_values(command) or user_values(command)


def validate_existence(state: State, command: Command) -> Status:
    """1009, 2010, 5000 or 5006 unless what the command names exists in the same incarnation."""
    if isinstance(command, commands.OnStream):
        return Status.OK if find_stream(state, command.stream) else Status.STREAM_ID_NOT_FOUND
    if isinstance(command, commands.OnTopic):
        stream = find_stream(state, command.stream)
        if stream is None:
            return Status.STREAM_ID_NOT_FOUND
        topic = find_topic(stream, command.topic)
        if topic is None:
            return Status.TOPIC_ID_NOT_FOUND
        if isinstance(command, commands.DeleteConsumerGroup) and find_group(topic, command.group) is None:
            return Status.CONSUMER_GROUP_ID_NOT_FOUND
    return liftbridge_existence(state, command)


def validate_effect(state: State, command: Command) -> Status:
    """What the change would break: taken names, ids beyond their bits, counts. Needs `validate_existence` to be OK."""
    match command:
        case commands.CreateStream():
            return _create_stream(state, command)
        case commands.UpdateStream():
            taken = state.stream_ids.get(command.name, command.stream.id) != command.stream.id
            return Status.STREAM_NAME_ALREADY_EXISTS if taken else Status.OK
        case commands.CreateTopic():
            return _create_topic(state, command) or liftbridge_effect(state, command)
        case commands.UpdateTopic() | commands.ChangeTopic():
            if command.name is None:
                return Status.OK
            topic_ids = state.streams[command.stream.id].topic_ids
            taken = topic_ids.get(command.name, command.topic.id) != command.topic.id
            return Status.TOPIC_NAME_ALREADY_EXISTS if taken else Status.OK
        case commands.CreatePartitions():
            partitions = state.streams[command.stream.id].topics[command.topic.id].partitions
            fits = len(partitions) + command.count <= PARTITIONS_MAX and _slots_left(state) >= command.count
            return Status.OK if fits else Status.CANNOT_CREATE_PARTITION
        case commands.DeletePartitions():
            partitions = state.streams[command.stream.id].topics[command.topic.id].partitions
            return Status.OK if command.count <= len(partitions) else Status.INVALID_PARTITIONS_COUNT
        case commands.CreateConsumerGroup():
            return _create_group(state, command)
        case _:
            return liftbridge_effect(state, command) or user_effect(state, command)


def _create_stream(state: State, command: commands.CreateStream) -> Status:
    if command.name in state.stream_ids:
        return Status.STREAM_NAME_ALREADY_EXISTS
    if not is_free(state.free_stream_ids, len(state.streams), command.chosen_id, STREAMS_MAX):
        return Status.STREAM_DIRECTORY_NOT_FOUND
    return Status.OK if len(state.streams) < STREAMS_MAX else Status.CANNOT_CREATE_STREAM_DIRECTORY


def _create_topic(state: State, command: commands.CreateTopic) -> Status:
    stream = state.streams[command.stream.id]
    if command.name in stream.topic_ids:
        return Status.TOPIC_NAME_ALREADY_EXISTS
    if not is_free(stream.free_topic_ids, len(stream.topics), command.chosen_id, TOPICS_MAX):
        return Status.TOPIC_ID_ALREADY_EXISTS
    if len(stream.topics) >= TOPICS_MAX:
        return Status.CANNOT_CREATE_TOPIC_DIRECTORY
    return Status.OK if _slots_left(state) >= command.partitions_count else Status.CANNOT_CREATE_PARTITION


def _create_group(state: State, command: commands.CreateConsumerGroup) -> Status:
    topic = state.streams[command.stream.id].topics[command.topic.id]
    if command.name in topic.group_ids:
        return Status.CONSUMER_GROUP_NAME_ALREADY_EXISTS
    if not is_free(topic.free_group_ids, len(topic.groups), command.chosen_id, CHOSEN_GROUPS_MAX):
        return Status.CONSUMER_GROUP_ID_ALREADY_EXISTS
    return may_create(state, command.owner)


def _slots_left(state: State) -> int:
    return SLOTS_MAX - state.next_slot + len(state.free_slots)


def _topic_values_fit(command: commands.CreateTopic | commands.UpdateTopic | commands.ChangeTopic) -> bool:
    """Whether the numbers fit the fields that replies carry them in (docs/protocol/streams.md#topics)."""
    return (
        command.compression in (None, 1, 2)
        and 0 <= (command.message_expiry_us or 0) <= limits.UNLIMITED
        and 0 <= (command.max_topic_size_bytes or 0) <= limits.UNLIMITED
        and 0 <= (command.replication_factor or 0) <= 255
    )


_NAMED: Final = (
    commands.CreateStream,
    commands.UpdateStream,
    commands.CreateTopic,
    commands.UpdateTopic,
    commands.ChangeTopic,
    commands.CreateConsumerGroup,
)
