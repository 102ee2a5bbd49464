"""Requests of the classic protocol (docs/protocol/commands.md): one frozen type per payload layout, sans-IO, both
directions. `catalogue.decode()` reads the payload of a code.

A payload is read completely before anything else is looked at (docs/protocol/framing.md#checks): `ShardError` 3 or 4.
Values whose meaning is only judged after the login check (compression byte, partition counts) are kept as sent. The
native engine parses what a connection sends as SEND_MESSAGES.
"""

from __future__ import annotations

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.poll_requests import PollMessages as PollMessages
from shardd.protocol.poll_requests import StoreOffset as StoreOffset
from shardd.protocol.poll_requests import WaitingPoll as WaitingPoll
from shardd.protocol.positions import PollPosition as PollPosition
from shardd.protocol.positions import StorePosition as StorePosition
from shardd.protocol.primitives import Consumer, Identifier, Reader
from shardd.protocol.send_request import SendMessages as SendMessages


class Empty(msgspec.Struct, frozen=True):
    """PING, GET_STATS, GET_CLUSTER_METADATA, GET_ME, GET_CLIENTS, GET_USERS, LOGOUT_USER, GET_STREAMS, own tokens."""

    @classmethod
    def read(cls, reader: Reader) -> Empty:
        return cls()

    def encode(self) -> bytes:
        return b""


class GetClient(msgspec.Struct, frozen=True):
    client_id: int

    @classmethod
    def read(cls, reader: Reader) -> GetClient:
        return cls(reader.u32())

    def encode(self) -> bytes:
        return wire.u32(self.client_id)


class Login(msgspec.Struct, frozen=True):
    """LOGIN_USER; `version` and `context` are '' when not given, but their lengths must be there."""

    username: str
    password: str
    version: str = ""
    context: str = ""

    @classmethod
    def read(cls, reader: Reader) -> Login:
        return cls(reader.name(), reader.text8(), reader.text32(), reader.text32())

    def encode(self) -> bytes:
        texts = wire.text8(self.username) + wire.text8(self.password)
        return texts + wire.text32(self.version) + wire.text32(self.context)


class StreamRequest(msgspec.Struct, frozen=True):
    """GET_STREAM, DELETE_STREAM, PURGE_STREAM, GET_TOPICS."""

    stream: Identifier

    @classmethod
    def read(cls, reader: Reader) -> StreamRequest:
        return cls(reader.identifier())

    def encode(self) -> bytes:
        return wire.identifier(self.stream)


class CreateStreamRequest(msgspec.Struct, frozen=True):
    """`chosen_id`: what earlier generations ask for (docs/protocol/legacy.md); the classic payload has none."""

    name: str
    chosen_id: int | None = None

    @classmethod
    def read(cls, reader: Reader) -> CreateStreamRequest:
        return cls(reader.name())

    def encode(self) -> bytes:
        return wire.text8(self.name)


class UpdateStreamRequest(msgspec.Struct, frozen=True):
    stream: Identifier
    name: str

    @classmethod
    def read(cls, reader: Reader) -> UpdateStreamRequest:
        return cls(reader.identifier(), reader.name())

    def encode(self) -> bytes:
        return wire.identifier(self.stream) + wire.text8(self.name)


class TopicRequest(msgspec.Struct, frozen=True):
    """GET_TOPIC, DELETE_TOPIC, PURGE_TOPIC, GET_CONSUMER_GROUPS."""

    stream: Identifier
    topic: Identifier

    @classmethod
    def read(cls, reader: Reader) -> TopicRequest:
        return cls(reader.identifier(), reader.identifier())

    def encode(self) -> bytes:
        return wire.identifier(self.stream) + wire.identifier(self.topic)


class CreateTopicRequest(msgspec.Struct, frozen=True):
    """Expiry in microseconds, size in bytes, both as sent (0 = server default); compression as sent. `chosen_id` as in
    `CreateStreamRequest`."""

    stream: Identifier
    partitions_count: int
    compression: int
    message_expiry_us: int
    max_topic_size_bytes: int
    replication_factor: int
    name: str
    chosen_id: int | None = None

    @classmethod
    def read(cls, reader: Reader) -> CreateTopicRequest:
        return cls(
            stream=reader.identifier(),
            partitions_count=reader.u32(),
            compression=reader.u8(),
            message_expiry_us=reader.u64(),
            max_topic_size_bytes=reader.u64(),
            replication_factor=reader.u8(),
            name=reader.name(),
        )

    def encode(self) -> bytes:
        return b"".join(
            (
                wire.identifier(self.stream),
                wire.u32(self.partitions_count),
                wire.u8(self.compression),
                wire.u64(self.message_expiry_us),
                wire.u64(self.max_topic_size_bytes),
                wire.u8(self.replication_factor),
                wire.text8(self.name),
            )
        )


class UpdateTopicRequest(msgspec.Struct, frozen=True):
    """Expiry in microseconds, size in bytes, compression: all as sent."""

    stream: Identifier
    topic: Identifier
    compression: int
    message_expiry_us: int
    max_topic_size_bytes: int
    replication_factor: int
    name: str

    @classmethod
    def read(cls, reader: Reader) -> UpdateTopicRequest:
        return cls(
            stream=reader.identifier(),
            topic=reader.identifier(),
            compression=reader.u8(),
            message_expiry_us=reader.u64(),
            max_topic_size_bytes=reader.u64(),
            replication_factor=reader.u8(),
            name=reader.name(),
        )

    def encode(self) -> bytes:
        return b"".join(
            (
                wire.identifier(self.stream),
                wire.identifier(self.topic),
                wire.u8(self.compression),
                wire.u64(self.message_expiry_us),
                wire.u64(self.max_topic_size_bytes),
                wire.u8(self.replication_factor),
                wire.text8(self.name),
            )
        )


class PartitionsRequest(msgspec.Struct, frozen=True):
    """CREATE_PARTITIONS, DELETE_PARTITIONS."""

    stream: Identifier
    topic: Identifier
    count: int

    @classmethod
    def read(cls, reader: Reader) -> PartitionsRequest:
        return cls(reader.identifier(), reader.identifier(), reader.u32())

    def encode(self) -> bytes:
        return wire.identifier(self.stream) + wire.identifier(self.topic) + wire.u32(self.count)


class FlushUnsavedBuffer(msgspec.Struct, frozen=True):
    stream: Identifier
    topic: Identifier
    partition: int
    fsync: bool

    @classmethod
    def read(cls, reader: Reader) -> FlushUnsavedBuffer:
        return cls(reader.identifier(), reader.identifier(), reader.u32(), reader.flag())

    def encode(self) -> bytes:
        address = wire.identifier(self.stream) + wire.identifier(self.topic)
        return address + wire.u32(self.partition) + wire.u8(self.fsync)


class OffsetRequest(msgspec.Struct, frozen=True):
    """GET_CONSUMER_OFFSET, DELETE_CONSUMER_OFFSET."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition: int | None

    @classmethod
    def read(cls, reader: Reader) -> OffsetRequest:
        return cls(reader.consumer(), reader.identifier(), reader.identifier(), reader.optional_partition())

    def encode(self) -> bytes:
        address = wire.consumer(self.consumer) + wire.identifier(self.stream) + wire.identifier(self.topic)
        return address + wire.optional_partition(self.partition)


class GroupRequest(msgspec.Struct, frozen=True):
    """GET_CONSUMER_GROUP, DELETE_CONSUMER_GROUP, JOIN_CONSUMER_GROUP, LEAVE_CONSUMER_GROUP."""

    stream: Identifier
    topic: Identifier
    group: Identifier

    @classmethod
    def read(cls, reader: Reader) -> GroupRequest:
        return cls(reader.identifier(), reader.identifier(), reader.identifier())

    def encode(self) -> bytes:
        return wire.identifier(self.stream) + wire.identifier(self.topic) + wire.identifier(self.group)


class CreateGroupRequest(msgspec.Struct, frozen=True):
    """CREATE_CONSUMER_GROUP; `chosen_id` as in `CreateStreamRequest`."""

    stream: Identifier
    topic: Identifier
    name: str
    chosen_id: int | None = None

    @classmethod
    def read(cls, reader: Reader) -> CreateGroupRequest:
        return cls(reader.identifier(), reader.identifier(), reader.name())

    def encode(self) -> bytes:
        return wire.identifier(self.stream) + wire.identifier(self.topic) + wire.text8(self.name)
