"""Rights in permission blocks name streams and topics by the ids of their generation (docs/protocol/legacy.md#ids)."""

from __future__ import annotations

from immutables import Map
from msgspec.structs import replace

from shardd.protocol.errors import ShardError, Status
from shardd.protocol.permissions import Permissions


def shifted(permissions: Permissions | None, by: int) -> Permissions | None:
    """With other ids. `ShardError` 4 for an id that would be below 0."""
    if permissions is None or not permissions.streams:
        return permissions
    streams = {
        _moved(stream_id, by): replace(
            rights, topics=Map({_moved(topic_id, by): each for topic_id, each in rights.topics.items()})
        )
        for stream_id, rights in permissions.streams.items()
    }
    return replace(permissions, streams=Map(streams))


def _moved(number: int, by: int) -> int:
    if number + by < 0:
        raise ShardError(Status.INVALID_FORMAT, "there is no such id")
    return number + by
