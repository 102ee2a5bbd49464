"""Requests of the classic protocol (docs/protocol/commands.md): one frozen type per payload layout, sans-IO, both
directions.

`decode(code, payload)` reads a payload completely before anything else is looked at (docs/protocol/framing.md#checks)
and raises `ShardError` 3 or 4. Values whose meaning is only judged after the login check (compression byte, partition
counts) are kept as sent. What a connection sends as SEND_MESSAGES is parsed by the native engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from shardd.protocol import account_requests, extensions
from shardd.protocol import primitives as wire
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import ExtensionCode
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


Request = (
    Empty
    | GetClient
    | Login
    | StreamRequest
    | CreateStreamRequest
    | UpdateStreamRequest
    | TopicRequest
    | CreateTopicRequest
    | UpdateTopicRequest
    | PartitionsRequest
    | PollMessages
    | FlushUnsavedBuffer
    | OffsetRequest
    | StoreOffset
    | GroupRequest
    | CreateGroupRequest
    | account_requests.AccountRequest
    | extensions.AnyExtensionRequest
)

_READERS: Final[dict[int, Callable[[Reader], Request]]] = {
    Code.PING: Empty.read,
    Code.GET_STATS: Empty.read,
    Code.GET_CLUSTER_METADATA: Empty.read,
    Code.GET_ME: Empty.read,
    Code.GET_CLIENT: GetClient.read,
    Code.GET_CLIENTS: Empty.read,
    Code.LOGIN_USER: Login.read,
    Code.GET_USERS: Empty.read,
    Code.LOGOUT_USER: Empty.read,
    Code.GET_PERSONAL_ACCESS_TOKENS: Empty.read,
    Code.POLL_MESSAGES: PollMessages.read,
    Code.FLUSH_UNSAVED_BUFFER: FlushUnsavedBuffer.read,
    Code.GET_CONSUMER_OFFSET: OffsetRequest.read,
    Code.STORE_CONSUMER_OFFSET: StoreOffset.read,
    Code.DELETE_CONSUMER_OFFSET: OffsetRequest.read,
    Code.GET_STREAM: StreamRequest.read,
    Code.GET_STREAMS: Empty.read,
    Code.CREATE_STREAM: CreateStreamRequest.read,
    Code.DELETE_STREAM: StreamRequest.read,
    Code.UPDATE_STREAM: UpdateStreamRequest.read,
    Code.PURGE_STREAM: StreamRequest.read,
    Code.GET_TOPIC: TopicRequest.read,
    Code.GET_TOPICS: StreamRequest.read,
    Code.CREATE_TOPIC: CreateTopicRequest.read,
    Code.DELETE_TOPIC: TopicRequest.read,
    Code.UPDATE_TOPIC: UpdateTopicRequest.read,
    Code.PURGE_TOPIC: TopicRequest.read,
    Code.CREATE_PARTITIONS: PartitionsRequest.read,
    Code.DELETE_PARTITIONS: PartitionsRequest.read,
    Code.GET_CONSUMER_GROUP: GroupRequest.read,
    Code.GET_CONSUMER_GROUPS: TopicRequest.read,
    Code.CREATE_CONSUMER_GROUP: CreateGroupRequest.read,
    Code.DELETE_CONSUMER_GROUP: GroupRequest.read,
    Code.JOIN_CONSUMER_GROUP: GroupRequest.read,
    Code.LEAVE_CONSUMER_GROUP: GroupRequest.read,
    **account_requests.READERS,
    ExtensionCode.POLL_AND_WAIT: WaitingPoll.read,
    ExtensionCode.POLL_POSITION: PollPosition.read,
    ExtensionCode.STORE_POSITION: StorePosition.read,
    **extensions.READERS,
}


def decode(code: int, payload: bytes) -> Request:
    """The request of a whole payload (without the frame's length and code).

    Raises `ShardError`: 3 for an unknown code, a cut payload, bad UTF-8 or an unknown discriminant; 4 for a broken
    structural rule. Surplus bytes are ignored.
    """
    read = _READERS.get(code)
    if read is None:
        raise ShardError(Status.INVALID_COMMAND, f"unknown command code {code}")
    return read(Reader(payload))
