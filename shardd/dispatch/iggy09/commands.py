"""Commands of 0.9 that are not those of the classic protocol in every byte: what they read, who executes them, what
they answer. All others come from the classic table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from shardd.config import codecs
from shardd.config.schema import System
from shardd.dispatch.classic.answers import is_large, is_long, joined, nothing, optional
from shardd.dispatch.classic.commands import Command, Commands, command_table
from shardd.dispatch.iggy09 import answers
from shardd.metadata import Metadata
from shardd.protocol import iggy09, requests, topic_change
from shardd.protocol.account_replies import UserDetails
from shardd.protocol.account_requests import CreateUserRequest, UpdateUserRequest
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.iggy09_options import (
    PERSISTED,
    REPLICATED,
    UPDATABLE,
    TopicOptions,
    describe,
    no_options,
    read_options,
    topic_options,
)
from shardd.protocol.primitives import Compression, Identifier, Reader
from shardd.protocol.replies import PartitionSummary, StreamSummary, TopicDetails
from shardd.protocol.topic_setting_table import ACK, codec_of
from shardd.service.groups import NothingPolled
from shardd.service.identity import Identity
from shardd.service.services import Services

Read = Callable[[Reader], Any]
_DURABLE: Final = "durable"


class CreateTopic(msgspec.Struct, frozen=True):
    stream: Identifier
    partitions_count: int
    name: str
    options: TopicOptions

    @classmethod
    def read(cls, reader: Reader) -> CreateTopic:
        return cls(reader.identifier(), reader.u32(), reader.name(), topic_options(read_options(reader)))


class UpdateTopic(msgspec.Struct, frozen=True):
    stream: Identifier
    topic: Identifier
    name: str
    options: TopicOptions

    @classmethod
    def read(cls, reader: Reader) -> UpdateTopic:
        names = reader.identifier(), reader.identifier(), reader.name()
        return cls(*names, topic_options(read_options(reader), UPDATABLE))


class DescribeOptions(msgspec.Struct, frozen=True):
    scope: int

    @classmethod
    def read(cls, reader: Reader) -> DescribeOptions:
        return cls(reader.u8())


def _without_options(read: Read) -> Read:
    def both(reader: Reader) -> Any:
        request = read(reader)
        no_options(reader)
        return request

    return both


def _with_acknowledgement(read: Read) -> Read:
    """Behind it `ack`: 0 this node, 1 most of them. Here both are the level of the topic."""

    def both(reader: Reader) -> Any:
        request = read(reader)
        if reader.u8() > 1:
            raise ShardError(Status.INVALID_COMMAND, "unknown acknowledgement")
        return request

    return both


def _read_create_user(reader: Reader) -> CreateUserRequest:
    """The classic one ignores what is behind missing permissions; the options are there."""
    request = CreateUserRequest.read(reader)
    no_options(reader)
    return request


READERS: Final[dict[int, Read]] = {
    Code.CREATE_STREAM: _without_options(requests.CreateStreamRequest.read),
    Code.UPDATE_STREAM: _without_options(requests.UpdateStreamRequest.read),
    Code.CREATE_TOPIC: CreateTopic.read,
    Code.UPDATE_TOPIC: UpdateTopic.read,
    Code.CREATE_USER: _read_create_user,
    Code.UPDATE_USER: _without_options(UpdateUserRequest.read),
    Code.STORE_CONSUMER_OFFSET: _with_acknowledgement(requests.StoreOffset.read),
    Code.DELETE_CONSUMER_OFFSET: _with_acknowledgement(requests.OffsetRequest.read),
    iggy09.DESCRIBE_OPTIONS: DescribeOptions.read,
    iggy09.SYNC_CONSUMER_GROUP: requests.GroupRequest.read,
}


class TopicCommands:
    """Creating and changing topics with options."""

    def __init__(self, metadata: Metadata, services: Services) -> None:
        self._metadata = metadata
        self._topics = services.topics

    async def create(self, identity: Identity, request: CreateTopic) -> TopicDetails[bytes]:
        """The level of the topic is durable when one of the two durabilities asks for the device: theirs may answer
        from memory, so that nothing is weaker than asked."""
        options = request.options
        persisted = PERSISTED in (options.durability, options.consumer_offset_durability)
        return await self._topics.create_topic(
            identity,
            requests.CreateTopicRequest(
                stream=request.stream,
                partitions_count=request.partitions_count,
                compression=Compression.NONE if options.compression is None else options.compression,
                message_expiry_us=options.message_expiry_us or 0,
                max_topic_size_bytes=options.max_topic_size_bytes or 0,
                replication_factor=1,
                name=request.name,
            ),
            keep=answers.created_partition,
            settings=((ACK.key, _DURABLE),) if persisted else (),
        )

    async def update(self, identity: Identity, request: UpdateTopic) -> None:
        """What the options do not say stays as it is."""
        options = request.options
        await self._topics.change_topic(
            identity,
            topic_change.ChangeTopic(
                request.stream,
                request.topic,
                request.name,
                options.compression,
                options.message_expiry_us,
                options.max_topic_size_bytes,
            ),
        )


def partition_summary(partition: PartitionSummary) -> bytes:
    return partition.encode()


def defaults_of(system: System) -> TopicOptions:
    """What holds for a topic that does not say."""
    durability = PERSISTED if system.partition.ack == _DURABLE else REPLICATED
    compressed = codec_of({}, Compression.NONE, system) != codecs.NONE
    return TopicOptions(
        int(Compression.GZIP if compressed else Compression.NONE),
        system.topic_message_expiry_us,
        system.topic_max_size_bytes,
        durability,
        durability,
    )


async def _describe(defaults: TopicOptions, identity: Identity, request: DescribeOptions) -> bytes:
    return describe(request.scope, defaults)


def _polled(value: NothingPolled) -> bytes:
    """The engine answers polls; what comes here is a member that does not have the partition."""
    raise ShardError(Status.NOT_RESOLVED_CONSUMER)


async def _unavailable(identity: Identity, request: object) -> None:
    raise ShardError(Status.FEATURE_UNAVAILABLE)


def commands_of(metadata: Metadata, services: Services) -> Commands:
    """By code."""
    streams, topics, users, groups = services.streams, services.topics, services.users, services.groups
    changes = TopicCommands(metadata, services)
    get_stream = partial(streams.get_stream, keep=answers.topic_summary)
    get_streams = partial(streams.get_streams, keep=answers.stream_summary)
    get_topic = partial(topics.get_topic, keep=partition_summary)
    get_topics = partial(topics.get_topics, keep=answers.topic_summary)
    get_users = partial(users.get_users, keep=answers.user_summary)
    return {
        **command_table(services),
        Code.GET_STATS: Command(services.system.get_stats, answers.stats),
        Code.GET_STREAM: Command(get_stream, optional(answers.stream)),
        Code.GET_STREAMS: Command(get_streams, joined),
        Code.CREATE_STREAM: Command[Any, StreamSummary](streams.create_stream, answers.stream_summary),
        Code.GET_TOPIC: Command[Any, TopicDetails[bytes] | None](get_topic, optional(answers.topic), is_long),
        Code.GET_TOPICS: Command(get_topics, answers.topics),
        Code.CREATE_TOPIC: Command(changes.create, answers.topic),
        Code.UPDATE_TOPIC: Command(changes.update, nothing),
        Code.GET_USER: Command[Any, UserDetails | None](users.get_user, optional(answers.user), is_large),
        Code.GET_USERS: Command(get_users, joined),
        Code.CREATE_USER: Command[Any, UserDetails](users.create_user, answers.user, is_large),
        Code.POLL_MESSAGES: Command[Any, Any](services.messages.poll_messages, _polled),
        Code.FLUSH_UNSAVED_BUFFER: Command(_unavailable, nothing),
        iggy09.DESCRIBE_OPTIONS: Command(partial(_describe, defaults_of(services.topic_defaults)), bytes),
        iggy09.SYNC_CONSUMER_GROUP: Command(groups.sync_group, optional(answers.assignment)),
    }
