"""Which partitions a message goes to, by its subject, as NATS would deliver it to the subscriptions that Liftbridge
makes for them: partition 0 of a stream listens on `subject`, partition N on `subject.N`; of all that match in one queue
group, one is taken at random. Pure.

Subjects without wildcards are keys of a table, the others branches of a trie of their tokens. Partitions are not spread
out: a subject is looked up once as it is and once without a number at its end."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from shardd.protocol.liftbridge.creation import WILDCARD_TOKENS_MAX
from shardd.protocol.liftbridge.requests import StreamInfo

REMEMBERED_SUBJECTS_MAX: Final = 4_096
_REMEMBERED_CHARACTERS_MAX: Final = 255  # of a subject; longer ones are looked up each time
_REMEMBERED_TARGETS_MAX: Final = 16
_ANY, _REST = "*", ">"
_PARTITION_DIGITS_MAX: Final = 9
_STEP_STREAMS: Final = 64


class Target(NamedTuple):
    """A partition of a stream."""

    stream: str
    partition: int


class _Node:
    """What begins with certain tokens. `streams`: whose subject ends here, by name; `rest`: those with `>` here."""

    __slots__ = ("any", "next", "rest", "streams")

    def __init__(self) -> None:
        self.next: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.streams: dict[str, StreamInfo] = {}
        self.rest: dict[str, StreamInfo] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.next or self.any or self.streams or self.rest)


class _Found(NamedTuple):
    """Targets without a group, and candidates of each group."""

    plain: tuple[Target, ...]
    groups: tuple[tuple[Target, ...], ...]


def is_pattern(subject: str) -> bool:
    """Whether it has a wildcard."""
    return (_ANY in subject or _REST in subject) and any(token in (_ANY, _REST) for token in subject.split("."))


def partition_subject(subject: str, partition: int) -> str:
    return f"{subject}.{partition}" if partition else subject


class Router:
    """`choice`: who takes one of a group; that of a test."""

    def __init__(self, choice: random.Random | None = None) -> None:
        self._choice = choice or random.Random()
        self._streams: dict[str, StreamInfo] = {}
        self._exact: dict[str, dict[str, StreamInfo]] = {}
        self._root = _Node()
        self._found: dict[str, _Found] = {}

    def matches(self, subject: str) -> list[Target]:
        """Where a message of this subject goes. A wildcard in it is a token as others are, as in NATS."""
        found = self._found.get(subject)
        if found is None:
            found = self._look_up(subject)
        if not found.groups:
            return [*found.plain]
        return [*found.plain, *(self._choice.choice(group) for group in found.groups)]

    def listening(self, subject: str, group: str) -> list[StreamInfo]:
        """Streams with just this subject and this queue group."""
        at = self._streams_at(subject)
        return [] if at is None else [stream for stream in at.values() if stream.group == group]

    def one_of(self, members: list[Target]) -> Target:
        """Who of a group takes a message."""
        return self._choice.choice(members)

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

    def _add(self, stream: StreamInfo) -> None:
        self._found.clear()
        self._streams[stream.name] = stream
        if not is_pattern(stream.subject):
            self._exact.setdefault(stream.subject, {})[stream.name] = stream
            return
        tokens = stream.subject.split(".")
        if len(tokens) > WILDCARD_TOKENS_MAX:
            return  # no creation lets it through
        node = self._root
        for token in tokens:
            if token == _REST:
                node.rest[stream.name] = stream
                return
            if token == _ANY:
                node.any = node = node.any or _Node()
            else:
                node = node.next.setdefault(token, _Node())
        node.streams[stream.name] = stream

    def _remove(self, stream: StreamInfo) -> None:
        self._found.clear()
        del self._streams[stream.name]
        if not is_pattern(stream.subject):
            at = self._exact[stream.subject]
            del at[stream.name]
            if not at:
                del self._exact[stream.subject]
            return
        path: list[tuple[_Node, str]] = []
        node = self._root
        for token in stream.subject.split("."):
            if token == _REST:
                break
            below = node.any if token == _ANY else node.next.get(token)
            if below is None:
                return
            path.append((node, token))
            node = below
        node.streams.pop(stream.name, None)
        node.rest.pop(stream.name, None)
        for above, token in reversed(path):
            below = above.any if token == _ANY else above.next[token]
            if below is None or not below.is_empty:
                return
            if token == _ANY:
                above.any = None
            else:
                del above.next[token]

    def _streams_at(self, subject: str) -> dict[str, StreamInfo] | None:
        if not is_pattern(subject):
            return self._exact.get(subject)
        node = self._root
        for token in subject.split("."):
            if token == _REST:
                return node.rest
            below = node.any if token == _ANY else node.next.get(token)
            if below is None:
                return None
            node = below
        return node.streams

    def _look_up(self, subject: str) -> _Found:
        candidates = [
            (stream, 0 if partition is None else partition)
            for streams, partition in self._matching(subject)
            for stream in streams.values()
            if partition is None or partition < stream.partitions
        ]
        plain = tuple(Target(stream.name, number) for stream, number in candidates if not stream.group)
        groups: dict[str, list[tuple[StreamInfo, int]]] = {}
        for stream, number in candidates:
            if stream.group:
                groups.setdefault(stream.group, []).append((stream, number))
        found = _Found(plain, tuple(_members(group) for group in groups.values()))
        size = len(plain) + sum(len(group) for group in found.groups)
        if len(subject) <= _REMEMBERED_CHARACTERS_MAX and size <= _REMEMBERED_TARGETS_MAX:
            if len(self._found) >= REMEMBERED_SUBJECTS_MAX:
                self._found.clear()
            self._found[subject] = found
        return found

    def _matching(self, subject: str) -> Iterator[tuple[dict[str, StreamInfo], int | None]]:
        """Streams, and which of their partitions: None for the first."""
        head, _, last = subject.rpartition(".")
        number = _number(last)
        if subject in self._exact:
            yield self._exact[subject], None
        if number and head in self._exact:
            yield self._exact[head], number
        if self._root.is_empty:
            return
        tokens = subject.split(".")
        if not all(tokens):
            return
        nodes, left = [self._root], len(tokens)
        for token in tokens:
            if left == 1 and number:
                for node in nodes:
                    yield node.streams, number
            left -= 1
            following = []
            for node in nodes:
                if node.rest:
                    yield node.rest, None
                below = node.next.get(token)
                if below is not None:
                    following.append(below)
                if node.any is not None:
                    following.append(node.any)
            nodes = following
            if not nodes:
                return
        for node in nodes:
            yield node.streams, None


def _members(group: list[tuple[StreamInfo, int]]) -> tuple[Target, ...]:
    """Who of a group may be taken: a paused partition does not listen, so another one takes the message."""
    awake = [(stream, number) for stream, number in group if number not in stream.paused] or group
    return tuple(Target(stream.name, number) for stream, number in awake)


def _differ(new: StreamInfo, old: StreamInfo) -> bool:
    """Whether they have other targets."""
    return (new.subject, new.group, new.partitions, new.paused) != (old.subject, old.group, old.partitions, old.paused)


def _number(token: str) -> int:
    """The partition that a token at the end of a subject may mean; 0: none. Partitions are written in one way."""
    if not 0 < len(token) <= _PARTITION_DIGITS_MAX or not token.isascii() or not token.isdigit() or token[0] == "0":
        return 0
    return int(token)
