"""Rights of a user and their block on the wire (docs/protocol/primitives.md#permission-block), both directions.
Sans-IO.

Entries may come in any order, the last one of an id wins; they are written by ascending id. Flags that say "value
follows" count only when they are exactly 1, the rights themselves are true for any non-zero byte.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from immutables import Map

from shardd.protocol import primitives as wire
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Reader

ENTRIES_MAX: Final = 32_768  # streams and topics together: a block is decoded before anybody has logged in


class TopicPermissions(msgspec.Struct, frozen=True):
    manage_topic: bool = False
    read_topic: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class StreamPermissions(msgspec.Struct, frozen=True):
    manage_stream: bool = False
    read_stream: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    topics: Map[int, TopicPermissions] = msgspec.field(default_factory=Map)


class Permissions(msgspec.Struct, frozen=True):
    manage_servers: bool = False
    read_servers: bool = False
    manage_users: bool = False
    read_users: bool = False
    manage_streams: bool = False
    read_streams: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    streams: Map[int, StreamPermissions] = msgspec.field(default_factory=Map)


def _flag_names(kind: type[Any]) -> tuple[str, ...]:
    """The rights of a level in the order of the block; the map of the next level is not a right."""
    return tuple(name for name in kind.__struct_fields__ if name not in ("streams", "topics"))


_GLOBAL: Final = _flag_names(Permissions)
_STREAM: Final = _flag_names(StreamPermissions)
_TOPIC: Final = _flag_names(TopicPermissions)


class _Block:
    """Reads one block; bounds the number of its entries."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._entries = 0

    def permissions(self) -> Permissions:
        flags = self._flags(_GLOBAL)
        streams: dict[int, StreamPermissions] = {}
        more = self._follows()
        while more:
            stream_id = self._entry_id()
            streams[stream_id] = self._stream()
            more = self._follows()
        return Permissions(**flags, streams=Map(streams))

    def _stream(self) -> StreamPermissions:
        flags = self._flags(_STREAM)
        topics: dict[int, TopicPermissions] = {}
        more = self._follows()
        while more:
            topic_id = self._entry_id()
            topics[topic_id] = TopicPermissions(**self._flags(_TOPIC))
            more = self._follows()
        return StreamPermissions(**flags, topics=Map(topics))

    def _flags(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: value != 0 for name, value in zip(names, self._reader.take(len(names)), strict=True)}

    def _follows(self) -> bool:
        return self._reader.u8() == 1

    def _entry_id(self) -> int:
        self._entries += 1
        if self._entries > ENTRIES_MAX:
            raise ShardError(Status.INVALID_FORMAT, "too many entries in a permission block")
        return self._reader.u32()


def read_permissions(reader: Reader) -> Permissions:
    """A block with its length. `ShardError` 3 when the payload ends inside, 4 when the length is not that of the
    block or when it has more than `ENTRIES_MAX` entries."""
    length = reader.u32()
    before = reader.remaining
    permissions = _Block(reader).permissions()
    if before - reader.remaining != length:
        raise ShardError(Status.INVALID_FORMAT, "the length of a permission block is wrong")
    return permissions


def encode_permissions(permissions: Permissions) -> bytes:
    """The block with its length."""
    block = _encode_flags(permissions, _GLOBAL)
    streams = permissions.streams
    block += wire.u8(1 if streams else 0)
    for number, stream_id in enumerate(sorted(streams), 1):
        block += wire.u32(stream_id) + _encode_stream(streams[stream_id]) + wire.u8(number < len(streams))
    return wire.u32(len(block)) + bytes(block)


def _encode_flags(level: object, names: tuple[str, ...]) -> bytearray:
    return bytearray(getattr(level, name) for name in names)


def _encode_stream(stream: StreamPermissions) -> bytearray:
    block = _encode_flags(stream, _STREAM)
    topics = stream.topics
    block += wire.u8(1 if topics else 0)
    for number, topic_id in enumerate(sorted(topics), 1):
        block += wire.u32(topic_id) + _encode_flags(topics[topic_id], _TOPIC) + wire.u8(number < len(topics))
    return block
