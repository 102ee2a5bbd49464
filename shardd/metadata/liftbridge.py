"""Streams and consumer groups of Liftbridge: part of the state machine of `apply.py`, as pure
(docs/adr/0092-liftbridge-metadata.md).

A topic of the home stream is a stream of Liftbridge by its name; what it has beyond that is stored with its first
change. Topics of other streams become one with the first change that Liftbridge makes. A name stays when the topic is
renamed. What native changes mean for streams and groups is `native_effect`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.structs import replace

from shardd.metadata import commands
from shardd.metadata.commands import Command
from shardd.metadata.liftbridge_groups import with_member, with_partitions, without_member, without_streams
from shardd.metadata.liftbridge_runs import cut, marked, on_ranges, ranges_of, run_of
from shardd.metadata.liftbridge_shares import owner_of
from shardd.metadata.liftbridge_state import EVENTS_BYTES_MAX, RUNS_MAX, Activity, Liftbridge, LiftbridgeStream, Range
from shardd.metadata.records import Record
from shardd.metadata.state import State, Stream, Topic
from shardd.protocol.liftbridge.native_names import subject_of, subject_of_topic, title_of
from shardd.protocol.liftbridge.requests import EVENTS_MAX, ActivityOp


def is_home(state: State, stream: Stream) -> bool:
    return state.liftbridge.home == (stream.id, stream.incarnation)


def described(state: State, stream: Stream, topic: Topic) -> LiftbridgeStream:
    """What the topic is to Liftbridge, whether that is stored or follows from its names."""
    if topic.liftbridge is not None:
        return topic.liftbridge
    if is_home(state, stream):
        return LiftbridgeStream(topic.name, subject_of(topic.name), "")
    return LiftbridgeStream(title_of(stream.name, topic.name), subject_of_topic(stream.name, topic.name), "")


def find_liftbridge(state: State, name: str) -> tuple[Stream, Topic] | None:
    """The stream of Liftbridge with that name, among those that the metadata know by it."""
    place = state.liftbridge.names.get(name)
    if place is None:
        return None
    stream = state.streams[place[0]]
    return stream, stream.topics[place[1]]


def partitions_of(topic: Topic, chosen: tuple[int, ...]) -> tuple[Range, ...]:
    """None chosen: all of them."""
    return ranges_of(chosen) if chosen else ((0, len(topic.partitions)),) if topic.partitions else ()


def groups_concerned(state: State, names: Iterable[str]) -> int:
    """Members, with their streams, of all groups that have subscribed to one of these streams."""
    liftbridge = state.liftbridge
    groups = {group for name in names for group in liftbridge.groups_of.get(name, ())}
    return sum(liftbridge.groups[group].size for group in groups)


def names_in(state: State, stream: Stream) -> list[str]:
    """Of the topics of a native stream that are streams of Liftbridge, by the ids of the topics."""
    if not state.liftbridge.names:
        return []
    home = is_home(state, stream)
    topics = (stream.topics[topic_id] for topic_id in sorted(stream.topics))
    return [described(state, stream, topic).name for topic in topics if home or topic.liftbridge is not None]


def _tell(liftbridge: Liftbridge, *events: Activity) -> Liftbridge:
    """The newest are kept, as far as they have room."""
    kept = (*liftbridge.events, *events)
    used = liftbridge.events_bytes + sum(event.cost_bytes for event in events)
    first = 0
    while len(kept) - first > EVENTS_MAX or (used > EVENTS_BYTES_MAX and first < len(kept)):
        used -= kept[first].cost_bytes
        first += 1
    return replace(liftbridge, events=kept[first:] if first else kept, events_bytes=used)


def _created(liftbridge: Liftbridge, index: int, stream: Stream, topic: Topic, name: str) -> Liftbridge:
    partitions = ((0, len(topic.partitions)),) if topic.partitions else ()
    event = Activity(index, ActivityOp.CREATE_STREAM, name, partitions)
    return _tell(replace(liftbridge, names=liftbridge.names.set(name, (stream.id, topic.id))), event)


def _removed(liftbridge: Liftbridge, index: int, names: Iterable[str]) -> Liftbridge:
    gone = list(names)
    known = liftbridge.names
    with known.mutate() as left:
        for name in gone:
            del left[name]
        liftbridge = replace(liftbridge, names=left.finish())
    liftbridge = without_streams(liftbridge, index, gone)
    return _tell(liftbridge, *(Activity(index, ActivityOp.DELETE_STREAM, name) for name in gone))


# ---- changes that Liftbridge makes ----


def _prepare(state: State, record: Record, command: commands.PrepareLiftbridge) -> State:
    """The topics of an earlier home are streams no more, except those with something stored. A stream outside whose
    name a topic of the new home has gives way to it."""
    stream = state.streams[command.stream.id]
    liftbridge = replace(state.liftbridge, server_id=state.liftbridge.server_id or command.server_id)
    if is_home(state, stream):
        return replace(state, liftbridge=liftbridge)
    earlier = None if liftbridge.home is None else state.streams.get(liftbridge.home[0])
    if earlier is not None:
        derived = [topic.name for topic in earlier.topics.values() if topic.liftbridge is None]
        liftbridge = _removed(liftbridge, record.index, sorted(derived))
    state = replace(state, liftbridge=replace(liftbridge, home=(stream.id, stream.incarnation)))
    for topic_id in sorted(stream.topics):
        topic = stream.topics[topic_id]
        name = described(state, stream, topic).name
        place = state.liftbridge.names.get(name)
        if topic.liftbridge is not None:
            continue
        if place is not None:
            state = _without_attributes(state, record.index, name, *place)
        created = _created(state.liftbridge, record.index, stream, topic, name)
        state = replace(state, liftbridge=created)
    return state


def _without_attributes(state: State, index: int, name: str, stream_id: int, topic_id: int) -> State:
    state = with_attributes(state, stream_id, topic_id, None)
    return replace(state, liftbridge=_removed(state.liftbridge, index, [name]))


def _adopted(state: State, stream_id: int, topic_id: int) -> tuple[State, LiftbridgeStream]:
    """With what the topic is stored, if that was not yet so."""
    stream = state.streams[stream_id]
    topic = stream.topics[topic_id]
    found = described(state, stream, topic)
    if topic.liftbridge is not None:
        return state, found
    names = state.liftbridge.names.set(found.name, (stream.id, topic.id))
    state = replace(state, liftbridge=replace(state.liftbridge, names=names))
    return with_attributes(state, stream_id, topic_id, found), found


def with_attributes(state: State, stream_id: int, topic_id: int, attributes: LiftbridgeStream | None) -> State:
    stream = state.streams[stream_id]
    topics = stream.topics.set(topic_id, replace(stream.topics[topic_id], liftbridge=attributes))
    return replace(state, streams=state.streams.set(stream_id, replace(stream, topics=topics)))


def _pause(state: State, record: Record, command: commands.PauseLiftbridgeStream) -> State:
    def change(known: LiftbridgeStream, ranges: tuple[Range, ...]) -> LiftbridgeStream:
        paused = marked(known.paused, ranges, True, record.timestamp_us * 1000)
        return replace(known, paused=paused, resume_all=command.resume_all)

    return _mark(state, record, command, change, ActivityOp.PAUSE_STREAM, command.resume_all)


def _resume(state: State, record: Record, command: commands.ResumeLiftbridgeStream) -> State:
    ids = command.stream.id, command.topic.id
    state, known = _adopted(state, *ids)
    own = run_of(known.paused, command.partition)
    if own is None or not own.on:
        return state
    width = len(state.streams[command.stream.id].topics[command.topic.id].partitions)
    if known.resume_all:
        ranges = on_ranges(known.paused)
    elif len(known.paused) + 2 > RUNS_MAX and width > RUNS_MAX:  # nobody may make more, however many he sends to
        ranges = ((own.first, own.end),)
    else:
        ranges = ranges_of((command.partition,))
    changed = replace(known, paused=marked(known.paused, ranges, False, record.timestamp_us * 1000), resume_all=False)
    event = Activity(record.index, ActivityOp.RESUME_STREAM, known.name, ranges)
    return _with_event(with_attributes(state, *ids, changed), event)


def _set_readonly(state: State, record: Record, command: commands.SetLiftbridgeReadonly) -> State:
    def change(known: LiftbridgeStream, ranges: tuple[Range, ...]) -> LiftbridgeStream:
        return replace(known, readonly=marked(known.readonly, ranges, command.readonly, record.timestamp_us * 1000))

    return _mark(state, record, command, change, ActivityOp.SET_STREAM_READONLY, command.readonly)


def _mark(
    state: State,
    record: Record,
    command: commands.MarkPartitions,
    change: Callable[[LiftbridgeStream, tuple[Range, ...]], LiftbridgeStream],
    op: ActivityOp,
    flag: bool,
) -> State:
    ids = command.stream.id, command.topic.id
    state, known = _adopted(state, *ids)
    ranges = partitions_of(state.streams[ids[0]].topics[ids[1]], command.partitions)
    event = Activity(record.index, op, known.name, ranges, flag)
    return _with_event(with_attributes(state, *ids, change(known, ranges)), event)


def _join(state: State, record: Record, command: commands.JoinLiftbridgeGroup) -> State:
    names: list[str] = []
    sizes: dict[str, int] = {}
    for stream, topic in command.streams:
        state, found = _adopted(state, stream.id, topic.id)
        names.append(found.name)
        sizes[found.name] = len(state.streams[stream.id].topics[topic.id].partitions)
    user, owner = command.user.id, owner_of(state, command.user)
    group, consumer = command.group_name, command.consumer
    joined = with_member(state.liftbridge, record.index, group, consumer, names, sizes.__getitem__, user, owner)
    event = Activity(
        record.index,
        ActivityOp.JOIN_CONSUMER_GROUP,
        group=group,
        consumer=consumer,
        names=tuple(names),
    )
    return _with_event(replace(state, liftbridge=joined), event)


def _leave(state: State, record: Record, command: commands.LeaveLiftbridgeGroup) -> State:
    left = without_member(state.liftbridge, record.index, command.group_name, command.consumer)
    event = Activity(
        record.index,
        ActivityOp.LEAVE_CONSUMER_GROUP,
        flag=command.expired,
        group=command.group_name,
        consumer=command.consumer,
    )
    return _with_event(replace(state, liftbridge=left), event)


def _with_event(state: State, event: Activity) -> State:
    return replace(state, liftbridge=_tell(state.liftbridge, event))


# ---- what native changes mean ----


def native_effect(old: State, new: State, record: Record) -> State:
    """`new`: after the native part of the change."""
    effect = _EFFECTS.get(type(record.command))
    return (
        new
        if effect is None or (old.liftbridge.home is None and not old.liftbridge.names)
        else effect(old, new, record)
    )


def attributes_of(command: commands.CreateTopic) -> LiftbridgeStream | None:
    """What a topic is made with."""
    if not isinstance(command, commands.CreateLiftbridgeStream):
        return None
    return LiftbridgeStream(command.title, command.subject, command.queue_group, command.attributes)


def _topic_created(old: State, new: State, record: Record) -> State:
    command: Any = record.command
    stream = new.streams[command.stream.id]
    if not is_home(new, stream):
        return new
    topic = stream.topics[stream.topic_ids[command.name]]
    name = described(new, stream, topic).name
    return replace(new, liftbridge=_created(new.liftbridge, record.index, stream, topic, name))


def _topic_updated(old: State, new: State, record: Record) -> State:
    """A new name of the topic is none of the stream."""
    command: Any = record.command
    stream = old.streams[command.stream.id]
    topic = stream.topics[command.topic.id]
    if topic.liftbridge is not None or command.name in (None, topic.name) or not is_home(old, stream):
        return new
    return with_attributes(new, stream.id, topic.id, described(old, stream, topic))


def _topic_deleted(old: State, new: State, record: Record) -> State:
    command: Any = record.command
    stream = old.streams[command.stream.id]
    topic = stream.topics[command.topic.id]
    if topic.liftbridge is None and not is_home(old, stream):
        return new
    gone = [described(old, stream, topic).name]
    return replace(new, liftbridge=_removed(new.liftbridge, record.index, gone))


def _stream_deleted(old: State, new: State, record: Record) -> State:
    command: Any = record.command
    stream = old.streams[command.stream.id]
    liftbridge = new.liftbridge
    if names := names_in(old, stream):
        liftbridge = _removed(liftbridge, record.index, names)
    if is_home(old, stream):
        liftbridge = replace(liftbridge, home=None)
    return new if liftbridge is new.liftbridge else replace(new, liftbridge=liftbridge)


def _partitions_changed(old: State, new: State, record: Record) -> State:
    command: Any = record.command
    stream = new.streams[command.stream.id]
    topic = stream.topics[command.topic.id]
    known = topic.liftbridge
    if known is None and not is_home(new, stream):
        return new
    count = len(topic.partitions)
    if known is not None and (known.paused or known.readonly):
        shorter = replace(known, paused=cut(known.paused, count), readonly=cut(known.readonly, count))
        new = new if shorter == known else with_attributes(new, stream.id, topic.id, shorter)
    name = described(new, stream, topic).name
    return replace(new, liftbridge=with_partitions(new.liftbridge, record.index, name, count))


_EFFECTS: Final[dict[type[Command], Callable[[State, State, Record], State]]] = {
    commands.CreateTopic: _topic_created,
    commands.CreateTopicWithSettings: _topic_created,
    commands.CreateLiftbridgeStream: _topic_created,
    commands.UpdateTopic: _topic_updated,
    commands.ChangeTopic: _topic_updated,
    commands.DeleteTopic: _topic_deleted,
    commands.DeleteStream: _stream_deleted,
    commands.CreatePartitions: _partitions_changed,
    commands.DeletePartitions: _partitions_changed,
}

LIFTBRIDGE_CHANGES: Final[dict[type[Command], Callable[[State, Record, Any], State]]] = {
    commands.PrepareLiftbridge: _prepare,
    commands.PauseLiftbridgeStream: _pause,
    commands.ResumeLiftbridgeStream: _resume,
    commands.SetLiftbridgeReadonly: _set_readonly,
    commands.JoinLiftbridgeGroup: _join,
    commands.LeaveLiftbridgeGroup: _leave,
}
