"""UNUSED_OFFSETS (docs/extensions.md#unused-offsets): stored offsets by the time of their last use, deleted or not."""

from __future__ import annotations

from typing import NamedTuple

from shardd.config.schema import OffsetSettings
from shardd.groups.members import GroupMembers
from shardd.metadata import Metadata
from shardd.metadata.state import ConsumerGroup, Stream, Topic
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import ConsumerKind
from shardd.protocol.unused_offsets import NO_USER, Members, UnusedOffset, UnusedOffsets, UnusedPage
from shardd.security import Rule
from shardd.service import base
from shardd.service.groups import group_ref
from shardd.service.identity import Identity
from shardd.service.partition_calls import Home, PartitionCalls, StoredEntry


class UnusedRows(NamedTuple):
    """Of the page of a table that begins at place `first`."""

    first: int
    entries: list[StoredEntry]


class UnusedOffsetService:
    """Lives on the loop thread. Nothing goes of a group that has members, or has had none for less than
    `offsets.expiry_group_hold`: those of before may not have joined again yet."""

    def __init__(
        self, metadata: Metadata, calls: PartitionCalls, members: GroupMembers, settings: OffsetSettings
    ) -> None:
        self._metadata, self._calls, self._members = metadata, calls, members
        self._group_hold_us = settings.expiry_group_hold_ms * 1000

    async def unused_offsets(self, identity: Identity, request: UnusedOffsets) -> UnusedPage:
        """Groups that keep what they stored are told, and stay. 4, 1009, 2010, 41, 3007, 10002, 10009, 3011, 11001."""
        stream, topic = base.topic_of(self._metadata.state, request.stream, request.topic)
        base.require(self._metadata.state, identity, Rule.CHANGE_TOPIC, stream, topic)
        if request.delete and not request.age_us:
            raise ShardError(Status.INVALID_FORMAT, "a deletion of what is in use: say an age")
        partition = base.partition_of(topic, request.partition)
        home = self._calls.home(stream, topic, partition)
        found = await self._calls.unused_offsets(home, request.first, request.age_us)
        keeping = await self._keeping(stream, topic, found.entries)
        if request.delete:
            free = _free(found.entries, keeping)
            found = await self._calls.delete_unused(home, request.first, request.age_us, free)
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
                    _members_of(each, keeping),
                )
                for each in found.entries
            ),
        )

    async def expire(
        self, stream: Stream, topic: Topic, home: Home, page: UnusedRows, age_us: int
    ) -> list[StoredEntry]:
        """Deletes what was found on that page and is still unused; what was deleted. `ShardError` 3007, 10002, 10009,
        3011, 11001."""
        free = _free(page.entries, await self._keeping(stream, topic, page.entries))
        if not free:
            return []
        return (await self._calls.delete_unused(home, page.first, age_us, free)).entries

    async def _keeping(self, stream: Stream, topic: Topic, entries: list[StoredEntry]) -> dict[int, Members]:
        """The groups that keep what they stored, by what they are filed under."""
        groups = _groups_of(topic, entries)
        quiet = await self._members.quiet_us([group_ref(stream, topic, group) for group in groups])
        return {
            group.offsets_id: Members.SOME if quiet_us is None else Members.MAY_COME_BACK
            for group, quiet_us in zip(groups, quiet, strict=True)
            if quiet_us is None or quiet_us < self._group_hold_us
        }


def _groups_of(topic: Topic, entries: list[StoredEntry]) -> list[ConsumerGroup]:
    """The groups of the topic that have stored one of these."""
    listed = {each.consumer for each in entries if each.kind == ConsumerKind.GROUP}
    return [group for group in topic.groups.values() if group.offsets_id in listed] if listed else []


def _members_of(entry: StoredEntry, keeping: dict[int, Members]) -> Members:
    return keeping.get(entry.consumer, Members.NONE) if entry.kind == ConsumerKind.GROUP else Members.NONE


def _free(entries: list[StoredEntry], keeping: dict[int, Members]) -> list[tuple[int, int]]:
    return [(each.kind, each.consumer) for each in entries if _members_of(each, keeping) == Members.NONE]
