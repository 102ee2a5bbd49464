"""Every command of the classic protocol and every extension command: the service that executes it and the encoding of
what the service returns. All else that is known of a command: `shardd/protocol/catalogue.py`. The engine alone executes
the sends of connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from shardd.dispatch.classic import answers
from shardd.dispatch.classic.answers import encoded, nothing, optional
from shardd.protocol.account_replies import TokenSummary, UserDetails
from shardd.protocol.bounds import GetPartitionBounds, PartitionBounds
from shardd.protocol.codes import Code
from shardd.protocol.extensions import DoorCode, ExtensionCode
from shardd.protocol.primitives import u8
from shardd.protocol.replies import GroupSummary, PartitionSummary, StreamSummary, TopicSummary
from shardd.protocol.system_replies import ClientSummary
from shardd.service.bounds import TopicPartitions
from shardd.service.groups import ByEngine
from shardd.service.identity import Identity
from shardd.service.services import Services

Request = TypeVar("Request")
Value = TypeVar("Value")


class Command(msgspec.Struct, Generic[Request, Value], frozen=True):
    """`execute` may leave the answer to the engine. `is_large`: encoded in a helper thread."""

    execute: Callable[[Identity, Request], Awaitable[Value | ByEngine]]
    encode: Callable[[Value], bytes]
    is_large: Callable[[Value], bool] = lambda value: False


Commands = dict[int, Command[Any, Any]]


def command_table(services: Services) -> Commands:
    """By code."""
    return {
        **_system_commands(services),
        **_account_commands(services),
        **_stream_commands(services),
        **_consumer_commands(services),
        **_extension_commands(services),
    }


def door_table(services: Services) -> Commands:
    """By code: what clients of doors have and connections do not. The engine executes the sends of connections."""
    tokens, messages = services.access_tokens, services.messages
    return {
        DoorCode.CREATE_ACCESS_TOKEN: Command(tokens.create_access_token, encoded),
        DoorCode.REFRESH_ACCESS_TOKEN: Command(tokens.refresh_access_token, encoded),
        DoorCode.REVOKE_ACCESS_TOKEN: Command(tokens.revoke_access_token, nothing),
        DoorCode.WAIT_FOR_MESSAGES: Command(services.waits.wait_for_messages, u8),
        DoorCode.POLL_RANGE: Command(messages.poll_messages, answers.poll_range),
        Code.SEND_MESSAGES: Command(messages.send_messages, nothing),
    }


def _system_commands(services: Services) -> Commands:
    system = services.system
    return {
        Code.PING: Command(system.ping, nothing),
        Code.GET_STATS: Command(system.get_stats, encoded),
        Code.GET_SNAPSHOT: Command(services.snapshots.get_snapshot, answers.archive),
        Code.GET_CLUSTER_METADATA: Command(system.get_cluster_metadata, encoded),
        Code.GET_ME: Command(system.get_me, answers.client),
        Code.GET_CLIENT: Command(system.get_client, optional(answers.client)),
        Code.GET_CLIENTS: Command(partial(system.get_clients, keep=ClientSummary.encode), answers.joined),
    }


def _account_commands(services: Services) -> Commands:
    users, tokens, logins = services.users, services.tokens, services.logins
    return {
        Code.LOGIN_USER: Command(logins.login, encoded),
        Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN: Command(logins.login_with_token, encoded),
        Code.LOGOUT_USER: Command(logins.logout, nothing),
        Code.GET_USER: Command(users.get_user, optional(answers.user), answers.is_large),
        Code.GET_USERS: Command(partial(users.get_users, keep=UserDetails.encode), answers.joined),
        Code.CREATE_USER: Command(users.create_user, answers.user, answers.is_large),
        Code.DELETE_USER: Command(users.delete_user, nothing),
        Code.UPDATE_USER: Command(users.update_user, nothing),
        Code.UPDATE_PERMISSIONS: Command(users.update_permissions, nothing),
        Code.CHANGE_PASSWORD: Command(users.change_password, nothing),
        Code.GET_PERSONAL_ACCESS_TOKENS: Command(partial(tokens.get_tokens, keep=TokenSummary.encode), answers.joined),
        Code.CREATE_PERSONAL_ACCESS_TOKEN: Command(tokens.create_token, encoded),
        Code.DELETE_PERSONAL_ACCESS_TOKEN: Command(tokens.delete_token, nothing),
    }


def _stream_commands(services: Services) -> Commands:
    streams, topics, partitions = services.streams, services.topics, services.partitions
    get_stream = partial(streams.get_stream, keep=TopicSummary.encode)
    get_streams = partial(streams.get_streams, keep=StreamSummary.encode)
    get_topic = partial(topics.get_topic, keep=PartitionSummary.encode)
    get_topics = partial(topics.get_topics, keep=TopicSummary.encode)
    create_topic = partial(topics.create_topic, keep=PartitionSummary.encode)
    return {
        Code.GET_STREAM: Command(get_stream, optional(answers.stream)),
        Code.GET_STREAMS: Command(get_streams, answers.joined),
        Code.CREATE_STREAM: Command(streams.create_stream, encoded),
        Code.DELETE_STREAM: Command(streams.delete_stream, nothing),
        Code.UPDATE_STREAM: Command(streams.update_stream, nothing),
        Code.PURGE_STREAM: Command(streams.purge_stream, nothing),
        Code.GET_TOPIC: Command(get_topic, optional(answers.topic), answers.is_long),
        Code.GET_TOPICS: Command(get_topics, answers.joined),
        Code.CREATE_TOPIC: Command(create_topic, answers.topic),
        Code.DELETE_TOPIC: Command(topics.delete_topic, nothing),
        Code.UPDATE_TOPIC: Command(topics.update_topic, nothing),
        Code.PURGE_TOPIC: Command(topics.purge_topic, nothing),
        Code.CREATE_PARTITIONS: Command(partitions.create_partitions, nothing),
        Code.DELETE_PARTITIONS: Command(partitions.delete_partitions, nothing),
        Code.DELETE_SEGMENTS: Command(partitions.delete_segments, nothing),
    }


def _consumer_commands(services: Services) -> Commands:
    messages, offsets, groups = services.messages, services.offsets, services.groups
    return {
        Code.POLL_MESSAGES: Command(messages.poll_messages, answers.polled),
        Code.FLUSH_UNSAVED_BUFFER: Command(messages.flush_unsaved_buffer, nothing),
        Code.GET_CONSUMER_OFFSET: Command(offsets.get_offset, optional(encoded)),
        Code.STORE_CONSUMER_OFFSET: Command(offsets.store_offset, nothing),
        Code.DELETE_CONSUMER_OFFSET: Command(offsets.delete_offset, nothing),
        Code.GET_CONSUMER_GROUP: Command(groups.get_group, optional(encoded)),
        Code.GET_CONSUMER_GROUPS: Command(partial(groups.get_groups, keep=GroupSummary.encode), answers.joined),
        Code.CREATE_CONSUMER_GROUP: Command(groups.create_group, encoded),
        Code.DELETE_CONSUMER_GROUP: Command(groups.delete_group, nothing),
        Code.JOIN_CONSUMER_GROUP: Command(groups.join_group, nothing),
        Code.LEAVE_CONSUMER_GROUP: Command(groups.leave_group, nothing),
    }


def _extension_commands(services: Services) -> Commands:
    extensions, settings = services.extensions, services.topic_settings

    def get_partition_bounds(
        identity: Identity, request: GetPartitionBounds
    ) -> Awaitable[list[TopicPartitions[bytes]]]:
        keep = PartitionBounds.encode_with_epoch if request.epochs else PartitionBounds.encode
        return services.bounds.get_partition_bounds(identity, request, keep)

    return {
        ExtensionCode.LIST_EXTENSIONS: Command(extensions.list_extensions, encoded),
        ExtensionCode.GET_METRICS: Command(extensions.get_metrics, encoded),
        ExtensionCode.ANNOUNCE_HEARTBEAT: Command(services.connections.announce_heartbeat, encoded),
        ExtensionCode.GET_PARTITION_BOUNDS: Command(get_partition_bounds, answers.partition_bounds, answers.are_long),
        ExtensionCode.LEASE_FILES: Command(services.leases.lease_files, nothing),
        ExtensionCode.UNUSED_OFFSETS: Command(services.unused_offsets.unused_offsets, encoded),
        ExtensionCode.POLL_AND_WAIT: Command(services.messages.poll_messages, answers.polled),
        ExtensionCode.POLL_POSITION: Command(services.messages.poll_messages, answers.position),
        ExtensionCode.STORE_POSITION: Command(services.offsets.store_offset, nothing),
        ExtensionCode.SET_TOPIC_SETTINGS: Command(settings.set_topic_settings, nothing),
        ExtensionCode.GET_TOPIC_SETTINGS: Command(settings.get_topic_settings, answers.settings_of_topic),
        ExtensionCode.CHANGE_TOPIC: Command(services.topics.change_topic, nothing),
        ExtensionCode.INIT_PRODUCER: Command(services.producers.init_producer, encoded),
    }
