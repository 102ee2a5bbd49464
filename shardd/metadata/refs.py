"""What a `Ref` names: the object that had this incarnation, never a later one with the same id."""

from __future__ import annotations

from shardd.metadata.commands import Ref
from shardd.metadata.state import ConsumerGroup, State, Stream, Topic


def find_stream(state: State, ref: Ref) -> Stream | None:
    """The stream, unless it is gone or another one has its id now."""
    stream = state.streams.get(ref.id)
    return stream if stream is not None and stream.incarnation == ref.incarnation else None


def find_topic(stream: Stream, ref: Ref) -> Topic | None:
    """The topic, unless it is gone or another one has its id now."""
    topic = stream.topics.get(ref.id)
    return topic if topic is not None and topic.incarnation == ref.incarnation else None


def find_group(topic: Topic, ref: Ref) -> ConsumerGroup | None:
    """The consumer group, unless it is gone or another one has its id now."""
    group = topic.groups.get(ref.id)
    return group if group is not None and group.incarnation == ref.incarnation else None
