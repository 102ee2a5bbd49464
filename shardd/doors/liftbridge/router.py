"""Which partitions a message goes to, by its subject, as NATS would deliver it to the subscriptions that Liftbridge
makes for them: partition 0 of a stream listens on `subject`, partition N on `subject.N`; of all that match in one queue
group, one is taken at random. Pure.

Partitions are not spread out: a subject is looked up once as it is and once without a number at its end."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from shardd.doors.liftbridge.subject_table import SubjectTable, is_pattern
from shardd.protocol.liftbridge.creation import WILDCARD_TOKENS_MAX
from shardd.protocol.liftbridge.requests import StreamInfo

REMEMBERED_SUBJECTS_MAX: Final = 4_096
REMEMBERED_TARGETS_MAX: Final = 65_536  # of all of them
_REMEMBERED_CHARACTERS_MAX: Final = 255  # of a subject; longer ones are looked up each time
_REST: Final = ".>"
_PARTITION_DIGITS_MAX: Final = 9
_STEP_STREAMS: Final = 64


class Target(NamedTuple):
    """A partition of a stream."""

    stream: str
    partition: int


class _Found(NamedTuple):
    """Targets without a group, and candidates of each group."""

    plain: tuple[Target, ...]
    groups: tuple[tuple[Target, ...], ...]


def partition_subject(subject: str, partition: int) -> str:
    return f"{subject}.{partition}" if partition else subject


class Router:
    """`choice`: who takes one of a group; that of a test."""

    def __init__(self, choice: random.Random | None = None) -> None:
        self._choice = choice or random.Random()
        self._streams: dict[str, StreamInfo] = {}
        self._listening: SubjectTable[str, StreamInfo] = SubjectTable()  # by name
        self._found: dict[str, _Found] = {}
        self._found_targets = 0

    def matches(self, subject: str) -> list[Target]:
        """Where a message of this subject goes. A wildcard in it is a token as others are, as in NATS."""
        found = self._found.get(subject)
        if found is None:
            found = self._look_up(subject)
        if not found.groups:
            return [*found.plain]
        return [*found.plain, *(self._choice.choice(group) for group in found.groups)]

    def of_subscription(self, subject: str, group: str, partition: int) -> list[Target]:
        """Where a message goes that a subscription for this partition of streams on `subject` has brought: NATS has
        chosen among groups already."""
        found = [
            (stream, partition)
            for stream in self._listening.at(subject).values()
            if stream.group == group and partition < stream.partitions
        ]
        if not group:
            return [Target(stream.name, number) for stream, number in found]
        return [self._choice.choice(_members(found))] if found else []

    def replace(self, streams: Iterable[StreamInfo]) -> None:
        """From now on these, at once: for as many as fit into one turn of a loop."""
        for _ in self.replacing(streams):
            pass

    def replacing(self, streams: Iterable[StreamInfo]) -> Iterator[None]:
        """The same in short steps. Between two of them each stream is there as it was or as it is now; one that goes
        goes first, so that a name that comes back is not there twice."""
        wanted = {stream.name: stream for stream in streams}
        yield
        for count, name in enumerate([*self._streams]):
            old, new = self._streams[name], wanted.get(name)
            if new is None:
                self._remove(old)
            elif new is not old and _differ(new, old):
                self._remove(old)
                self._add(new)
            elif new is not old:
                self._streams[name] = new
            if count % _STEP_STREAMS == 0:
                yield
        for count, stream in enumerate(wanted.values()):
            if stream.name not in self._streams:
                self._add(stream)
            if count % _STEP_STREAMS == 0:
                yield

    def _forget(self) -> None:
        self._found.clear()
        self._found_targets = 0

    def _add(self, stream: StreamInfo) -> None:
        self._forget()
        self._streams[stream.name] = stream
        if _fits(stream.subject):
            self._listening.add(stream.subject, stream.name, stream)

    def _remove(self, stream: StreamInfo) -> None:
        self._forget()
        del self._streams[stream.name]
        if _fits(stream.subject):
            self._listening.remove(stream.subject, stream.name)

    def _look_up(self, subject: str) -> _Found:
        candidates = [(stream, 0) for streams in self._listening.match(subject) for stream in streams.values()]
        head, _, last = subject.rpartition(".")
        number = partition_number(last)
        if number:
            for streams in self._listening.match(head):
                candidates += [
                    (stream, number)
                    for stream in streams.values()
                    if number < stream.partitions and not stream.subject.endswith(_REST)
                ]
        plain = tuple(Target(stream.name, number) for stream, number in candidates if not stream.group)
        groups: dict[str, list[tuple[StreamInfo, int]]] = {}
        for stream, number in candidates:
            if stream.group:
                groups.setdefault(stream.group, []).append((stream, number))
        found = _Found(plain, tuple(_members(group) for group in groups.values()))
        size = len(plain) + sum(len(group) for group in found.groups)
        if len(subject) <= _REMEMBERED_CHARACTERS_MAX and size <= REMEMBERED_TARGETS_MAX:
            if len(self._found) >= REMEMBERED_SUBJECTS_MAX or self._found_targets + size > REMEMBERED_TARGETS_MAX:
                self._forget()
            self._found[subject] = found
            self._found_targets += size
        return found


def _members(group: list[tuple[StreamInfo, int]]) -> tuple[Target, ...]:
    """Who of a group may be taken: a paused partition does not listen, so another one takes the message."""
    awake = [(stream, number) for stream, number in group if number not in stream.paused] or group
    return tuple(Target(stream.name, number) for stream, number in awake)


def _fits(subject: str) -> bool:
    """Of others no creation lets more through."""
    return subject.count(".") < WILDCARD_TOKENS_MAX or not is_pattern(subject)


def _differ(new: StreamInfo, old: StreamInfo) -> bool:
    """Whether they have other targets."""
    return (new.subject, new.group, new.partitions, new.paused) != (old.subject, old.group, old.partitions, old.paused)


def partition_number(token: str) -> int:
    """The partition that a token at the end of a subject may mean; 0: none. Partitions are written in one way."""
    if not 0 < len(token) <= _PARTITION_DIGITS_MAX or not token.isascii() or not token.isdigit() or token[0] == "0":
        return 0
    return int(token)
