"""What the metadata know of Liftbridge, as a snapshot holds it: part of `snapshot_image.py`."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec
from immutables import Map
from msgspec.structs import replace

from shardd.metadata.liftbridge import described
from shardd.metadata.liftbridge_groups import share_out
from shardd.metadata.liftbridge_shares import counted
from shardd.metadata.liftbridge_state import (
    GROUPS_SIZE_MAX,
    NO_LIFTBRIDGE,
    Activity,
    Charge,
    Liftbridge,
    LiftbridgeGroup,
    LiftbridgeStream,
    Run,
    SharedStream,
)
from shardd.metadata.state import State, Stream, Topic
from shardd.protocol.liftbridge.requests import EVENTS_MAX

_NO_HOME: Final = ()


class AttributesImage(msgspec.Struct, array_like=True, frozen=True):
    """Of one topic."""

    stream_id: int
    topic_id: int
    name: str
    subject: str
    group: str
    settings: tuple[tuple[str, int | bool], ...]
    paused: tuple[Run, ...]
    readonly: tuple[Run, ...]
    resume_all: bool


class LiftbridgeGroupImage(msgspec.Struct, array_like=True, frozen=True):
    """Lists in the order of their names."""

    name: str
    epoch: int
    members: list[tuple[str, tuple[str, ...], Charge]]
    streams: list[tuple[str, SharedStream]]


class LiftbridgeImage(msgspec.Struct, array_like=True, frozen=True):
    """`home`: id and incarnation, or nothing."""

    home: tuple[int, ...]
    server_id: str
    attributes: list[AttributesImage]
    groups: list[LiftbridgeGroupImage]
    events: tuple[Activity, ...]


def liftbridge_image(state: State) -> LiftbridgeImage | None:
    """None: nothing that earlier programs would not know."""
    liftbridge = state.liftbridge
    if liftbridge == NO_LIFTBRIDGE:
        return None
    attributes = [
        _attributes_image(stream.id, topic_id, known)
        for stream in (state.streams[number] for number in sorted(state.streams))
        for topic_id in sorted(stream.topics)
        if (known := stream.topics[topic_id].liftbridge) is not None
    ]
    groups = [_group_image(liftbridge.groups[name]) for name in sorted(liftbridge.groups)]
    return LiftbridgeImage(liftbridge.home or _NO_HOME, liftbridge.server_id, attributes, groups, liftbridge.events)


def with_liftbridge(state: State, image: LiftbridgeImage | None) -> State:
    """ValueError for what no server has written."""
    if image is None:
        return state
    if len(image.home) not in (0, 2) or len(image.events) > EVENTS_MAX:
        raise ValueError("a home or events that are out of their range")
    streams = state.streams
    for each in image.attributes:
        stream = streams.get(each.stream_id)
        topic = None if stream is None else stream.topics.get(each.topic_id)
        if stream is None or topic is None:
            raise ValueError(f"attributes of topic {each.topic_id} in stream {each.stream_id}, which is not there")
        topics = stream.topics.set(topic.id, replace(topic, liftbridge=_attributes(each, topic)))
        streams = streams.set(stream.id, replace(stream, topics=topics))
    home = None if not image.home else (image.home[0], image.home[1])
    state = replace(state, streams=streams, liftbridge=Liftbridge(home, image.server_id))
    groups = {each.name: _group(each) for each in image.groups}
    subscribed = dict[str, list[str]]()
    for name in sorted(groups):
        for stream_name in groups[name].streams:
            subscribed.setdefault(stream_name, []).append(name)
    names = _names(state)
    size = sum(group.size for group in groups.values())
    if size > GROUPS_SIZE_MAX or not subscribed.keys() <= names.keys():
        raise ValueError("groups that are too large, or of streams that are not there")
    liftbridge = replace(
        state.liftbridge,
        names=Map(names),
        groups=Map(groups),
        groups_of=Map({name: tuple(each) for name, each in subscribed.items()}),
        groups_size=size,
        events=image.events,
        events_bytes=sum(event.cost_bytes for event in image.events),
    )
    users = {user.incarnation for user in state.users.values()}
    return replace(state, liftbridge=counted(liftbridge, users))


def _names(state: State) -> dict[str, tuple[int, int]]:
    """Of topics with something stored, and of those of the home stream."""
    names: dict[str, tuple[int, int]] = {}
    for stream in state.streams.values():
        home = state.liftbridge.home == (stream.id, stream.incarnation)
        for topic in stream.topics.values():
            if home or topic.liftbridge is not None:
                names[_name(names, state, stream, topic)] = stream.id, topic.id
    return names


def _name(names: dict[str, tuple[int, int]], state: State, stream: Stream, topic: Topic) -> str:
    name = described(state, stream, topic).name
    if name in names:
        raise ValueError(f"two streams of Liftbridge with the name {name!r}")
    return name


def _attributes_image(stream_id: int, topic_id: int, known: LiftbridgeStream) -> AttributesImage:
    return AttributesImage(
        stream_id,
        topic_id,
        known.name,
        known.subject,
        known.group,
        known.settings,
        known.paused,
        known.readonly,
        known.resume_all,
    )


def _attributes(image: AttributesImage, topic: Topic) -> LiftbridgeStream:
    for runs in (image.paused, image.readonly):
        ordered = all(one.end <= other.first for one, other in pairwise(runs))
        fits = all(0 <= run.first < run.end <= len(topic.partitions) for run in runs)
        if not ordered or not fits:
            raise ValueError(f"stream {image.name!r} has marks of partitions that are not there")
    return LiftbridgeStream(
        image.name, image.subject, image.group, image.settings, image.paused, image.readonly, image.resume_all
    )


def _group_image(group: LiftbridgeGroup) -> LiftbridgeGroupImage:
    members = [(name, group.members[name], group.charges[name]) for name in sorted(group.members)]
    streams = [(name, group.streams[name]) for name in sorted(group.streams)]
    return LiftbridgeGroupImage(group.name, group.epoch, members, streams)


def _group(image: LiftbridgeGroupImage) -> LiftbridgeGroup:
    """ValueError unless members and shares say the same of each other, and the shares are what sharing out leads to."""
    members = {consumer: streams for consumer, streams, _ in image.members}
    charges = {consumer: charge for consumer, _, charge in image.members}
    if any(charges[consumer].size < 1 + len(streams) for consumer, streams in members.items()):
        raise ValueError(f"group {image.name!r} has members that count less than they are")
    loads = dict.fromkeys(members, 0)
    size = len(members) + sum(len(streams) for streams in members.values())
    subscriptions = {(consumer, stream) for consumer, streams in members.items() for stream in streams}
    shared = {(share.consumer, name) for name, stream in image.streams for share in stream.shares}
    if not members or subscriptions != shared or size != len(members) + len(subscriptions):
        raise ValueError(f"group {image.name!r} has members without a share, or shares without a member")
    for _, stream in image.streams:
        if share_out([(share.base, share.consumer) for share in stream.shares], stream.partitions) != stream.shares:
            raise ValueError(f"group {image.name!r} has shared out partitions in another way than this version does")
        for share in stream.shares:
            loads[share.consumer] += share.count
    streams_of_group = Map(dict(image.streams))
    return LiftbridgeGroup(image.name, image.epoch, Map(members), streams_of_group, Map(loads), Map(charges), size)
