"""How a stream, topic, group or user is named on the command line: NAME, name:NAME or id:NUMBER.

Digits alone are a name. Only a command that changes nothing takes them as an id, and only where no such name exists:
`shardd stream delete 0` must not delete the stream that happens to have the id 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shardd.cli.remote import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from shardd.client.client import Client

_ID: Final = "id:"
_NAME: Final = "name:"
_IDS: Final = 1 << 32


def identifier(text: str) -> int | str:
    """CommandError for an id that is not a number."""
    if text.startswith(_NAME):
        return text.removeprefix(_NAME)
    if not text.startswith(_ID):
        return text
    digits = text.removeprefix(_ID)
    if not are_an_id(digits):
        sentence = f"{text!r} is not an id; write id:NUMBER below {_IDS}, or name:{text} for a name"
        raise CommandError(sentence, EXIT_USAGE)
    return int(digits)


def are_an_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < _IDS


async def read_digits(client: Client, values: dict[str, Any]) -> None:
    """Of a command that changes nothing: digits become `id:` where no such name exists. ClientError."""
    for kind in ("user", "stream", "topic", "group", "consumer"):
        text = values.get(kind)
        if isinstance(text, str) and are_an_id(text) and not await _is_name(client, kind, text, values):
            values[kind] = _ID + text


async def _is_name(client: Client, kind: str, name: str, values: dict[str, Any]) -> bool:
    if kind == "user":
        return await client.user(name) is not None
    if kind == "stream":
        return await client.stream(name) is not None
    stream, topic = identifier(values["stream"]), identifier(values["topic"])
    if kind == "topic":
        return await client.topic(stream, name) is not None
    if not values.get("alone"):
        return await client.group(stream, topic, name) is not None
    found = await client.topic(stream, topic)  # of a single consumer the server knows only what it has stored
    partitions = range(found.partitions_count if found else 0)
    return any([await client.stored_offset(name, stream, topic, each) is not None for each in partitions])
