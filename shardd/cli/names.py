"""Names of a server: what is meant by one that there is not, and what may be completed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from shardd.cli.declared import Argument, Lister
from shardd.cli.identity import are_an_id, identifier

if TYPE_CHECKING:
    from shardd.client.client import Client
    from shardd.client.errors import ServerError


async def missing(client: Client, error: ServerError, values: dict[str, Any]) -> str:
    """Which of the names of a command is not there, and which one may be meant."""
    from shardd.client.errors import ClientError

    try:
        return await _missing(client, values) or _was_missing(error, values)
    except ClientError:  # who may not look gets no hint
        return f"there is no such thing: {error}"


def _was_missing(error: ServerError, values: dict[str, Any]) -> str:
    """All names are there now, as of a topic that was deleted and made again while the command ran."""
    from shardd.client import statuses

    kinds = {statuses.STREAM_NOT_FOUND: ("stream",), statuses.TOPIC_NOT_FOUND: ("stream", "topic")}
    kinds[statuses.PARTITION_NOT_FOUND] = kinds[statuses.TOPIC_NOT_FOUND]
    names = [values[each] for each in kinds.get(error.status, ()) if values.get(each) is not None]
    if not names:
        return f"there is no such thing: {error}"
    return f"{'/'.join(names)} was not there when it was asked for, and is there now: {error}"


async def _missing(client: Client, values: dict[str, Any]) -> str | None:
    for kind, names in (("user", _users), ("token", _tokens), ("stream", _streams)):
        if values.get(kind) is not None and (found := await _unknown(kind, values, names, client, values)):
            return found
    if values.get("stream") is None or values.get("topic") is None:
        return None
    if found := await _unknown("topic", values, _topics, client, values):
        return f"{found} (stream {values['stream']})"
    if values.get("group") and (found := await _unknown("group", values, _groups, client, values)):
        return f"{found} (topic {values['stream']}/{values['topic']})"
    partition = values.get("partition")
    topic = await client.topic(identifier(values["stream"]), identifier(values["topic"]))
    for each in partition if isinstance(partition, list) else [partition]:
        if isinstance(each, int) and topic is not None and each >= topic.partitions_count:
            return f"there is no partition {each}; the topic has {topic.partitions_count}, from 0"
    return None


async def _unknown(
    kind: str, values: dict[str, Any], names: Lister, client: Client, where: dict[str, Any]
) -> str | None:
    import difflib

    wanted = values[kind] if kind == "token" else identifier(values[kind])
    known = await names(client, where)
    if any(wanted in (number, name) for number, name in known):
        return None
    text = values[kind]
    its_name = next((name for number, name in known if are_an_id(text) and number == int(text)), None)
    if its_name is not None:
        return f"there is no {kind} named {text}; id:{text} is {kind} {its_name!r}"
    close = difflib.get_close_matches(str(wanted), [name for _, name in known], 1)
    return f"there is no {kind} {text}" + (f"; is {close[0]!r} meant?" if close else "")


async def _streams(client: Client, _where: dict[str, Any]) -> list[tuple[int, str]]:
    return [(each.id, each.name) for each in await client.streams()]


async def _topics(client: Client, where: dict[str, Any]) -> list[tuple[int, str]]:
    return [(each.id, each.name) for each in await client.topics(identifier(where["stream"]))]


async def _groups(client: Client, where: dict[str, Any]) -> list[tuple[int, str]]:
    found = await client.groups(identifier(where["stream"]), identifier(where["topic"]))
    return [(each.id, each.name) for each in found]


async def _users(client: Client, _where: dict[str, Any]) -> list[tuple[int, str]]:
    return [(each.id, each.name) for each in await client.users()]


async def _tokens(client: Client, _where: dict[str, Any]) -> list[tuple[int, str]]:
    return [(-1, each.name) for each in await client.tokens()]


_BY_ID: Final = "Name, or id:NUMBER."
Stream = Annotated[str, Argument("STREAM", about=_BY_ID, names=_streams)]
Topic = Annotated[str, Argument("TOPIC", about=_BY_ID, names=_topics)]
Group = Annotated[str, Argument("GROUP", about=_BY_ID, names=_groups)]
User = Annotated[str, Argument("USER", about=_BY_ID, names=_users)]
TokenName = Annotated[str, Argument("TOKEN", about="Name.", names=_tokens)]
