"""Where to begin, where to end, and the messages between: what `consume`, `message` and `group seek` share."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardd.cli.durations import duration_us
from shardd.cli.identity import identifier
from shardd.cli.remote import EXIT_USAGE, CommandError, Remote
from shardd.config.digits import number_of

if TYPE_CHECKING:
    from shardd.client.commands import Command
    from shardd.client.messages import Polled
    from shardd.client.values import PartitionBounds

READER: Final = "shardd-cli"
_PAUSE_S: Final = 0.05
COUNT_MAX: Final = 4096
BYTES_MAX: Final = 4 << 20


class Start(NamedTuple):
    """`kind`: earliest, latest, offset, last (messages before the end) or time (us since 1970)."""

    kind: str
    value: int = 0


_UNITS: Final = ((10**11, 1_000_000), (10**14, 1000))  # seconds and milliseconds before the year 5138


def start_of(text: str) -> Start:
    """earliest, latest, N, -N, @-1h, @2026-01-31T12:00:00Z, @SECONDS. CommandError."""
    if text in ("earliest", "latest"):
        return Start(text)
    if text.startswith("@"):
        return Start("time", time_us(text[1:]))
    number = number_of(text.removeprefix("-"))
    if number is not None and number < 1 << 64:
        return Start("last" if text.startswith("-") else "offset", number)
    raise CommandError(f"{text!r} is no place to begin: earliest, latest, an offset, -N, @-1h or @DATE", EXIT_USAGE)


def time_us(text: str) -> int:
    """-1h, a date as in ISO 8601 (UTC without a zone), or a number since 1970: seconds with up to 11 digits,
    milliseconds with up to 14, else microseconds. CommandError."""
    from datetime import UTC, datetime

    if text.startswith("-"):
        return max(0, time.time_ns() // 1000 - duration_us(text[1:]))
    number = number_of(text)
    if number is not None and number < 1 << 64:
        return number * next((unit for end, unit in _UNITS if number < end), 1)
    try:
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise CommandError(
            f"{text!r} is no time: write -1h, 2026-01-31T12:00:00Z or seconds since 1970", EXIT_USAGE
        ) from None
    return max(0, int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000_000))


async def bounds_of(remote: Remote, stream: str, topic: str, chosen: Sequence[int] = ()) -> tuple[PartitionBounds, ...]:
    """Of the chosen partitions, or all. CommandError for one that there is not."""
    found = (await remote.client.bounds(identifier(stream), identifier(topic), tuple(chosen))).partitions
    if missing := set(chosen) - {each.id for each in found}:
        raise CommandError(f"there is no partition {min(missing)} in {stream}/{topic}", 3)
    return found


async def first_offset(remote: Remote, stream: str, topic: str, bounds: PartitionBounds, start: Start) -> int:
    """Where `start` is in a partition."""
    from shardd.client import commands

    if start.kind == "earliest":
        return bounds.first
    if start.kind == "latest":
        return bounds.end
    if start.kind == "offset":
        return max(start.value, bounds.first)
    if start.kind == "last":
        return max(bounds.first, bounds.end - start.value)
    polled = await remote.client.poll(
        READER,
        identifier(stream),
        identifier(topic),
        bounds.id,
        strategy=commands.TIMESTAMP,
        value=start.value,
        count=1,
    )
    return polled.messages[0].offset if polled.messages else bounds.end


class Span(NamedTuple):
    """Offsets [begin, end) of a partition; end -1: never. `incarnation`: the history to which they belong."""

    partition: int
    begin: int
    end: int
    incarnation: int = 0


async def polled(
    remote: Remote,
    stream: str,
    topic: str,
    spans: Sequence[Span],
    read: Callable[[bytes], Any],
    *,
    grows: bool = False,
) -> AsyncIterator[Any]:
    """Answers `read(answer)` with `.size`, `.next_offset` and `.last_checksum`, partition by partition in turn, until
    all ends are reached. A span without end tells on the standard error what is gone and goes on; CommandError, behind
    the last answer, when offsets of one with an end are gone. `grows`: partitions come and go, and the reading has no
    end."""
    import asyncio

    from shardd.cli.places import Places, asks_positions
    from shardd.client import statuses
    from shardd.client.commands import Command
    from shardd.client.errors import NotFoundError, ServerError

    positions = await asks_positions(remote)

    async def first_from(partition: int, offset: int) -> Polled | None:
        try:
            return await remote.client.call(poll_of(stream, topic, partition, offset, 1, positions=positions))
        except ServerError as error:
            if error.status not in statuses.UNREADABLE:
                raise
            return None

    places = Places(f"{stream}/{topic}", spans, read, grows=grows)
    session = remote.client.session
    await places.begin(session, first_from)
    while grows or places.here:
        if places.is_due:
            await places.grow(lambda: bounds_of(remote, stream, topic))
        idle = True
        for place in list(places.here.values()):
            if place.is_over:
                places.here.pop(place.partition)
                continue
            count = COUNT_MAX if place.end < 0 else min(COUNT_MAX, place.end - place.at)
            command = poll_of(stream, topic, place.partition, place.at, count, positions=positions)
            try:
                answer = await remote.client.call(Command(command.code, command.payload, bytes, command.repeatable))
                if not await places.believes(place, session, first_from):
                    continue
            except NotFoundError as error:
                places.leave(place, error)
                continue
            found = place.take(answer, positions=positions)
            if found is not None:
                idle = False
                yield found
        if idle and (grows or places.here):
            await asyncio.sleep(_PAUSE_S)
    if gone := places.gone:
        raise CommandError("; ".join(gone))


def poll_of(stream: str, topic: str, partition: int, offset: int, count: int, *, positions: bool) -> Command[Polled]:
    """`positions`: the server tells histories, and bounds the bytes of an answer."""
    from shardd.client import commands

    return commands.poll(
        READER,
        identifier(stream),
        identifier(topic),
        partition,
        strategy=commands.OFFSET,
        value=offset,
        count=count,
        bytes_max=BYTES_MAX if positions else None,
    )
