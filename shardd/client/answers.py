"""Answers read into values (docs/protocol/commands.md, docs/extensions.md), and the permission block."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from shardd.client import values, wire
from shardd.client.wire import Reader

T = TypeVar("T")
_STREAM: Final = struct.Struct("<IQIQQ")
_TOPIC: Final = struct.Struct("<IQIQBQBQQ")
_PARTITION: Final = struct.Struct("<IQIQQQ")
_OFFSET: Final = struct.Struct("<IQQ")
_GROUP: Final = struct.Struct("<III")
_USER: Final = struct.Struct("<IQB")
_CLIENT: Final = struct.Struct("<IIB")
_NODE: Final = struct.Struct("<HHHHBB")
_STATS: Final = struct.Struct("<IffQQQQQQQQIIIIQII")
_STATS_TAIL: Final = struct.Struct("<IQQ")
_CACHE_ENTRY_BYTES: Final = 32
_EXTENSION: Final = struct.Struct("<IH")
_METRICS: Final = struct.Struct("<QQI")
_U16: Final = struct.Struct("<H")
_SHARD: Final = struct.Struct("<IIQ")
_BOUNDS: Final = struct.Struct("<IIQQQQQQI")
_SEGMENT: Final = struct.Struct("<QQQBB")
_NO_USER: Final = (1 << 32) - 1
_COUNTER: Final = 1


def number(answer: bytes) -> int:
    return Reader(answer).u32()


def optional(read: Callable[[bytes], T]) -> Callable[[bytes], T | None]:
    """An empty answer stands for what is not there."""
    return lambda answer: read(answer) if answer else None


def listed(read: Callable[[Reader], T]) -> Callable[[bytes], list[T]]:
    def all_of(answer: bytes) -> list[T]:
        reader, found = Reader(answer), []
        while reader:
            found.append(read(reader))
        return found

    return all_of


def read_stream(reader: Reader) -> values.Stream:
    return values.Stream(*(*reader.unpack(_STREAM), reader.text8()))


def stream_details(answer: bytes) -> tuple[values.Stream, list[values.Topic]]:
    reader = Reader(answer)
    stream, topics = read_stream(reader), []
    while reader:
        topics.append(read_topic(reader))
    return stream, topics


def read_topic(reader: Reader) -> values.Topic:
    return values.Topic(*(*reader.unpack(_TOPIC), reader.text8()))


def topic_details(answer: bytes) -> values.Topic:
    reader = Reader(answer)
    topic = read_topic(reader)
    partitions = tuple(values.Partition(*reader.unpack(_PARTITION)) for _ in range(topic.partitions_count))
    return replace(topic, partitions=partitions)


def read_group(reader: Reader) -> values.Group:
    return values.Group(*(*reader.unpack(_GROUP), reader.text8()))


def group_details(answer: bytes) -> values.Group:
    reader = Reader(answer)
    group, members = read_group(reader), []
    for _ in range(group.members_count):
        member, count = reader.u32(), reader.u32()
        members.append(values.Member(member, tuple(reader.u32() for _ in range(count))))
    return replace(group, members=tuple(members))


def stored_offset(answer: bytes) -> values.StoredOffset:
    return values.StoredOffset(*Reader(answer).unpack(_OFFSET))


def read_user(reader: Reader) -> values.User:
    number_, created_at_us, status = reader.unpack(_USER)
    return values.User(number_, created_at_us, status == 1, reader.text8())


def user_details(answer: bytes) -> values.User:
    reader = Reader(answer)
    user = read_user(reader)
    if reader.u8() != 1:
        return user
    reader.u32()  # the length of the block
    return replace(user, permissions=_permissions(reader))


def read_token(reader: Reader) -> values.Token:
    return values.Token(reader.text8(), reader.u64())


def read_connected(reader: Reader) -> values.Connected:
    client_id, user_id, transport = reader.unpack(_CLIENT)
    user = None if user_id == _NO_USER else user_id
    return values.Connected(client_id, user, transport, reader.text32(), reader.u32())


def connected_details(answer: bytes) -> values.Connected:
    reader = Reader(answer)
    client = read_connected(reader)
    found = tuple((reader.u32(), reader.u32(), reader.u32()) for _ in range(client.memberships_count))
    return replace(client, memberships=found)


def cluster(answer: bytes) -> values.Cluster:
    reader = Reader(answer)
    name, nodes = reader.text32(), []
    for _ in range(reader.u32()):
        node, ip = reader.text32(), reader.text32()
        tcp_port, _quic, _http, _websocket, role, status = reader.unpack(_NODE)
        nodes.append(values.ClusterNode(node, ip, tcp_port, role == 0, status == 0))
    return values.Cluster(name, tuple(nodes))


def stats(answer: bytes) -> values.Stats:
    reader = Reader(answer)
    head = reader.unpack(_STATS)
    texts = [reader.text32() for _ in range(5)]
    reader.u32()  # the version of the protocol as a number
    reader.take(reader.u32() * _CACHE_ENTRY_BYTES)
    return values.Stats(*(*head, *texts, *reader.unpack(_STATS_TAIL)))


# ---- permissions ----

_SERVER_RIGHTS: Final = tuple(each.name for each in fields(values.Permissions))[:-1]
_STREAM_RIGHTS: Final = tuple(each.name for each in fields(values.StreamRights))[:-1]
_TOPIC_RIGHTS: Final = tuple(each.name for each in fields(values.TopicRights))


def _flags(reader: Reader, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: flag != 0 for name, flag in zip(names, reader.take(len(names)), strict=True)}


def _permissions(reader: Reader) -> values.Permissions:
    rights = _flags(reader, _SERVER_RIGHTS)
    streams = {}
    more = reader.u8()
    while more == 1:
        stream = reader.u32()
        of_stream = _flags(reader, _STREAM_RIGHTS)
        topics = {}
        more = reader.u8()
        while more == 1:
            topic = reader.u32()
            topics[topic] = values.TopicRights(**_flags(reader, _TOPIC_RIGHTS))
            more = reader.u8()
        streams[stream] = values.StreamRights(**of_stream, topics=topics)
        more = reader.u8()
    return values.Permissions(**rights, streams=streams)


def encode_permissions(permissions: values.Permissions | None) -> bytes:
    """The flag, and with permissions the block with its length."""
    if permissions is None:
        return b"\x00"
    streams = []
    for stream, rights in sorted(permissions.streams.items()):
        topics = [wire.u32(topic) + _encoded(each, _TOPIC_RIGHTS) for topic, each in sorted(rights.topics.items())]
        streams.append(wire.u32(stream) + _encoded(rights, _STREAM_RIGHTS) + _chain(topics))
    block = _encoded(permissions, _SERVER_RIGHTS) + _chain(streams)
    return b"\x01" + wire.u32(len(block)) + block


def _encoded(rights: object, names: tuple[str, ...]) -> bytes:
    return bytes(bool(getattr(rights, name)) for name in names)


def _chain(entries: list[bytes]) -> bytes:
    """Whether one follows stands in front of each, and behind the last that none does."""
    return b"".join(b"\x01" + each for each in entries) + b"\x00"


# ---- extensions ----


def extensions(answer: bytes) -> values.Extensions:
    reader = Reader(answer)
    version, found = reader.text8(), []
    for _ in range(reader.u32()):
        found.append(values.Extension(*(*reader.unpack(_EXTENSION), reader.text8())))
    return values.Extensions(version, tuple(found))


def metrics(answer: bytes) -> values.Metrics:
    reader = Reader(answer)
    time_us, started_at_us, shards_count = reader.unpack(_METRICS)
    kinds = [(reader.u8(), reader.text8()) for _ in range(reader.unpack(_U16)[0])]
    buckets, shards = reader.u8(), []
    for _ in range(reader.u32()):
        shard, generation, clock_us = reader.unpack(_SHARD)
        figures = {name: reader.u64() for _, name in kinds}
        latency = tuple(reader.u64() for _ in range(buckets))
        shards.append(values.ShardMetrics(shard, generation, clock_us, figures, latency))
    counters = frozenset(name for kind, name in kinds if kind == _COUNTER)
    return values.Metrics(time_us, started_at_us, shards_count, counters, tuple(shards))


def topic_bounds(answer: bytes) -> values.TopicBounds:
    """Of the one topic that was asked for."""
    reader = Reader(answer)
    reader.u32()
    stream_id, topic_id, stream, topic = reader.u32(), reader.u32(), reader.text8(), reader.text8()
    partitions = tuple(_partition_bounds(reader) for _ in range(reader.u32()))
    return values.TopicBounds(stream_id, topic_id, stream, topic, partitions)


def _partition_bounds(reader: Reader) -> values.PartitionBounds:
    head = reader.unpack(_BOUNDS)
    segments = []
    for _ in range(head[-1]):
        start, end, size_bytes, sealed, layout = reader.unpack(_SEGMENT)
        segments.append(values.SegmentBounds(start, end, size_bytes, bool(sealed), layout))
    return values.PartitionBounds(*(*head[:-1], tuple(segments)))


def topic_settings(answer: bytes) -> tuple[values.TopicSetting, ...]:
    reader = Reader(answer)
    return tuple(values.TopicSetting(reader.text8(), reader.text8(), reader.u8() == 1) for _ in range(reader.u8()))
