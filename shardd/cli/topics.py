"""`shardd topic`: topics of a server; `get` and `set` stand in `topic.py`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from shardd.cli.declared import Argument, Family, Option
from shardd.cli.durations import NEVER, expiry_us
from shardd.cli.identity import identifier
from shardd.cli.names import Stream, Topic
from shardd.cli.output import printable, size_text
from shardd.cli.remote import EXIT_USAGE, CommandError, Remote, Yes, remote

if TYPE_CHECKING:
    import typer

    from shardd.client import values


def _others() -> typer.Typer:
    """`get` and `set`."""
    from shardd.cli.topic import topic_app

    return topic_app


topic_family = Family("Topics of a running server.", _others)
settings_family = Family("Settings that only shardd has.")
topic_family.families["settings"] = settings_family
_UNITS_BYTES: Final = {"b": 1, "kb": 1000, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}

_DIGITS: Final = re.compile(r"\d{1,20}(\.\d{1,9})?", re.ASCII)

Expiry = Annotated[str | None, Option("--expiry", about="Such as 90s, 1h30m, 7d; never; default (the server's).")]
Force = Annotated[bool, Option("--force", about="An expiry below a second is meant.")]
MaxSize = Annotated[str | None, Option("--max-size", about="Such as 500MB, 10GiB; unlimited; default.")]
NewName = Annotated[str, Argument("NAME")]


def size_bytes(text: str) -> int:
    """CommandError for what is no size."""
    if text in ("unlimited", "default"):
        return NEVER if text == "unlimited" else 0
    digits = text.rstrip("BbKkMmGgiI")
    unit = _UNITS_BYTES.get(text[len(digits) :].lower() or "b")
    size = int(Fraction(digits) * unit) if unit and _DIGITS.fullmatch(digits) else 0
    if not 0 < size < NEVER:
        raise CommandError(f"{text!r} is not a size; write 500MB, 10GiB, unlimited or default", EXIT_USAGE)
    return size


@remote(topic_family, "list", reads=True)
async def list_topics(remote: Remote, stream: Stream) -> None:
    """The topics of a stream."""
    found = await remote.client.topics(identifier(stream))
    columns = ("id", "name", "partitions_count", "messages_count", "size_bytes", "message_expiry_us", "created_at_us")
    if not found:
        await _stream_exists(remote, stream)
    remote.show(found, columns)


async def _stream_exists(remote: Remote, stream: str) -> None:
    from shardd.client import statuses
    from shardd.client.errors import NotFoundError

    if await remote.client.stream(identifier(stream)) is None:
        raise NotFoundError(statuses.STREAM_NOT_FOUND)


async def topic_found(remote: Remote, stream: str, topic: str) -> values.Topic:
    """NotFoundError."""
    from shardd.client import statuses
    from shardd.client.errors import NotFoundError

    found = await remote.client.topic(identifier(stream), identifier(topic))
    if found is None:
        raise NotFoundError(statuses.TOPIC_NOT_FOUND)
    return found


@remote(topic_family, "create")
async def create_topic(
    remote: Remote,
    stream: Stream,
    name: NewName,
    partitions: Annotated[int, Option("--partitions", least=0, most=1000)] = 1,
    expiry: Expiry = None,
    max_size: MaxSize = None,
    force: Force = False,
) -> None:
    """Make a topic."""
    made = await remote.client.create_topic(
        identifier(stream),
        name,
        partitions,
        expiry_us=expiry_us("default" if expiry is None else expiry, force=force),
        max_bytes=size_bytes("default" if max_size is None else max_size),
    )
    sentence = f"topic {stream}/{made.name} is made (id {made.id}, {made.partitions_count} partitions)"
    remote.done(sentence, stream=stream, topic=made.name, id=made.id, partitions=made.partitions_count)


@remote(topic_family, "update")
async def update_topic(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    name: Annotated[str | None, Option("--name", about="Another name.")] = None,
    expiry: Expiry = None,
    max_size: MaxSize = None,
    force: Force = False,
) -> None:
    """Change name, expiry or size; what is not given stays."""
    if name is expiry is max_size is None:
        raise CommandError("nothing was changed; say what is to be: --name, --expiry or --max-size", EXIT_USAGE)
    if name == "":
        raise CommandError("nothing was changed; --name '' is not a name: it has 1 to 255 bytes", EXIT_USAGE)
    changes = _Changes(
        name,
        None if expiry is None else expiry_us(expiry, force=force),
        None if max_size is None else size_bytes(max_size),
    )
    await _change(remote, stream, topic, changes)
    remote.done(f"topic {stream}/{topic} is changed", stream=stream, topic=topic if name is None else name)


class _Changes(NamedTuple):
    """None: as it is."""

    name: str | None
    expiry_us: int | None
    max_bytes: int | None


async def _change(remote: Remote, stream: str, topic: str, changes: _Changes) -> None:
    """A server that is not shardd wants all values, so those that it has are read before."""
    from shardd.client import statuses
    from shardd.client.errors import ClientError

    place = identifier(stream), identifier(topic)
    try:
        await remote.client.change_topic(*place, **changes._asdict())
    except ClientError as error:
        if getattr(error, "status", 0) != statuses.INVALID_COMMAND:
            raise
        found = await topic_found(remote, stream, topic)
        await remote.client.update_topic(
            *place,
            found.name if changes.name is None else changes.name,
            compression=found.compression,
            expiry_us=found.message_expiry_us if changes.expiry_us is None else changes.expiry_us,
            max_bytes=found.max_topic_size_bytes if changes.max_bytes is None else changes.max_bytes,
            replication=found.replication_factor,
        )


@remote(topic_family, "delete")
async def delete_topic(remote: Remote, stream: Stream, topic: Topic, yes: Yes = False) -> None:
    """Delete a topic with everything in it."""
    place = await place_of(remote, stream, topic)
    loss = loss_of(place.topic)
    remote.confirm(f"Topic {place} goes with {loss}.", yes=yes)
    await remote.client.delete_topic(*place.ids)
    remote.done(f"topic {place} is deleted with {loss}", **place.facts, deleted=True)


@remote(topic_family, "purge")
async def purge_topic(remote: Remote, stream: Stream, topic: Topic, yes: Yes = False) -> None:
    """Remove all messages of a topic and the stored offsets; partitions stay."""
    place = await place_of(remote, stream, topic)
    remote.confirm(f"All messages of topic {place} go: {loss_of(place.topic)}.", yes=yes)
    await remote.client.purge_topic(*place.ids)
    remote.done(f"topic {place} is empty", **place.facts, purged=True)


class Place(NamedTuple):
    """A topic whose content a command removes: named with ids, and removed by them."""

    stream: values.Stream
    topic: values.Topic

    def __str__(self) -> str:
        return f"{printable(self.stream.name)}/{printable(self.topic.name)} (ids {self.stream.id}/{self.topic.id})"

    @property
    def ids(self) -> tuple[int, int]:
        return self.stream.id, self.topic.id

    @property
    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {"stream": self.stream.name, "topic": self.topic.name}


async def place_of(remote: Remote, stream: str, topic: str) -> Place:
    """NotFoundError."""
    from shardd.client import statuses
    from shardd.client.errors import NotFoundError

    found = await remote.client.stream(identifier(stream))
    if found is None:
        raise NotFoundError(statuses.STREAM_NOT_FOUND)
    return Place(found[0], await topic_found(remote, stream, topic))


def loss_of(topic: values.Topic) -> str:
    return f"{topic.partitions_count} partitions, {topic.messages_count} messages, {size_text(topic.size_bytes)}"


@remote(settings_family, "show", reads=True)
async def show_settings(remote: Remote, stream: Stream, topic: Topic) -> None:
    """What is set, and the server's defaults."""
    remote.show(await remote.client.topic_settings(identifier(stream), identifier(topic)), ("key", "value", "is_set"))


@remote(settings_family, "set")
async def set_settings(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    settings: Annotated[list[str], Argument("KEY=VALUE...", about="KEY= for the server's default.")],
) -> None:
    """Change settings, all of them or none. `shardd topic set --help` says which there are."""
    from shardd.client.errors import InvalidRequestError

    pairs = {key: value for key, mark, value in (each.partition("=") for each in settings) if mark and key}
    if len(pairs) != len(settings):
        raise CommandError("write each setting once, as KEY=VALUE", EXIT_USAGE)
    there = {each.key for each in await remote.client.topic_settings(identifier(stream), identifier(topic))}
    for key in pairs:
        if key not in there:
            import difflib

            close = difflib.get_close_matches(key, there, 1)
            hint = f"; is {close[0]!r} meant?" if close else ""
            raise CommandError(f"the server has no topic setting {key}{hint}", EXIT_USAGE)
    try:
        await remote.client.set_topic_settings(identifier(stream), identifier(topic), pairs)
    except InvalidRequestError as error:
        raise CommandError(f"the server does not take these values (status {error.status})", EXIT_USAGE) from None
    remote.done(f"topic {stream}/{topic} is changed", stream=stream, topic=topic, settings=pairs)
