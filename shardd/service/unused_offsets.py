"""UNUSED_OFFSETS (docs/extensions.md#unused-offsets): stored offsets by the time of their last use, deleted or not."""

from __future__ import annotations

from typing import NamedTuple

from shardd.groups.members import GroupMembers
from shardd.metadata import Metadata
from shardd.metadata.state import ConsumerGroup, Stream, Topic
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import ConsumerKind
from shardd.protocol.unused_offsets import NO_USER, UnusedOffset, UnusedOffsets, UnusedPage
from shardd.security import Rule
from shardd.service import base
from shardd.service.groups import group_ref
from shardd.service.identity import Identity
from shardd.service.partition_calls import Home, PartitionCalls, StoredEntries, StoredEntry


class UnusedRows(NamedTuple):
    """Of the page of a table that begins at place `first`."""

    first: int
    entries: list[StoredEntry]


class UnusedOffsetService:
    """Lives on the loop thread."""

    def __init__(self, metadata: Metadata, calls: PartitionCalls, members: GroupMembers) -> None:
        self._metadata, self._calls, self._members = metadata, calls, members

    async def unused_offsets(self, identity: Identity, request: UnusedOffsets) -> UnusedPage:
        """Groups with members are listed and never deleted. 4, 1009, 2010, 41, 3007, 10002, 10009, 3011, 11001."""
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        base.require(self._metadata.state, identity, Rule.CHANGE_TOPIC, stream, topic)
        if request.delete and not request.age_us:
            raise ShardError(Status.INVALID_FORMAT, "a deletion of what is in use: say an age")
        partition = base.partition_of(topic, request.partition)
        home = self._calls.home(stream, topic, partition)
        found = await self._calls.unused_offsets(home, request.first, request.age_us)
        joined = await self._joined(stream, topic, found)
        if request.delete:
            found = await self._delete(home, request.first, request.age_us, found, joined)
        groups = {group.offsets_id: group.id for group in topic.groups.values()}
        owners = {user.incarnation: user.id for user in self._metadata.state.users.values()}
        return UnusedPage(
            found.next_first,
            tuple(
                UnusedOffset(
                    each.kind,
                    groups.get(each.consumer, each.consumer) if each.kind == ConsumerKind.GROUP else each.consumer,
                    each.value,
                    each.used_us,
                    owners.get(each.owner, NO_USER) if each.owner else NO_USER,
                    each.name,
                    members=_is_in(each, joined),
                )
                for each in found.entries
            ),
        )

    async def expire(
        self, stream: Stream, topic: Topic, home: Home, page: UnusedRows, age_us: int, group_hold_us: int
    ) -> list[StoredEntry]:
        """Deletes what was found on that page and is still unused; what was deleted. Groups stay that have members, or
        have had none for less than `group_hold_us`. `ShardError` 3007, 10002, 10009, 3011, 11001."""
        groups = _groups_of(topic, page.entries)
        quiet = await self._members.quiet_us([group_ref(stream, topic, group) for group in groups])
        held = {
            group.offsets_id
            for group, quiet_us in zip(groups, quiet, strict=True)
            if quiet_us is None or quiet_us < group_hold_us
        }
        free = [(each.kind, each.consumer) for each in page.entries if not _is_in(each, held)]
        if not free:
            return []
        return (await self._calls.delete_unused(home, page.first, age_us, free)).entries

    async def _delete(
        self, home: Home, first: int, age_us: int, found: StoredEntries, joined: set[int]
    ) -> StoredEntries:
        free = [(each.kind, each.consumer) for each in found.entries if not _is_in(each, joined)]
        return await self._calls.delete_unused(home, first, age_us, free)

    async def _joined(self, stream: Stream, topic: Topic, found: StoredEntries) -> set[int]:
        """What those of its groups are filed under that have members."""
        groups = _groups_of(topic, found.entries)
        refs = [group_ref(stream, topic, group) for group in groups]
        members = await self._members.members(refs, partitions=False)
        return {group.offsets_id for group, those in zip(groups, members, strict=True) if those}


def _groups_of(topic: Topic, entries: list[StoredEntry]) -> list[ConsumerGroup]:
    """The groups of the topic that have stored one of these."""
    listed = {each.consumer for each in entries if each.kind == ConsumerKind.GROUP}
    return [group for group in topic.groups.values() if group.offsets_id in listed] if listed else []


def _is_in(entry: StoredEntry, groups: set[int]) -> bool:
    return entry.kind == ConsumerKind.GROUP and entry.consumer in groups
