"""The state machine: `apply(state, record) -> state`, pure, the same on every shard.

Which ids objects get: `ids`. Slots of the shared statistics table are given out last freed first, too. Whether a
command may be applied at all was decided by `validate` before the record was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from immutables import Map
from msgspec.structs import replace

from shardd.config import codecs
from shardd.metadata import commands
from shardd.metadata.apply_users import USER_CHANGES
from shardd.metadata.group_shares import with_group, without_group, without_groups
from shardd.metadata.ids import free_after, next_id
from shardd.metadata.liftbridge import (
    LIFTBRIDGE_CHANGES,
    attributes_of,
    native_effect,
)
from shardd.metadata.producers import PRODUCER_CHANGES
from shardd.metadata.records import Record
from shardd.metadata.state import EMPTY, ConsumerGroup, Partition, Permissions, State, Stream, Topic, User
from shardd.metadata.validate import SLOTS_MAX
from shardd.protocol.errors import Status
from shardd.protocol.primitives import Compression
from shardd.protocol.topic_setting_table import COMPRESSION, RETENTION, check_stored

Value = TypeVar("Value")


class ApplyError(Exception):
    """A record that does not fit the state; the text is a sentence about it."""


_VALUES: Final = ("name", "compression", "message_expiry_us", "max_topic_size_bytes", "replication_factor")


def apply(state: State, record: Record) -> State:
    """The state after `record`; `state` itself stays as it is.

    Raises ApplyError for a record that is not the next one or names what does not exist.
    """
    if record.index != state.index + 1:
        raise ApplyError(f"record {record.index} cannot follow record {state.index}")
    try:
        changed: State = _CHANGES[type(record.command)](state, record, record.command)
        changed = native_effect(state, changed, record)
    except LookupError as error:
        raise ApplyError(
            f"record {record.index} ({type(record.command).__name__}) names what does not exist"
        ) from error
    return replace(changed, index=record.index, digest=record.digest)


def replay(records: Iterable[Record], state: State | None = None) -> State:
    """`apply` for each record, from the empty state unless one is given. Raises ApplyError."""
    state = State() if state is None else state
    for record in records:
        state = apply(state, record)
    return state


def created_id(state: State, command: commands.Command) -> int:
    """The id of the object that `command` would create in `state`; 0 for commands that create nothing with an id."""
    match command:
        case commands.CreateStream():
            return next_id(state.free_stream_ids, len(state.streams), command.chosen_id)
        case commands.CreateTopic():
            stream = state.streams.get(command.stream.id)
            return 0 if stream is None else next_id(stream.free_topic_ids, len(stream.topics), command.chosen_id)
        case commands.CreateConsumerGroup():
            stream = state.streams.get(command.stream.id)
            topic = None if stream is None else stream.topics.get(command.topic.id)
            return 0 if topic is None else next_id(topic.free_group_ids, len(topic.groups), command.chosen_id)
        case commands.CreateUser():
            return next_id(state.free_user_ids, len(state.users))
        case commands.InitProducer():
            return command.producer or state.index + 1
        case _:
            return 0


def _create_stream(state: State, record: Record, command: commands.CreateStream) -> State:
    stream_id = next_id(state.free_stream_ids, len(state.streams), command.chosen_id)
    stream = Stream(stream_id, command.name, record.timestamp_us, record.index)
    return replace(
        state,
        streams=state.streams.set(stream_id, stream),
        stream_ids=state.stream_ids.set(command.name, stream_id),
        free_stream_ids=free_after(state.free_stream_ids, len(state.streams), stream_id),
    )


def _update_stream(state: State, record: Record, command: commands.UpdateStream) -> State:
    stream = state.streams[command.stream.id]
    return replace(
        state,
        streams=state.streams.set(stream.id, replace(stream, name=command.name)),
        stream_ids=state.stream_ids.delete(stream.name).set(command.name, stream.id),
    )


def _delete_stream(state: State, record: Record, command: commands.DeleteStream) -> State:
    """Permissions that name the stream go with it: the next stream with this id starts without."""
    stream = state.streams[command.stream.id]
    partitions = [partition for topic in _by_id(stream.topics) for partition in topic.partitions]
    state = without_groups(state, stream.topics.values())
    return replace(
        _free_slots(_without_permissions(state, stream.id, None), partitions),
        streams=state.streams.delete(stream.id),
        stream_ids=state.stream_ids.delete(stream.name),
        free_stream_ids=(*state.free_stream_ids, stream.id),
    )


def _purge_stream(state: State, record: Record, command: commands.PurgeStream) -> State:
    stream = state.streams[command.stream.id]
    topics = Map({topic.id: _purged(topic, record) for topic in stream.topics.values()})
    return _set_stream(state, replace(stream, topics=topics))


def _create_topic_with_settings(state: State, record: Record, command: commands.CreateTopicWithSettings) -> State:
    return _create_topic(state, record, command, _with_settings(EMPTY, record, command.settings))


def _create_topic(
    state: State, record: Record, command: commands.CreateTopic, settings: Map[str, str] = EMPTY
) -> State:
    stream = state.streams[command.stream.id]
    topic_id = next_id(stream.free_topic_ids, len(stream.topics), command.chosen_id)
    state, partitions = _new_partitions(state, record, 0, command.partitions_count)
    topic = Topic(
        id=topic_id,
        name=command.name,
        created_at_us=record.timestamp_us,
        incarnation=record.index,
        compression=command.compression,
        message_expiry_us=command.message_expiry_us,
        max_topic_size_bytes=command.max_topic_size_bytes,
        replication_factor=command.replication_factor,
        partitions=partitions,
        settings=_with_retention(settings, command.retention),
        liftbridge=attributes_of(command),
    )
    changed = replace(
        stream,
        topics=stream.topics.set(topic_id, topic),
        topic_ids=stream.topic_ids.set(command.name, topic_id),
        free_topic_ids=free_after(stream.free_topic_ids, len(stream.topics), topic_id),
    )
    return _set_stream(state, changed)


def _with_retention(settings: Map[str, str], wanted: bool) -> Map[str, str]:
    return settings.set(RETENTION.key, "on") if wanted and RETENTION.key not in settings else settings


def _update_topic(state: State, record: Record, command: commands.UpdateTopic | commands.ChangeTopic) -> State:
    """What a ChangeTopic does not say stays."""
    stream = state.streams[command.stream.id]
    topic = stream.topics[command.topic.id]
    said = {name: getattr(command, name) for name in _VALUES if getattr(command, name) is not None}
    settings = topic.settings if command.compression is None else _settings_after(topic.settings, command.compression)
    changed = replace(topic, **said, settings=_with_retention(settings, command.retention))
    topic_ids = stream.topic_ids.delete(topic.name).set(changed.name, topic.id)
    return _set_stream(state, replace(stream, topics=stream.topics.set(topic.id, changed), topic_ids=topic_ids))


def _settings_after(settings: Map[str, str], compression: int) -> Map[str, str]:
    """UPDATE_TOPIC knows two compressions: a 2 keeps the algorithm that was chosen, a 1 ends the choice, and so does a
    2 when none was chosen."""
    chosen = settings.get(COMPRESSION.key)
    if chosen is None or (compression == Compression.GZIP) == (chosen != codecs.NONE):
        return settings
    return settings.delete(COMPRESSION.key)


def _delete_topic(state: State, record: Record, command: commands.DeleteTopic) -> State:
    stream = state.streams[command.stream.id]
    topic = stream.topics[command.topic.id]
    changed = replace(
        stream,
        topics=stream.topics.delete(topic.id),
        topic_ids=stream.topic_ids.delete(topic.name),
        free_topic_ids=(*stream.free_topic_ids, topic.id),
    )
    state = without_groups(state, (topic,))
    return _set_stream(_free_slots(_without_permissions(state, stream.id, topic.id), topic.partitions), changed)


def _purge_topic(state: State, record: Record, command: commands.PurgeTopic) -> State:
    stream = state.streams[command.stream.id]
    return _set_topic(state, stream, _purged(stream.topics[command.topic.id], record))


def _set_topic_settings(state: State, record: Record, command: commands.SetTopicSettings) -> State:
    stream = state.streams[command.stream.id]
    topic = stream.topics[command.topic.id]
    return _set_topic(state, stream, replace(topic, settings=_with_settings(topic.settings, record, command.settings)))


def _with_settings(settings: Map[str, str], record: Record, changes: tuple[tuple[str, str], ...]) -> Map[str, str]:
    for key, value in changes:
        if check_stored(key, value) != Status.OK:
            raise ApplyError(f"record {record.index} sets {key!r} to {value!r}, which this version does not know")
        if value:
            settings = settings.set(key, value)
        elif key in settings:
            settings = settings.delete(key)
    return settings


def _create_partitions(state: State, record: Record, command: commands.CreatePartitions) -> State:
    stream = state.streams[command.stream.id]
    topic = stream.topics[command.topic.id]
    state, partitions = _new_partitions(state, record, len(topic.partitions), command.count)
    return _set_topic(state, stream, replace(topic, partitions=topic.partitions + partitions))


def _delete_partitions(state: State, record: Record, command: commands.DeletePartitions) -> State:
    stream = state.streams[command.stream.id]
    topic = stream.topics[command.topic.id]
    kept = len(topic.partitions) - command.count
    if kept < 0:
        raise IndexError(command.count)
    changed = replace(topic, partitions=topic.partitions[:kept])
    return _set_topic(_free_slots(state, topic.partitions[kept:]), stream, changed)


def _create_group(state: State, record: Record, command: commands.CreateConsumerGroup) -> State:
    stream = state.streams[command.stream.id]
    topic = stream.topics[command.topic.id]
    group_id = next_id(topic.free_group_ids, len(topic.groups), command.chosen_id)
    group = ConsumerGroup(group_id, command.name, record.timestamp_us, record.index, command.owner)
    changed = replace(
        topic,
        groups=topic.groups.set(group_id, group),
        group_ids=topic.group_ids.set(command.name, group_id),
        free_group_ids=free_after(topic.free_group_ids, len(topic.groups), group_id),
    )
    return _set_topic(with_group(state, group.owner), stream, changed)


def _delete_group(state: State, record: Record, command: commands.DeleteConsumerGroup) -> State:
    stream = state.streams[command.stream.id]
    topic = stream.topics[command.topic.id]
    group = topic.groups[command.group.id]
    changed = replace(
        topic,
        groups=topic.groups.delete(group.id),
        group_ids=topic.group_ids.delete(group.name),
        free_group_ids=(*topic.free_group_ids, group.id),
    )
    return _set_topic(without_group(state, group.owner), stream, changed)


def _create_user(state: State, record: Record, command: commands.CreateUser) -> State:
    user_id = next_id(state.free_user_ids, len(state.users))
    user = User(
        id=user_id,
        name=command.name,
        created_at_us=record.timestamp_us,
        active=command.active,
        password_hash=command.password_hash,
        permissions=command.permissions,
        incarnation=record.index,
    )
    return replace(
        state,
        users=state.users.set(user_id, user),
        user_ids=state.user_ids.set(command.name, user_id),
        free_user_ids=state.free_user_ids[:-1],
    )


def _by_id(values: Map[int, Value]) -> list[Value]:
    """Values in the order of their ids: the order inside a map differs between processes."""
    return [values[key] for key in sorted(values)]


def _set_stream(state: State, stream: Stream) -> State:
    return replace(state, streams=state.streams.set(stream.id, stream))


def _set_topic(state: State, stream: Stream, topic: Topic) -> State:
    return _set_stream(state, replace(stream, topics=stream.topics.set(topic.id, topic)))


def _purged(topic: Topic, record: Record) -> Topic:
    partitions = tuple(  # by hand: `replace` takes three times as long, and there may be a million
        Partition(partition.id, partition.created_at_us, record.index, partition.slot) for partition in topic.partitions
    )
    return replace(topic, partitions=partitions)


def _new_partitions(state: State, record: Record, first_id: int, count: int) -> tuple[State, tuple[Partition, ...]]:
    if not 0 <= count <= len(state.free_slots) + SLOTS_MAX - state.next_slot:
        raise ApplyError(f"record {record.index} makes {count} partitions, for which there is no place")
    reused = min(count, len(state.free_slots))
    kept = len(state.free_slots) - reused
    fresh = count - reused
    slots = (*reversed(state.free_slots[kept:]), *range(state.next_slot, state.next_slot + fresh))
    partitions = tuple(
        Partition(first_id + number, record.timestamp_us, record.index, slot) for number, slot in enumerate(slots)
    )
    return replace(state, free_slots=state.free_slots[:kept], next_slot=state.next_slot + fresh), partitions


def _free_slots(state: State, partitions: Iterable[Partition]) -> State:
    return replace(state, free_slots=state.free_slots + tuple(partition.slot for partition in partitions))


def _without_permissions(state: State, stream_id: int, topic_id: int | None) -> State:
    """Without the entries of a topic, or of the whole stream (`topic_id` None), in the permissions of every user."""
    users = state.users
    for user in state.users.values():
        if user.permissions is not None and stream_id in user.permissions.streams:
            permissions = _permissions_without(user.permissions, stream_id, topic_id)
            users = users.set(user.id, replace(user, permissions=permissions))
    return state if users is state.users else replace(state, users=users)


def _permissions_without(permissions: Permissions, stream_id: int, topic_id: int | None) -> Permissions:
    if topic_id is None:
        return replace(permissions, streams=permissions.streams.delete(stream_id))
    entry = permissions.streams[stream_id]
    if topic_id not in entry.topics:
        return permissions
    entry = replace(entry, topics=entry.topics.delete(topic_id))
    return replace(permissions, streams=permissions.streams.set(stream_id, entry))


_CHANGES: Final[dict[type[commands.Command], Callable[[State, Record, Any], State]]] = {
    commands.CreateStream: _create_stream,
    commands.UpdateStream: _update_stream,
    commands.DeleteStream: _delete_stream,
    commands.PurgeStream: _purge_stream,
    commands.CreateTopic: _create_topic,
    commands.CreateTopicWithSettings: _create_topic_with_settings,
    commands.CreateLiftbridgeStream: _create_topic_with_settings,
    commands.UpdateTopic: _update_topic,
    commands.ChangeTopic: _update_topic,
    commands.DeleteTopic: _delete_topic,
    commands.PurgeTopic: _purge_topic,
    commands.SetTopicSettings: _set_topic_settings,
    commands.CreatePartitions: _create_partitions,
    commands.DeletePartitions: _delete_partitions,
    commands.CreateConsumerGroup: _create_group,
    commands.DeleteConsumerGroup: _delete_group,
    commands.CreateUser: _create_user,
    **USER_CHANGES,
    **PRODUCER_CHANGES,
    **LIFTBRIDGE_CHANGES,
}
