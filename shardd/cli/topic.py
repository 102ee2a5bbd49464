"""`shardd topic get` and `shardd topic set`: a topic of a running server and its settings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import typer

from shardd.cli.identity import are_an_id, identifier
from shardd.cli.options import EXIT_USAGE, Address, Password, Username
from shardd.cli.output import harmless, printable, shown
from shardd.cli.remote import CommandError
from shardd.cli.whom import EXIT_REFUSED, whom
from shardd.client import commands
from shardd.client.blocking import BlockingLink
from shardd.client.errors import ClientError, ServerError
from shardd.client.values import Topic, TopicSetting
from shardd.client.wire import Identifier
from shardd.config.units import format_size
from shardd.engine import owner
from shardd.protocol import limits, topic_setting_table
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.namespaces import namespace
from shardd.protocol.primitives import Compression
from shardd.protocol.topic_setting_table import SIZE_HELD_MAX

_BARRIER: Final = re.compile(r"retention\.(held_by|overtaken)\.(\d+)/(\d+)/(\d+)\.(consumer|group)\.(\d+)", re.ASCII)
topic_app = typer.Typer(no_args_is_help=True, help="Topics of a running server.", rich_markup_mode=None)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Stream = Annotated[str, typer.Argument(help="Name, or id:NUMBER.")]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name, or id:NUMBER.")]


def _help() -> str:
    """What there is, from the table."""
    rows = (
        f"{each.key}: {each.type.takes} (for {each.changed_by.value}; old segments {each.old_segments.value})."
        for each in topic_setting_table.SETTINGS.values()
    )
    return " ".join((*rows, "KEY= for the server's default."))


class TopicError(Exception):
    """Why there is nothing to show or change; the text is a sentence."""


@topic_app.command("get")
def get_topic(
    stream: Stream,
    topic: TopicArgument,
    address: Address = None,
    username: Username = None,
    password: Password = None,
    as_json: AsJson = False,
) -> None:
    """Show a topic: settings, sizes, partitions."""

    def show(link: BlockingLink) -> None:
        place = _as_read(link, stream, topic)
        ids = (_identifier(place[0]), _identifier(place[1]))
        found = link.call(commands.topic(*ids))
        if found is None:
            raise TopicError(_absent(link, *place))
        settings = link.call(commands.topic_settings(*ids))
        barriers = _barriers(link, ids[0], found.id)
        typer.echo((_json if as_json else _text)(found, settings, barriers))

    _run(show, address, username, password)


def _absent(link: BlockingLink, stream: str, topic: str) -> str:
    sentence = f"there is no topic {topic} in stream {stream}"
    streams = link.call(commands.streams())
    if not any(_identifier(stream) in (each.id, each.name) for each in streams):
        close = difflib.get_close_matches(stream, [each.name for each in streams], 1)
    else:
        topics = link.call(commands.topics(_identifier(stream)))
        close = difflib.get_close_matches(topic, [each.name for each in topics], 1)
    return sentence + (f"; is {close[0]!r} meant?" if close else "")


@topic_app.command("set")
def set_topic(
    stream: Stream,
    topic: TopicArgument,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help=_help())],
    address: Address = None,
    username: Username = None,
    password: Password = None,
) -> None:
    """Change settings of a topic, all of them or none; every shard has them when this returns."""
    pairs = tuple((key, value) for key, mark, value in (each.partition("=") for each in settings) if mark and key)
    if len(pairs) != len(settings) or len(dict(pairs)) != len(pairs):
        typer.echo("shardd: write each setting once, as KEY=VALUE", err=True)
        raise typer.Exit(EXIT_USAGE)
    for key, value in pairs:
        _check(key, value)

    def change(link: BlockingLink) -> None:
        link.call(commands.set_topic_settings(_identifier(stream), _identifier(topic), dict(pairs)))

    _run(change, address, username, password)


def _check(key: str, value: str) -> None:
    """Says what is wrong with a value before the server is asked; a key that only a newer server has is its affair."""
    try:
        topic_setting_table.canonical(key, value)
    except ShardError as error:
        if error.status != Status.FEATURE_UNAVAILABLE:
            typer.echo(printable(f"shardd: {error}"), err=True)
            raise typer.Exit(EXIT_USAGE) from None


def _identifier(text: str) -> Identifier:
    """TopicError for an id that is not a number."""
    try:
        return identifier(text)
    except CommandError as error:
        raise TopicError(str(error)) from None


def _as_read(link: BlockingLink, stream: str, topic: str) -> tuple[str, str]:
    """As `shardd.cli.identity.read_digits`."""
    if are_an_id(stream) and not any(each.name == stream for each in link.call(commands.streams())):
        stream = f"id:{stream}"
    if are_an_id(topic) and link.call(commands.topic(_identifier(stream), topic)) is None:
        topic = f"id:{topic}"
    return stream, topic


def _run(work: Callable[[BlockingLink], None], address: str | None, username: str | None, password: str | None) -> None:
    """With a connection to a server that has topic settings; one sentence and a status when that is not to be."""
    try:
        settings = whom(address, username, password)
        with BlockingLink(settings, timeout_s=10.0) as link:
            if ExtensionCode.SET_TOPIC_SETTINGS not in _extensions(link):
                raise TopicError(
                    f"the server at {settings.address} has no topic settings; it is not shardd, or an older one"
                )
            work(link)
    except ServerError as error:
        typer.echo(printable(f"shardd: {_SENTENCES.get(error.status, str(error))}"), err=True)
        raise typer.Exit(EXIT_REFUSED) from None
    except (ClientError, TopicError, ValueError) as error:
        typer.echo(f"shardd: {printable(str(error))}", err=True)
        raise typer.Exit(EXIT_REFUSED) from None


def _extensions(link: BlockingLink) -> set[int]:
    """The codes that the server has."""
    try:
        return {each.code for each in link.call(commands.extensions()).commands}
    except ServerError as error:
        if error.status == Status.INVALID_COMMAND:
            return set()
        raise


_SENTENCES: Final[dict[int, str]] = {
    Status.STREAM_ID_NOT_FOUND: "there is no such stream",
    Status.TOPIC_ID_NOT_FOUND: "there is no such topic",
    Status.UNAUTHORIZED: "this user may not do that with the topic",
    Status.INVALID_CREDENTIALS: "the server refuses the login",
    Status.FEATURE_UNAVAILABLE: "the server does not have this setting",
    Status.INVALID_CONFIGURATION: "the server does not take this value",
}


class Holder(msgspec.Struct, frozen=True):
    """A stored offset that holds messages of a partition back, or has not passed messages that are gone."""

    partition: int
    kind: str
    id: int
    stored_offset: int


def _barriers(link: BlockingLink, stream: Identifier, topic_id: int) -> dict[str, list[Holder]]:
    """Of a topic, those that hold and those that are overtaken. Empty for a user who may not see the figures of the
    server."""
    found: dict[str, list[Holder]] = {"held_by": [], "overtaken": []}
    try:
        metrics = link.call(commands.metrics())
        stream_id = next(each.id for each in link.call(commands.streams()) if stream in (each.id, each.name))
    except (ServerError, StopIteration):
        return found
    for shard in metrics.shards:
        for name, value in shard.values.items():
            match = _BARRIER.fullmatch(name)
            if match is None or (int(match[2]), int(match[3])) != (stream_id, topic_id):
                continue
            if shard.shard == _owner(match, metrics.shards_count):
                found[match[1]].append(Holder(int(match[4]), match[5], int(match[6]), value))
    return {name: sorted(those, key=lambda each: each.partition) for name, those in found.items()}


def _owner(match: re.Match[str], shards: int) -> int:
    """A shard that does not have a figure tells 0."""
    return owner(namespace(int(match[2]), int(match[3]), int(match[4])), shards)


def _json(topic: Topic, settings: tuple[TopicSetting, ...], barriers: dict[str, list[Holder]]) -> str:
    values = {each.key: {"value": each.value, "set": each.is_set} for each in settings}
    facts = msgspec.to_builtins(topic)
    facts |= {"settings": values, "partitions": facts.pop("partitions")}
    facts["held_back_by"] = msgspec.to_builtins(barriers["held_by"])
    facts["overtaken"] = msgspec.to_builtins(barriers["overtaken"])
    return harmless(msgspec.json.encode(facts).decode())


def _max_size(size: int) -> str:
    named = {limits.SERVER_DEFAULT: "default", limits.UNLIMITED: "unlimited"}
    return named.get(size) or format_size(size)


def _beyond(topic: Topic, settings: tuple[TopicSetting, ...]) -> Iterator[str]:
    """Topics from before: what stored offsets may hold beyond the size, which the rule of new topics would remove."""
    old = any(each.key == SIZE_HELD_MAX.key and not each.is_set for each in settings)
    beyond = topic.size_bytes - topic.max_topic_size_bytes * 9 // 10
    if old and beyond > 0 and topic.max_topic_size_bytes != limits.SERVER_DEFAULT:
        yield f"{format_size(beyond)} beyond nine tenths of its size; they go with size_held_max=0s"


def _text(topic: Topic, settings: tuple[TopicSetting, ...], barriers: dict[str, list[Holder]]) -> str:
    made = datetime.fromtimestamp(topic.created_at_us / 1e6, UTC).isoformat(timespec="seconds")
    rows = [
        ("topic", f"{printable(topic.name)} (id {topic.id})"),
        ("created", made.replace("+00:00", "Z")),
        ("messages", f"{topic.messages_count} in {topic.size_bytes} bytes"),
        ("message expiry", shown("message_expiry_us", topic.message_expiry_us)),
        ("max size", _max_size(topic.max_topic_size_bytes)),
        ("compression", Compression(topic.compression).name.lower()),
        ("replication factor", str(topic.replication_factor)),
    ]
    rows += [(each.key, each.value + ("" if each.is_set else "  (the server's default)")) for each in settings]
    rows += [("stored offsets may hold", sentence) for sentence in _beyond(topic, settings)]
    rows += [
        (title, f"{each.kind} {each.id} in partition {each.partition} (stored offset {each.stored_offset})")
        for title, those in (("held back by", barriers["held_by"]), ("overtaken", barriers["overtaken"]))
        for each in those
    ]
    lines = [f"{name:<35}{value}" for name, value in rows]
    lines += ["", f"{'partition':>9}  {'segments':>8}  {'last offset':>20}  {'messages':>14}  {'bytes':>16}"]
    for each in topic.partitions:
        last = str(each.current_offset) if each.messages_count else "-"
        row = f"{each.id:>9}  {each.segments_count:>8}  {last:>20}  {each.messages_count:>14}  {each.size_bytes:>16}"
        lines.append(row)
    return "\n".join(lines)
