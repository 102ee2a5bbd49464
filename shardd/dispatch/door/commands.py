"""Every command that the clients of doors have, by name: the service that executes it and the type of its request."""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec

from shardd.dispatch.door.values import decoder_of, keep_encoded
from shardd.protocol.door_frames import REQUEST_BYTES_MAX, Command, Figures, Request, Task
from shardd.protocol.limits import POLLED_BYTES_MAX
from shardd.service.identity import Identity
from shardd.service.services import Services

Execute = Callable[[Identity, Any], Awaitable[object]]


class DoorCommand(msgspec.Struct, frozen=True):
    """`decode`: the request, or `ShardError`. `door`: whose clients alone have it, "" for all."""

    decode: Callable[[msgspec.Raw], object]
    execute: Execute
    door: str = ""


LIFTBRIDGE: Final = "liftbridge"  # the door
SEND: Final = "send_messages"
POLL: Final = "poll_messages"
WAIT: Final = "wait_for_messages"
REFUSED: Final = frozenset(
    {
        "announce_heartbeat",
        "join_consumer_group",
        "leave_consumer_group",
        "init_producer",
        "lease_files",
        "unused_offsets",
    }
)
"""They need a connection of their own: partitions of a group move with what its members have polled, and the batches of
a producer are numbered in the order in which the engine gets them. Who reads files has one."""

_REQUEST_BYTES_MAX: Final = 16 << 10  # of every request without a line here; what small ones cost is the same for all
_LONG_REQUESTS: Final = {
    SEND: REQUEST_BYTES_MAX,
    "create_user": 1 << 20,
    "update_permissions": 1 << 20,
    "get_partition_bounds": 1 << 20,
    "set_topic_settings": 64 << 10,
    "liftbridge_publish": REQUEST_BYTES_MAX,
    "liftbridge_list_streams": 1 << 20,
    "liftbridge_get_groups": 1 << 20,
    "liftbridge_join_group": 1 << 20,
}
_SMALL_ANSWER_BYTES: Final = 16 << 10
_WIDE: Final = ("get_", "liftbridge_list_", "liftbridge_get_")
_WIDE_ANSWER_BYTES: Final = 16 << 20  # of those that grow with what there is; most are far smaller

USER_CHANGES: Final = frozenset({"create_user", "update_permissions"})
"""Their requests may be long: who may not change users is refused before they are decoded."""


def request_bytes_max(name: str) -> int:
    """More is refused before it is decoded."""
    return _LONG_REQUESTS.get(name, _REQUEST_BYTES_MAX)


def answer_bytes(request: Request) -> int:
    """What is kept free for the answer of a request while it is under way."""
    if isinstance(request, Figures | Task):
        return _WIDE_ANSWER_BYTES
    if not isinstance(request, Command):
        return 0
    if request.name == POLL:
        return POLLED_BYTES_MAX
    if request.name == WAIT:
        return 0
    return _WIDE_ANSWER_BYTES if request.name.startswith(_WIDE) else _SMALL_ANSWER_BYTES


def command_table(services: Services) -> dict[str, DoorCommand]:
    """By name."""
    everybodys = {name: _command(execute) for name, execute in _functions(services).items()}
    return everybodys | {name: _command(execute, LIFTBRIDGE) for name, execute in _liftbridge_functions(services)}


def _command(execute: Execute, door: str = "") -> DoorCommand:
    return DoorCommand(decoder_of(request_type(execute)), execute, door)


def request_type(execute: Callable[..., object]) -> type[Any]:
    """What the service says."""
    function = execute.func if isinstance(execute, partial) else execute
    kind: type[Any] = typing.get_type_hints(function)["request"]
    return kind


def _functions(services: Services) -> dict[str, Execute]:
    return {
        **_system_functions(services),
        **_account_functions(services),
        **_stream_functions(services),
        **_consumer_functions(services),
    }


def _system_functions(services: Services) -> dict[str, Execute]:
    system, extensions = services.system, services.extensions
    return {
        "ping": system.ping,
        "get_stats": system.get_stats,
        "get_snapshot": services.snapshots.get_snapshot,
        "get_cluster_metadata": system.get_cluster_metadata,
        "get_me": system.get_me,
        "get_client": system.get_client,
        "get_clients": partial(system.get_clients, keep=keep_encoded),
        "list_extensions": extensions.list_extensions,
        "get_metrics": extensions.get_metrics,
    }


def _account_functions(services: Services) -> dict[str, Execute]:
    users, tokens, access_tokens = services.users, services.tokens, services.access_tokens
    return {
        "get_user": users.get_user,
        "get_users": partial(users.get_users, keep=keep_encoded),
        "create_user": users.create_user,
        "delete_user": users.delete_user,
        "update_user": users.update_user,
        "update_permissions": users.update_permissions,
        "change_password": users.change_password,
        "get_personal_access_tokens": partial(tokens.get_tokens, keep=keep_encoded),
        "create_personal_access_token": tokens.create_token,
        "delete_personal_access_token": tokens.delete_token,
        "create_access_token": access_tokens.create_access_token,
        "refresh_access_token": access_tokens.refresh_access_token,
        "revoke_access_token": access_tokens.revoke_access_token,
    }


def _stream_functions(services: Services) -> dict[str, Execute]:
    streams, topics, partitions = services.streams, services.topics, services.partitions
    settings = services.topic_settings
    return {
        "get_stream": partial(streams.get_stream, keep=keep_encoded),
        "get_streams": partial(streams.get_streams, keep=keep_encoded),
        "create_stream": streams.create_stream,
        "delete_stream": streams.delete_stream,
        "update_stream": streams.update_stream,
        "purge_stream": streams.purge_stream,
        "get_topic": partial(topics.get_topic, keep=keep_encoded),
        "get_topics": partial(topics.get_topics, keep=keep_encoded),
        "create_topic": partial(topics.create_topic, keep=keep_encoded),
        "delete_topic": topics.delete_topic,
        "update_topic": topics.update_topic,
        "change_topic": topics.change_topic,
        "purge_topic": topics.purge_topic,
        "set_topic_settings": settings.set_topic_settings,
        "get_topic_settings": settings.get_topic_settings,
        "create_partitions": partitions.create_partitions,
        "delete_partitions": partitions.delete_partitions,
        "delete_segments": partitions.delete_segments,
        "get_partition_bounds": partial(services.bounds.get_partition_bounds, keep=keep_encoded),
    }


def _consumer_functions(services: Services) -> dict[str, Execute]:
    messages, offsets, groups = services.messages, services.offsets, services.groups
    return {
        SEND: messages.send_messages,
        POLL: messages.poll_messages,
        WAIT: services.waits.wait_for_messages,
        "store_consumer_offset": offsets.store_offset,
        "flush_unsaved_buffer": messages.flush_unsaved_buffer,
        "get_consumer_offset": offsets.get_offset,
        "delete_consumer_offset": offsets.delete_offset,
        "get_consumer_group": groups.get_group,
        "get_consumer_groups": partial(groups.get_groups, keep=keep_encoded),
        "create_consumer_group": groups.create_group,
        "delete_consumer_group": groups.delete_group,
    }


def _liftbridge_functions(services: Services) -> list[tuple[str, Execute]]:
    streams, groups = services.liftbridge_streams, services.liftbridge_groups
    return [
        ("liftbridge_create_stream", streams.create_stream),
        ("liftbridge_delete_stream", streams.delete_stream),
        ("liftbridge_pause_stream", streams.pause_stream),
        ("liftbridge_resume_stream", streams.resume_stream),
        ("liftbridge_set_readonly", streams.set_readonly),
        ("liftbridge_require_right", streams.require_right),
        ("liftbridge_list_streams", partial(streams.list_streams, keep=keep_encoded)),
        ("liftbridge_publish", services.liftbridge_publish.publish),
        ("liftbridge_join_group", groups.join_group),
        ("liftbridge_leave_group", groups.leave_group),
        ("liftbridge_get_groups", partial(groups.get_groups, keep=keep_encoded)),
    ]
