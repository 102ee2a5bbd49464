"""`shardd partition` and `shardd segment`: the parts of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from shardd.cli.declared import Argument, Family, Option
from shardd.cli.identity import identifier
from shardd.cli.names import Stream, Topic
from shardd.cli.output import size_text
from shardd.cli.remote import EXIT_NOT_FOUND, EXIT_USAGE, CommandError, Remote, Yes, remote
from shardd.cli.topics import place_of, topic_found

if TYPE_CHECKING:
    from shardd.client import values

partition_family = Family("Partitions of a topic.")
segment_family = Family("Segments of a partition.")
Count = Annotated[int, Option("--count", "-n", least=1, most=1000, about="How many.")]
PartitionId = Annotated[int, Argument("PARTITION", least=0)]


@remote(partition_family, "list", reads=True)
async def list_partitions(remote: Remote, stream: Stream, topic: Topic) -> None:
    """Which offsets can be read in each, and what is on the device."""
    bounds = await remote.client.bounds(identifier(stream), identifier(topic))
    columns = ("id", "state", "first", "end", "durable_end", "messages_count", "size_bytes")
    remote.show(bounds.partitions, columns)


@remote(partition_family, "create")
async def create_partitions(remote: Remote, stream: Stream, topic: Topic, count: Count = 1) -> None:
    """Add partitions behind the last one. Keys of new messages may go to others than before."""
    await remote.client.create_partitions(identifier(stream), identifier(topic), count)
    now = (await topic_found(remote, stream, topic)).partitions_count
    remote.done(f"topic {stream}/{topic} has {now} partitions", stream=stream, topic=topic, partitions=now)


@remote(partition_family, "delete")
async def delete_partitions(remote: Remote, stream: Stream, topic: Topic, count: Count = 1, yes: Yes = False) -> None:
    """Remove the last partitions with everything in them."""
    place = await place_of(remote, stream, topic)
    found = place.topic
    if count > found.partitions_count:
        raise CommandError(f"the topic has {found.partitions_count} partitions", EXIT_USAGE)
    gone = found.partitions[-count:]
    messages, size = sum(each.messages_count for each in gone), sum(each.size_bytes for each in gone)
    loss = f"{messages} messages, {size_text(size)}"
    remote.confirm(f"Partitions {gone[0].id} to {gone[-1].id} of topic {place} go with {loss}.", yes=yes)
    await remote.client.delete_partitions(*place.ids, count)
    left = found.partitions_count - count
    sentence = f"topic {place} has {left} partitions, gone are {loss}"
    remote.done(sentence, **place.facts, partitions=left)


@remote(segment_family, "list", reads=True)
async def list_segments(remote: Remote, stream: Stream, topic: Topic, partition: PartitionId) -> None:
    """The segments of a partition, oldest first."""
    remote.show(await _segments(remote, stream, topic, partition), ("start", "end", "size_bytes", "sealed", "layout"))


async def _segments(remote: Remote, stream: str, topic: str, partition: int) -> tuple[values.SegmentBounds, ...]:
    bounds = await remote.client.bounds(identifier(stream), identifier(topic), (partition,), segments=True)
    if not bounds.partitions:
        raise CommandError(f"there is no partition {partition}", EXIT_NOT_FOUND)
    return bounds.partitions[0].segments


@remote(segment_family, "delete")
async def delete_segments(
    remote: Remote, stream: Stream, topic: Topic, partition: PartitionId, count: Count = 1, yes: Yes = False
) -> None:
    """Remove the oldest sealed segments of a partition."""
    sealed = [each for each in await _segments(remote, stream, topic, partition) if each.sealed][:count]
    if not sealed:
        raise CommandError(f"partition {partition} has no sealed segment")
    size = size_text(sum(each.size_bytes for each in sealed))
    place = await place_of(remote, stream, topic)
    loss = f"offsets {sealed[0].start} to {sealed[-1].end - 1}, {size}"
    remote.confirm(f"{len(sealed)} segments of partition {partition} of {place} go: {loss}.", yes=yes)
    await remote.client.delete_segments(*place.ids, partition, len(sealed))
    remote.done(f"gone are {loss}", **place.facts, partition=partition, segments=len(sealed))
