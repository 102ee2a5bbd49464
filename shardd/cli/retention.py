"""`shardd retention enable`: topics of earlier versions begin to lose what their expiry and size do not allow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
import typer

from shardd.cli.options import Address, Password, Username
from shardd.cli.output import printable
from shardd.cli.whom import EXIT_REFUSED, whom
from shardd.client import commands
from shardd.client.blocking import BlockingLink
from shardd.client.errors import ClientError
from shardd.client.values import PartitionBounds, Topic
from shardd.config.units import format_size
from shardd.protocol import limits
from shardd.protocol.bounds import PARTITIONS_MAX
from shardd.protocol.topic_setting_table import ARCHIVE, DISCARD, PARTITION_MESSAGES_MAX, PARTITION_SIZE_MAX, RETENTION

_ARCHIVES: Final = {
    "required": "what goes waits in archive/spool until it is archived",
    "best_effort": "what goes waits in archive/spool, up to system.archive.spool_max",
}

retention_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@retention_app.callback()
def retention() -> None:
    """Whether topics lose what their expiry and size do not allow."""


class _Kept(msgspec.Struct, frozen=True):
    """A topic that keeps everything because nobody has said otherwise."""

    stream: int
    stream_name: str
    topic: Topic
    settings: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.stream_name}/{self.topic.name}"


@retention_app.command("enable")
def enable(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    address: Address = None,
    username: Username = None,
    password: Password = None,
) -> None:
    """Switch retention on for all topics of earlier versions in which nobody has switched it off."""
    try:
        with BlockingLink(whom(address, username, password)) as link:
            kept = list(_kept(link))
            for each in kept:
                typer.echo(f"{printable(each.name)}: {_would_go(link, each)}")
                if not dry_run:
                    link.call(commands.set_topic_settings(each.stream, each.topic.id, {RETENTION.key: "on"}))
            typer.echo(f"{len(kept)} topics" + (", nothing was changed" if dry_run else ": retention is on"))
    except (ClientError, ValueError) as error:
        typer.echo(printable(f"shardd: {error}"), err=True)
        raise typer.Exit(EXIT_REFUSED) from None


def _kept(link: BlockingLink) -> Iterator[_Kept]:
    for stream in link.call(commands.streams()):
        for topic in link.call(commands.topics(stream.id)):
            settings = {each.key: each for each in link.call(commands.topic_settings(stream.id, topic.id))}
            if not settings[RETENTION.key].is_set:
                values = {key: each.value for key, each in settings.items()}
                yield _Kept(stream.id, stream.name, topic, values)


def _would_go(link: BlockingLink, kept: _Kept) -> str:
    """What the topic's own values say; the server's defaults are its affair."""
    topic, found = kept.topic, []
    refuses, messages_max = kept.settings[DISCARD.key] == "refuse", int(kept.settings[PARTITION_MESSAGES_MAX.key])
    bytes_max = PARTITION_SIZE_MAX.type.parse(kept.settings[PARTITION_SIZE_MAX.key])
    expires = topic.message_expiry_us not in (limits.SERVER_DEFAULT, limits.UNLIMITED)
    partitions = list(_partitions(link, kept)) if expires or messages_max or bytes_max else []
    if topic.message_expiry_us == limits.SERVER_DEFAULT or topic.max_topic_size_bytes == limits.SERVER_DEFAULT:
        found.append("has the server's default")
    if expires:
        expired = sum(_expired(link, kept, each) for each in partitions)
        found.append(f"{expired} of {topic.messages_count} messages have expired")
    if refuses:
        found.append("discard=refuse: nothing goes for its size or its count, sends are refused")
    if messages_max and not refuses:
        above = sum(max(0, each.end - each.first - messages_max) for each in partitions)
        found.append(f"{above} messages are above partition_messages_max={messages_max}")
    if bytes_max and not refuses:
        over = sum(max(0, each.size_bytes - bytes_max) for each in partitions)
        found.append(f"{format_size(over)} are above partition_size_max={format_size(bytes_max)}")
    if topic.max_topic_size_bytes not in (limits.SERVER_DEFAULT, limits.UNLIMITED) and not refuses:
        over = max(0, topic.size_bytes - topic.max_topic_size_bytes * 9 // 10)
        found.append(f"{format_size(over)} of {format_size(topic.size_bytes)} are too much")
    archive = kept.settings[ARCHIVE.key]
    if found and archive != "none":
        found.append(f"archive={archive}: " + _ARCHIVES[archive])
    return "; ".join(found) or "nothing would go"


def _partitions(link: BlockingLink, kept: _Kept) -> Iterator[PartitionBounds]:
    """All of the topic, with as many requests as they need."""
    count = kept.topic.partitions_count
    pieces = [tuple(range(each, min(each + PARTITIONS_MAX, count))) for each in range(0, count, PARTITIONS_MAX)]
    for asked in pieces if len(pieces) > 1 else [()]:
        yield from link.call(commands.bounds(kept.stream, kept.topic.id, asked)).partitions


def _expired(link: BlockingLink, kept: _Kept, partition: PartitionBounds) -> int:
    """Offsets of the partition that are older than the expiry."""
    first_kept_us = max(0, time.time_ns() // 1000 - kept.topic.message_expiry_us)
    place = (0, kept.stream, kept.topic.id, partition.id)
    poll = commands.poll(*place, strategy=commands.TIMESTAMP, value=first_kept_us, count=1)
    messages = link.call(poll).messages
    return (messages[0].offset if messages else partition.end) - partition.first
