"""Rights of users as the command line writes them: RIGHT, STREAM:RIGHT, STREAM/TOPIC:RIGHT."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple, TypeVar

from shardd.cli.identity import identifier
from shardd.cli.remote import EXIT_NOT_FOUND, EXIT_USAGE, CommandError, Remote
from shardd.client.values import Permissions, StreamRights, TopicRights, User

_BELOW: Final = ("streams", "topics")
_KNOWN: Final = {
    kind: tuple(each.name for each in fields(kind) if each.name not in _BELOW)
    for kind in (Permissions, StreamRights, TopicRights)
}


class Right(NamedTuple):
    """`stream`, `topic`: ids; None: everywhere, in the whole stream."""

    name: str
    stream: int | None = None
    topic: int | None = None


Rights = frozenset[Right]
Some = TypeVar("Some", StreamRights, TopicRights)


async def rights_of(remote: Remote, words: Iterable[str] | None) -> Rights:
    """CommandError for a right, a stream or a topic that there is not."""
    return frozenset([await _right(remote, word) for word in words or ()])


async def _right(remote: Remote, word: str) -> Right:
    place, mark, name = word.rpartition(":")
    stream, slash, topic = place.partition("/")
    known = _KNOWN[Permissions if not mark else TopicRights if slash else StreamRights]
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"is {close[0]!r} meant?" if close else f"there are {', '.join(known)}"
        raise CommandError(f"there is no right {name} {_where(mark, slash)}; {hint}", EXIT_USAGE)
    if not mark:
        return Right(name)
    found = await remote.client.stream(identifier(stream)) if stream else None
    if found is None:
        raise CommandError(f"there is no stream {stream}, of the right {word}", EXIT_NOT_FOUND)
    if not slash:
        return Right(name, found[0].id)
    in_it = await remote.client.topic(found[0].id, identifier(topic)) if topic else None
    if in_it is None:
        raise CommandError(f"there is no topic {topic} in stream {stream}, of the right {word}", EXIT_NOT_FOUND)
    return Right(name, found[0].id, in_it.id)


def _where(mark: str, slash: str) -> str:
    return "everywhere" if not mark else "in a topic" if slash else "in a stream"


def held(permissions: Permissions | None) -> Rights:
    found: set[Right] = set()
    if permissions is not None:
        found |= {Right(name) for name in _KNOWN[Permissions] if getattr(permissions, name)}
        for stream, rights in permissions.streams.items():
            found |= {Right(name, stream) for name in _KNOWN[StreamRights] if getattr(rights, name)}
            for topic, its in rights.topics.items():
                found |= {Right(name, stream, topic) for name in _KNOWN[TopicRights] if getattr(its, name)}
    return frozenset(found)


def permissions_of(rights: Rights) -> Permissions | None:
    """None: no right."""
    if not rights:
        return None
    streams: dict[int, StreamRights] = {}
    for each in sorted(rights, key=lambda right: (right.stream is not None, right.topic is not None, right)):
        if each.stream is None:
            continue
        stream = streams.get(each.stream, StreamRights())
        if each.topic is None:
            streams[each.stream] = _with(stream, each.name)
        else:
            topic = _with(stream.topics.get(each.topic, TopicRights()), each.name)
            streams[each.stream] = replace(stream, topics={**stream.topics, each.topic: topic})
    return Permissions(**{each.name: True for each in rights if each.stream is None}, streams=streams)


def _with(rights: Some, name: str) -> Some:
    given: dict[str, Any] = {name: True}
    return replace(rights, **given)


async def shown(remote: Remote, rights: Rights) -> list[str]:
    """As they are typed, with names where the asking user may see them."""
    from shardd.client.errors import ClientError

    streams: dict[int, str] = {}
    topics: dict[tuple[int, int], str] = {}
    for stream in {each.stream for each in rights if each.stream is not None}:
        try:
            found = await remote.client.stream(stream)
        except ClientError:
            found = None
        if found is not None:
            streams[stream] = found[0].name
            topics |= {(stream, each.id): each.name for each in found[1]}
    return sorted(_word(each, streams, topics) for each in rights)


def _word(right: Right, streams: dict[int, str], topics: dict[tuple[int, int], str]) -> str:
    if right.stream is None:
        return right.name
    place = streams.get(right.stream, f"id:{right.stream}")
    if right.topic is not None:
        place += "/" + topics.get((right.stream, right.topic), f"id:{right.topic}")
    return f"{place}:{right.name}"


class Change(NamedTuple):
    """`only`: None, what there is stays."""

    grant: list[str]
    revoke: list[str]
    only: list[str] | None = None


async def change_rights(remote: Remote, user: User, change: Change) -> dict[str, list[str]]:
    """Rights before and after, as they are shown. CommandError when they have changed in the meantime."""
    before = held(user.permissions)
    if change.only is None:
        after = (before | await rights_of(remote, change.grant)) - await rights_of(remote, change.revoke)
    else:
        after = await rights_of(remote, change.only)
    facts = {"before": await shown(remote, before), "after": await shown(remote, after)}
    await _unchanged(remote, user, before, "nothing was written")
    await remote.client.update_permissions(user.id, permissions_of(after))
    await _unchanged(remote, user, after, "they are not those that were written")
    return facts


async def _unchanged(remote: Remote, user: User, expected: Rights, otherwise: str) -> None:
    now = await remote.client.user(user.id)
    found = held(now.permissions) if now is not None else frozenset()
    if found != expected:
        rights = ", ".join(await shown(remote, found)) or "-"
        raise CommandError(f"somebody else has changed the rights of user {user.name}; {otherwise}; now: {rights}")
