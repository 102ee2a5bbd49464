"""`shardd group`, `offset` and `lag`: how far consumers have come."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Final

from shardd.cli.declared import Argument, Family, Option
from shardd.cli.identity import identifier
from shardd.cli.names import Group, Stream, Topic
from shardd.cli.output import named_with_id
from shardd.cli.reading import READER, Start, bounds_of, first_offset, time_us
from shardd.cli.remote import EXIT_USAGE, CommandError, DryRun, Remote, Yes, remote
from shardd.cli.topics import place_of, topic_found
from shardd.cli.unused import Unused, delete_unused, list_unused

if TYPE_CHECKING:
    from shardd.client.values import PartitionBounds

group_family = Family("Consumer groups of a topic.")
offset_family = Family("Stored offsets.")
lag_family = Family()
_WHEN_IT_BEGINS: Final = "; a consumer that runs goes on where it is and stores over it: stop it first"
Consumer = Annotated[str, Argument("CONSUMER", about="Of a group, or with --consumer of one by itself.")]
AnyConsumer = Annotated[str | None, Argument("CONSUMER", about="Of a group, or with --consumer of one by itself.")]
Alone = Annotated[bool, Option("--consumer", about="Not a group.")]
PartitionId = Annotated[int, Argument("PARTITION", least=0)]


@remote(group_family, "list", reads=True)
async def list_groups(remote: Remote, stream: Stream, topic: Topic) -> None:
    """The groups of a topic."""
    found = await remote.client.groups(identifier(stream), identifier(topic))
    if not found:
        await topic_found(remote, stream, topic)
    remote.show(found, ("id", "name", "members_count", "partitions_count"))


@remote(group_family, "get", reads=True)
async def get_group(remote: Remote, stream: Stream, topic: Topic, group: Group) -> None:
    """A group, its members and their partitions."""
    remote.show_one(await _group(remote, stream, topic, group))


async def _group(remote: Remote, stream: str, topic: str, group: str) -> Any:
    from shardd.client import statuses
    from shardd.client.errors import NotFoundError

    found = await remote.client.group(identifier(stream), identifier(topic), identifier(group))
    if found is None:
        raise NotFoundError(statuses.GROUP_NOT_FOUND)
    return found


@remote(group_family, "create")
async def create_group(remote: Remote, stream: Stream, topic: Topic, name: Annotated[str, Argument("NAME")]) -> None:
    """Make a group."""
    made = await remote.client.create_group(identifier(stream), identifier(topic), name)
    remote.done(f"group {made.name} is made (id {made.id})", group=made.name, id=made.id)


@remote(group_family, "delete")
async def delete_group(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    group: Group,
    force: Annotated[bool, Option("--force", about="Also when members run; they get an error.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a group with its stored offsets."""
    found = await _group(remote, stream, topic, group)
    place, named = await place_of(remote, stream, topic), named_with_id(found)
    if found.members_count and not force:
        raise CommandError(
            f"group {named} of {place} has {found.members_count} members; stop them first, or say --force"
        )
    loss = f"{found.members_count} members and what it has stored"
    remote.confirm(f"Group {named} of {place} goes with {loss}.", yes=yes)
    await remote.client.delete_group(*place.ids, found.id, force=force)
    remote.done(f"group {named} is deleted", group=found.name, id=found.id, deleted=True)


@remote(group_family, "seek")
async def seek(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    group: Group,
    to_time: Annotated[str | None, Option("--to-time", about="-1h, a date, or seconds since 1970.")] = None,
    to_latest: Annotated[bool, Option("--to-latest", about="Behind the last message.")] = False,
    to_earliest: Annotated[bool, Option("--to-earliest", about="To the first message.")] = False,
    to_offset: Annotated[int | None, Option("--to-offset", least=0, about="The next one that is read.")] = None,
    partition: Annotated[list[int] | None, Option("--partition", "-p", least=0, about="Only these.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Have a group without members read on at another place."""
    if sum((to_time is not None, to_latest, to_earliest, to_offset is not None)) != 1:
        raise CommandError("choose one of --to-time, --to-latest, --to-earliest and --to-offset", EXIT_USAGE)
    start = Start("latest" if to_latest else "earliest")
    if to_time is not None:
        start = Start("time", time_us(to_time.removeprefix("@")))
    elif to_offset is not None:
        start = Start("offset", to_offset)
    named = named_with_id(await _group(remote, stream, topic, group))
    rows = []
    for each in await bounds_of(remote, stream, topic, tuple(partition or ())):
        now = await _next_offset(remote, stream, topic, group, each, alone=False)
        new = min(each.end, await first_offset(remote, stream, topic, each, start))
        rows.append(
            {"partition": each.id, "from": now, "to": new, "skipped": max(0, new - now), "again": max(0, now - new)}
        )
    skipped, again = sum(row["skipped"] for row in rows), sum(row["again"] for row in rows)
    if not dry_run:
        loss = f"Group {named} of {stream}/{topic} skips {skipped} messages and reads {again} again."
        remote.confirm(loss, yes=yes)
        async with _as_its_member(remote, stream, topic, group):
            for row in rows:
                await _store_next(remote, stream, topic, group, row["partition"], row["to"])
    remote.show(rows, ("partition", "from", "to", "skipped", "again"))


async def _store_next(remote: Remote, stream: str, topic: str, group: str, partition: int, offset: int) -> None:
    """What is stored is the last one that was processed; before the first message there is none."""
    place = (identifier(group), identifier(stream), identifier(topic), partition)
    if offset:
        await remote.client.store_offset(*place, offset - 1, group=True)
    elif await remote.client.stored_offset(*place, group=True) is not None:
        await remote.client.delete_offset(*place, group=True)


@contextlib.asynccontextmanager
async def _as_its_member(remote: Remote, stream: str, topic: str, group: str) -> AsyncIterator[None]:
    """Only a member may change what a group has stored, and members that run would not notice. CommandError."""
    from shardd.client import commands

    found = await _group(remote, stream, topic, group)
    if found.members_count:
        raise CommandError(f"group {group} has {found.members_count} members; stop them first")
    place = (identifier(stream), identifier(topic), identifier(group))
    await remote.client.call(commands.join_group(*place))
    try:
        yield
    finally:
        await remote.client.call(commands.leave_group(*place))


@contextlib.asynccontextmanager
async def _changing(remote: Remote, stream: str, topic: str, consumer: str, alone: bool) -> AsyncIterator[None]:
    if alone:
        yield
    else:
        async with _as_its_member(remote, stream, topic, consumer):
            yield


async def _next_offset(
    remote: Remote, stream: str, topic: str, consumer: str, bounds: PartitionBounds, *, alone: bool
) -> int:
    place = (identifier(consumer), identifier(stream), identifier(topic), bounds.id)
    found = await remote.client.stored_offset(*place, group=not alone)
    return bounds.first if found is None else max(bounds.first, found.stored + 1)


@remote(offset_family, "list", reads=True)
async def list_offsets(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    consumer: AnyConsumer = None,
    alone: Alone = False,
    unused: Unused = None,
) -> None:
    """What a consumer has stored in each partition; without one, what all have stored and when it was used."""
    if consumer is None:
        await list_unused(remote, stream, topic, unused)
        return
    if unused is not None:
        raise CommandError("--unused is about all consumers: leave CONSUMER out", EXIT_USAGE)
    rows = []
    for each in await bounds_of(remote, stream, topic):
        place = (identifier(consumer), identifier(stream), identifier(topic), each.id)
        found = await remote.client.stored_offset(*place, group=not alone)
        rows.append({"partition": each.id, "stored": None if found is None else found.stored, "end": each.end})
    remote.show(rows, ("partition", "stored", "end"))


@remote(offset_family, "get", reads=True)
async def get_offset(
    remote: Remote, stream: Stream, topic: Topic, consumer: Consumer, partition: PartitionId, alone: Alone = False
) -> None:
    """What is stored in one partition."""
    place = (identifier(consumer), identifier(stream), identifier(topic), partition)
    found = await remote.client.stored_offset(*place, group=not alone)
    if found is None:
        raise CommandError(f"{consumer} has stored nothing in partition {partition}", 3)
    remote.show_one(found)


@remote(offset_family, "update")
async def update_offset(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    consumer: Consumer,
    partition: PartitionId,
    offset: Annotated[int, Argument("OFFSET", least=0, about="Of the last message that is done.")],
    alone: Alone = False,
) -> None:
    """Store an offset."""
    place = (identifier(consumer), identifier(stream), identifier(topic), partition)
    async with _changing(remote, stream, topic, consumer, alone):
        await remote.client.store_offset(*place, offset, group=not alone)
    remote.done(
        f"{consumer} has {offset} stored in partition {partition}" + (_WHEN_IT_BEGINS if alone else ""),
        partition=partition,
        stored=offset,
    )


@remote(offset_family, "delete")
async def delete_offset(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    consumer: AnyConsumer = None,
    partition: Annotated[int | None, Argument("PARTITION", least=0)] = None,
    alone: Alone = False,
    unused: Unused = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Forget an offset: the consumer begins again. With --unused, all that were not used for so long."""
    if unused is not None and consumer is None:
        await delete_unused(remote, stream, topic, unused, dry_run=dry_run, yes=yes)
        return
    if consumer is None or partition is None or unused is not None or dry_run:
        raise CommandError("say CONSUMER and PARTITION, or --unused with an age and neither of them", EXIT_USAGE)
    remote.confirm(f"{consumer} begins again in partition {partition} of {stream}/{topic}.", yes=yes)
    place = (identifier(consumer), identifier(stream), identifier(topic), partition)
    async with _changing(remote, stream, topic, consumer, alone):
        await remote.client.delete_offset(*place, group=not alone)
    remote.done(
        f"{consumer} has nothing stored in partition {partition}" + (_WHEN_IT_BEGINS if alone else ""),
        partition=partition,
        stored=None,
    )


@remote(lag_family, "lag", reads=True)
async def lag(remote: Remote, stream: Stream, topic: Topic, consumer: Consumer, alone: Alone = False) -> None:
    """How far a consumer is behind, in messages and in seconds (the age of the first one it has not done)."""
    from shardd.client import commands

    if not alone:
        await _group(remote, stream, topic, consumer)
    rows = []
    for each in await bounds_of(remote, stream, topic):
        at = await _next_offset(remote, stream, topic, consumer, each, alone=alone)
        behind_s = 0.0
        if at < each.end:
            place = (READER, identifier(stream), identifier(topic), each.id)
            first = await remote.client.poll(*place, strategy=commands.OFFSET, value=at, count=1)
            if first.messages:
                behind_s = max(0.0, round(time.time() - first.messages[0].timestamp_us / 1e6, 1))
        rows.append(
            {"partition": each.id, "next": at, "end": each.end, "messages": max(0, each.end - at), "seconds": behind_s}
        )
    remote.show(rows, ("partition", "next", "end", "messages", "seconds"))
