"""Finds streams of Liftbridge by name, and describes them for answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import msgspec

from shardd.config.liftbridge import Liftbridge as Settings
from shardd.metadata.liftbridge import described, find_liftbridge, is_home
from shardd.metadata.liftbridge_runs import on_ranges
from shardd.metadata.liftbridge_state import LiftbridgeStream, Range, Run
from shardd.metadata.state import State, Stream, Topic
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.creation import RESERVED_STREAMS
from shardd.protocol.liftbridge.native_names import title_of
from shardd.protocol.liftbridge.requests import EventTimes, StreamInfo
from shardd.security import Rule, allowed
from shardd.service import base
from shardd.service.identity import Identity

LISTED_MAX: Final = 20_000  # streams of one answer; the topics of other native streams come last
_PARTITIONS_AT_ONCE: Final = 256
_TOPICS_AT_ONCE: Final = 64
_SEEN_BY: Final = (Rule.GET_TOPIC, Rule.POLL_MESSAGES, Rule.SEND_MESSAGES)
_NOT_EXPOSED: Final = "off"
_READ_ONLY: Final = "read"


class Found(msgspec.Struct, frozen=True):
    """`native`: a topic of a stream that is not Liftbridge's own."""

    stream: Stream
    topic: Topic
    attributes: LiftbridgeStream
    native: bool

    @property
    def reserved(self) -> bool:
        return not self.native and self.attributes.name in RESERVED_STREAMS


def found_of(state: State, stream: Stream, topic: Topic) -> Found:
    return Found(stream, topic, described(state, stream, topic), not is_home(state, stream))


def find(state: State, settings: Settings, name: str) -> Found | None:
    """Topics outside the namespace only where they are exposed."""
    exposed = settings.expose_native != _NOT_EXPOSED
    place = find_liftbridge(state, name) or (_find_native(state, name) if exposed else None)
    if place is None:
        return None
    found = found_of(state, *place)
    return found if exposed or not found.native else None


def _find_native(state: State, name: str) -> tuple[Stream, Topic] | None:
    """STREAM/TOPIC, of topics that have no other name in Liftbridge. Both may have slashes in theirs; the topic that
    was made first has the name."""
    found: tuple[Stream, Topic] | None = None
    at = name.find("/")
    while at >= 0:
        stream = base.find_stream(state, name[:at])
        topic = None if stream is None or is_home(state, stream) else base.find_topic(stream, name[at + 1 :])
        if stream is None or topic is None or topic.liftbridge is not None:
            pass
        elif found is None or topic.incarnation < found[1].incarnation:
            found = stream, topic
        at = name.find("/", at + 1)
    return found


def would_take_a_name(state: State, settings: Settings, stream: Stream, name: str) -> bool:
    """Whether a topic that is made natively in the namespace would get the name of another stream."""
    return is_home(state, stream) and find(state, settings, name) is not None


def topic_would_take_a_name(state: State, settings: Settings, stream: Stream, topic: Topic, name: str) -> bool:
    """Whether a topic that gets this name, in a stream as it is now, would get that of another one in Liftbridge."""
    if is_home(state, stream):
        found = find(state, settings, name)
        return found is not None and found.topic is not topic
    return _would_take(state, settings, topic, title_of(stream.name, name))


async def stream_would_take_a_name(state: State, settings: Settings, stream: Stream, name: str) -> bool:
    """The same of a stream that gets this name, with any of its topics."""
    if is_home(state, stream) or settings.expose_native == _NOT_EXPOSED:
        return False
    for count, topic in enumerate(stream.topics.values()):
        if count % _TOPICS_AT_ONCE == 0:
            await asyncio.sleep(0)
        if _would_take(state, settings, topic, title_of(name, topic.name)):
            return True
    return False


def _would_take(state: State, settings: Settings, topic: Topic, title: str) -> bool:
    """Of two topics with one name the one that was made first has it."""
    if topic.liftbridge is not None:
        return False  # it has another one
    found = find(state, settings, title)
    return found is not None and found.native and topic.incarnation < found.topic.incarnation


def require_permitted(state: State, settings: Settings, identity: Identity, name: str, *rules: Rule) -> Found:
    """The stream, for a user to whom one of the rules is granted. `ShardError` 41, then 2010."""
    found = permitted_by_name(state, settings, identity, name, *rules)
    if found is None:
        raise ShardError(Status.TOPIC_ID_NOT_FOUND, f"no stream {name!r}")
    return found


def require_found(state: State, settings: Settings, name: str) -> Found:
    """The stream, for the server itself. `ShardError` 2010."""
    found = find(state, settings, name)
    if found is None:
        raise ShardError(Status.TOPIC_ID_NOT_FOUND, f"no stream {name!r}")
    return found


def permitted_by_name(state: State, settings: Settings, identity: Identity, name: str, *rules: Rule) -> Found | None:
    """The stream, None where none has the name. Rights come before existence: `ShardError` 41 unless one of the rules
    is granted for the stream, or, without a stream, for every stream that could have the name."""
    found = find(state, settings, name)
    places = list(_places_of(state, settings, name)) if found is None else [(found.stream, found.topic)]
    if not any(base.permitted(state, identity, rule, *place) for rule in rules for place in places):
        raise ShardError(Status.UNAUTHORIZED)
    return found


def _places_of(state: State, settings: Settings, name: str) -> Iterator[tuple[Stream | None, Topic | None]]:
    """Where a stream with the name would be made."""
    yield None if state.liftbridge.home is None else state.streams[state.liftbridge.home[0]], None
    at = -1
    while settings.expose_native != _NOT_EXPOSED and (at := name.find("/", at + 1)) >= 0:
        stream = base.find_stream(state, name[:at])
        if stream is not None:
            yield stream, None


def require_change(settings: Settings, found: Found) -> None:
    """`ShardError` 41 for topics that are exposed for reading only."""
    if found.native and settings.expose_native == _READ_ONLY:
        raise ShardError(Status.UNAUTHORIZED, "liftbridge.expose_native is read: others cannot be changed here")


def may_see(state: State, identity: Identity, stream: Stream, topic: Topic) -> bool:
    """Whoever may do something with it."""
    return any(allowed(state, identity.user, rule, stream.id, topic.id) for rule in _SEEN_BY)


def every_place(state: State, settings: Settings) -> Iterator[tuple[Stream, Topic] | None]:
    """All of them: those of the namespace first, by id. None for steps between. A name is told once: a native topic
    whose name another stream has is not a stream of Liftbridge."""
    home = None if state.liftbridge.home is None else state.streams[state.liftbridge.home[0]]
    others = settings.expose_native != _NOT_EXPOSED
    rest = [state.streams[number] for number in sorted(state.streams)] if others else []
    for stream in ([] if home is None else [home]) + [each for each in rest if each is not home]:
        yield None
        for topic_id in sorted(stream.topics):
            topic = stream.topics[topic_id]
            yield (stream, topic) if stream is home or _has_its_name(state, stream, topic) else None


def _has_its_name(state: State, stream: Stream, topic: Topic) -> bool:
    if topic.liftbridge is not None:
        return True
    name = title_of(stream.name, topic.name)
    place = find_liftbridge(state, name) or _find_native(state, name)
    return place is not None and place[1] is topic


def describe(state: State, found: Found, made: list[StreamInfo]) -> Iterator[None]:
    """Adds what a client is told, in steps: a topic may have many partitions."""
    attributes, topic = found.attributes, found.topic
    paused, readonly = list[int](), list[int]()
    pause_times, readonly_times = dict[int, EventTimes](), dict[int, EventTimes]()
    for ranges, ids in ((on_ranges(attributes.paused), paused), (on_ranges(attributes.readonly), readonly)):
        for partitions in _pieces(ranges):
            ids.extend(partitions)
            yield
    for runs, times in ((attributes.paused, pause_times), (attributes.readonly, readonly_times)):
        for run in runs:
            for partitions in _pieces(((run.first, run.end),)):
                times.update(dict.fromkeys(partitions, _times(run)))
                yield
    made.append(
        StreamInfo(
            name=attributes.name,
            subject=attributes.subject,
            group=attributes.group,
            stream_id=found.stream.id,
            topic_id=topic.id,
            incarnation=topic.incarnation,
            partitions=len(topic.partitions),
            created_at_ns=topic.created_at_us * 1000,
            settings=dict(attributes.settings),
            paused=tuple(paused),
            readonly=tuple(readonly),
            pause_times=pause_times,
            readonly_times=readonly_times,
            native=found.native,
        )
    )
    yield


def _times(run: Run) -> EventTimes:
    return EventTimes(run.first_ns, run.latest_ns)


def _pieces(ranges: tuple[Range, ...]) -> Iterator[range]:
    for first, end in ranges:
        for at in range(first, end, _PARTITIONS_AT_ONCE):
            yield range(at, min(at + _PARTITIONS_AT_ONCE, end))
