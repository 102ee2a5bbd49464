"""The incarnation behind an answer to a poll. The classic poll names none, so a second request follows each poll on
the same connection: answers come in the order of the requests, and an incarnation never comes back once it is gone. If
it is the planned one behind the poll, it was so when the poll was answered.

A data directory that is put back as files keeps the incarnation and may have other messages. That needs a restart, so
the first poll of a task on a connection is for a record of the plan (`Slice.mark`).

A stock server has no GET_PARTITION_BOUNDS; there the creation time of the partition (GET_TOPIC) stands for the
incarnation, which tells a topic made anew, but not a purge.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardd.client import commands
from shardd.client.errors import of_status
from shardd.client.marks import Mark
from shardd.protocol import bounds
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.spark.commands import decoded
from shardd.spark.loss import ForeignIncarnationError
from shardd.spark.positions import TopicName


@dataclass(frozen=True, slots=True)
class Proof:
    """Of one partition in one incarnation."""

    name: TopicName
    partition: int
    incarnation: int
    stock: bool

    def request(self) -> tuple[int, bytes]:
        """Code and payload of the request that follows a poll."""
        if self.stock:
            asked = commands.topic(self.name.stream, self.name.topic)
            return asked.code, asked.payload
        selection = bounds.TopicSelection(self.name.stream, self.name.topic, (self.partition,))
        return ExtensionCode.GET_PARTITION_BOUNDS, bounds.GetPartitionBounds((selection,)).encode()

    def check(self, answer: bytes) -> int | None:
        """The end of the partition, where the server tells it. `ForeignIncarnationError`; `ServerError` when the topic
        or partition is not there."""
        end: int | None = None
        if self.stock:
            topic = commands.topic(self.name.stream, self.name.topic).read(answer)
            if topic is None:
                raise of_status(Status.TOPIC_ID_NOT_FOUND)
            found = {each.id: each.created_at_us for each in topic.partitions}.get(self.partition)
        else:
            partition = decoded(lambda given: bounds.decode_reply(given)[0].partitions[0], answer)
            found, end = partition.incarnation, partition.end
        if found != self.incarnation:
            raise ForeignIncarnationError(foreign(self.name, self.partition, self.incarnation, found))
        return end

    def check_mark(self, mark: Mark, found: Mark | None, end: int | None) -> None:
        """`found`: what the server has from the marked offset on; `end`: as `check` gave it. A record that retention
        has deleted says nothing. `ForeignIncarnationError`."""
        missing = found is None and end is not None and end <= mark.offset
        if missing or (found is not None and found.offset == mark.offset and found.checksum != mark.checksum):
            raise ForeignIncarnationError(
                f"the data directory of partition {self.partition} of '{self.name}' was put back as files since it was"
                f" planned (offset {mark.offset} has another message, or none); its offsets mean other messages now"
            )


def foreign(name: TopicName, partition: int, planned: int, found: int | None) -> str:
    """What is wrong, as text."""
    return (
        f"partition {partition} of '{name}' was purged, made anew or restored since it was planned (incarnation"
        f" {planned}, now {found}); its offsets mean other messages now"
    )
