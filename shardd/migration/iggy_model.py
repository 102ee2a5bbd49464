"""What the entries of an Apache Iggy state log add up to: streams, topics, groups, users, tokens with their ids.

Payloads (docs/formats.md#iggy-state-log): the request as sent; creations of streams, topics, groups and users have
`assigned id u32, length u32` in front, creations of tokens `length u32, BLAKE3 of the token in hex, length u32`.
Purges and deleted segments changed files only. Permissions for a deleted stream or topic end with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from shardd.migration.errors import MigrationError
from shardd.migration.iggy_log import Entry
from shardd.protocol import account_requests, catalogue, limits
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError
from shardd.protocol.permissions import Permissions
from shardd.protocol.primitives import Identifier
from shardd.security.tokens import DIGEST_BYTES, expires_at

ROOT_USER_ID: Final = 0
_STATUSES: Final = {1: True, 2: False}  # active


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Value = TypeVar("Value", bound=_Named)


class _MisfitError(Exception):
    """An entry that does not fit what came before it; the text ends the sentence."""


class IggyGroup(msgspec.Struct):
    name: str
    created_at_us: int


class IggyTopic(msgspec.Struct):
    """`partitions`: (created at, how many) for each creation in order; the first one is that of the topic itself.
    `groups_made`: creations so far, which bound the ids."""

    name: str
    created_at_us: int
    compression: int
    message_expiry_us: int
    max_topic_size_bytes: int
    replication_factor: int
    partitions: list[tuple[int, int]]
    groups: dict[int, IggyGroup] = msgspec.field(default_factory=dict)
    groups_made: int = 0


class IggyStream(msgspec.Struct):
    name: str
    created_at_us: int
    topics: dict[int, IggyTopic] = msgspec.field(default_factory=dict)
    topics_made: int = 0


class IggyToken(msgspec.Struct):
    digest: bytes
    expires_at_us: int


class IggyUser(msgspec.Struct):
    name: str
    created_at_us: int
    active: bool
    password_hash: str
    permissions: Permissions | None
    tokens: dict[str, IggyToken] = msgspec.field(default_factory=dict)


class IggyModel(msgspec.Struct):
    streams: dict[int, IggyStream] = msgspec.field(default_factory=dict)
    users: dict[int, IggyUser] = msgspec.field(default_factory=dict)
    streams_made: int = 0
    users_made: int = 0


def build_model(entries: list[Entry], name: str) -> IggyModel:
    """The state after all entries; `name` is what sentences call the log. Raises MigrationError."""
    model = IggyModel()
    for entry in entries:
        change = _CHANGES.get(entry.code)
        where = f"{name}: entry {entry.index} at byte {entry.position}"
        if change is None:
            raise MigrationError(f"{where} has command code {entry.code}, which Apache Iggy 0.8 does not log")
        try:
            change(model, entry)
        except (ShardError, struct.error) as error:
            raise MigrationError(f"{where} (command {entry.code}) cannot be read: {error}") from error
        except _MisfitError as error:
            raise MigrationError(f"{where} (command {entry.code}) {error}") from error
    if entries and ROOT_USER_ID not in model.users:
        raise MigrationError(f"{name} holds no root user")
    return model


# ---- reading entries ----


def _request(entry: Entry, payload: bytes | None = None) -> Any:
    return catalogue.decode(entry.code, entry.payload if payload is None else payload)


def _with_id(entry: Entry) -> tuple[int, Any]:
    """(assigned id, request)."""
    assigned, length = struct.unpack_from("<II", entry.payload)
    if length != len(entry.payload) - 8:
        raise _MisfitError(f"holds a request of {len(entry.payload) - 8} bytes that says {length}")
    return assigned, _request(entry, entry.payload[8:])


def _find(values: dict[int, Value], identifier: Identifier, kind: str) -> tuple[int, Value]:
    if isinstance(identifier, int):
        if identifier in values:
            return identifier, values[identifier]
    else:
        for number, value in values.items():
            if value.name == identifier:
                return number, value
    raise _MisfitError(f"names {kind} {identifier!r}, which does not exist there")


def _add(values: dict[int, Value], made: int, number: int, value: Value, kind: str) -> None:
    """`made`: creations up to now, this one included; a slab never gives out a higher id."""
    if number in values or number >= made:
        raise _MisfitError(f"gives {kind} {value.name!r} the id {number}, which cannot be free and next")
    _check_name(values, number, value.name, kind)
    values[number] = value


def _check_name(values: dict[int, Value], number: int, name: str, kind: str) -> None:
    if any(value.name == name and other != number for other, value in values.items()):
        raise _MisfitError(f"gives the name {name!r} to a second {kind}")


def _topic(model: IggyModel, request: Any) -> tuple[int, IggyStream, int, IggyTopic]:
    stream_id, stream = _find(model.streams, request.stream, "stream")
    topic_id, topic = _find(stream.topics, request.topic, "topic")
    return stream_id, stream, topic_id, topic


# ---- streams ----


def _create_stream(model: IggyModel, entry: Entry) -> None:
    number, request = _with_id(entry)
    model.streams_made += 1
    _add(model.streams, model.streams_made, number, IggyStream(request.name, entry.timestamp_us), "stream")


def _update_stream(model: IggyModel, entry: Entry) -> None:
    request = _request(entry)
    number, stream = _find(model.streams, request.stream, "stream")
    _check_name(model.streams, number, request.name, "stream")
    stream.name = request.name


def _delete_stream(model: IggyModel, entry: Entry) -> None:
    number, _stream = _find(model.streams, _request(entry).stream, "stream")
    del model.streams[number]
    for user in model.users.values():
        if user.permissions is not None and number in user.permissions.streams:
            user.permissions = replace(user.permissions, streams=user.permissions.streams.delete(number))


def _files_only(model: IggyModel, entry: Entry) -> None:
    """Purges and deleted segments."""
    _request(entry)


# ---- topics, partitions, groups ----


def _create_topic(model: IggyModel, entry: Entry) -> None:
    number, request = _with_id(entry)
    _stream_id, stream = _find(model.streams, request.stream, "stream")
    if request.partitions_count > limits.PARTITIONS_PER_REQUEST_MAX:
        raise _MisfitError(f"makes {request.partitions_count} partitions at once")
    stream.topics_made += 1
    topic = IggyTopic(
        name=request.name,
        created_at_us=entry.timestamp_us,
        compression=request.compression,
        message_expiry_us=request.message_expiry_us,
        max_topic_size_bytes=request.max_topic_size_bytes,
        replication_factor=request.replication_factor,
        partitions=[(entry.timestamp_us, request.partitions_count)],
    )
    _add(stream.topics, stream.topics_made, number, topic, "topic")


def _update_topic(model: IggyModel, entry: Entry) -> None:
    request = _request(entry)
    _stream_id, stream, number, topic = _topic(model, request)
    _check_name(stream.topics, number, request.name, "topic")
    topic.name = request.name
    topic.compression = request.compression
    topic.message_expiry_us = request.message_expiry_us
    topic.max_topic_size_bytes = request.max_topic_size_bytes
    topic.replication_factor = request.replication_factor


def _delete_topic(model: IggyModel, entry: Entry) -> None:
    stream_id, stream, number, _gone = _topic(model, _request(entry))
    del stream.topics[number]
    for user in model.users.values():
        permissions = user.permissions
        if permissions is not None and number in getattr(permissions.streams.get(stream_id), "topics", ()):
            rights = permissions.streams[stream_id]
            rights = replace(rights, topics=rights.topics.delete(number))
            user.permissions = replace(permissions, streams=permissions.streams.set(stream_id, rights))


def _create_partitions(model: IggyModel, entry: Entry) -> None:
    request = _request(entry)
    _stream_id, _stream, _number, topic = _topic(model, request)
    if not 1 <= request.count <= limits.PARTITIONS_PER_REQUEST_MAX:
        raise _MisfitError(f"makes {request.count} partitions at once")
    topic.partitions.append((entry.timestamp_us, request.count))


def _delete_partitions(model: IggyModel, entry: Entry) -> None:
    request = _request(entry)
    _stream_id, _stream, _number, topic = _topic(model, request)
    left = sum(count for _created, count in topic.partitions) - request.count
    if left < 0:
        raise _MisfitError(f"deletes {request.count} partitions of {left + request.count}")
    kept: list[tuple[int, int]] = []
    for created, count in topic.partitions:
        part = min(count, left)
        left -= part
        if part or not kept:
            kept.append((created, part))
    topic.partitions = kept


def _create_group(model: IggyModel, entry: Entry) -> None:
    number, request = _with_id(entry)
    _stream_id, _stream, _topic_id, topic = _topic(model, request)
    topic.groups_made += 1
    _add(topic.groups, topic.groups_made, number, IggyGroup(request.name, entry.timestamp_us), "group")


def _delete_group(model: IggyModel, entry: Entry) -> None:
    request = _request(entry)
    _stream_id, _stream, _topic_id, topic = _topic(model, request)
    number, _gone = _find(topic.groups, request.group, "group")
    del topic.groups[number]


# ---- users and tokens ----


def _active(status: int) -> bool:
    if status not in _STATUSES:
        raise _MisfitError(f"gives a user the status {status}")
    return _STATUSES[status]


def _create_user(model: IggyModel, entry: Entry) -> None:
    number, request = _with_id(entry)
    model.users_made += 1
    user = IggyUser(
        request.username, entry.timestamp_us, _active(request.status), request.password, request.permissions
    )
    _add(model.users, model.users_made, number, user, "user")


def _update_user(model: IggyModel, entry: Entry) -> None:
    request: account_requests.UpdateUserRequest = _request(entry)
    number, user = _find(model.users, request.user, "user")
    if request.username is not None:
        _check_name(model.users, number, request.username, "user")
        user.name = request.username
    if request.status is not None:
        user.active = _active(request.status)


def _delete_user(model: IggyModel, entry: Entry) -> None:
    number, _gone = _find(model.users, _request(entry).user, "user")
    if number == ROOT_USER_ID:
        raise _MisfitError("deletes the root user")
    del model.users[number]


def _update_permissions(model: IggyModel, entry: Entry) -> None:
    request: account_requests.UpdatePermissionsRequest = _request(entry)
    _find(model.users, request.user, "user")[1].permissions = request.permissions


def _change_password(model: IggyModel, entry: Entry) -> None:
    request: account_requests.ChangePasswordRequest = _request(entry)
    _find(model.users, request.user, "user")[1].password_hash = request.new_password


def _create_token(model: IggyModel, entry: Entry) -> None:
    (length,) = struct.unpack_from("<I", entry.payload)
    text = entry.payload[4 : 4 + length]
    (request_length,) = struct.unpack_from("<I", entry.payload, 4 + length)
    if request_length != len(entry.payload) - 8 - length:
        raise _MisfitError(f"says that its request has {request_length} bytes")
    request: account_requests.CreateTokenRequest = _request(entry, entry.payload[8 + length :])
    _number, user = _find(model.users, entry.user_id, "user")
    old = user.tokens.get(request.name)
    if old is not None and not 0 < old.expires_at_us <= entry.timestamp_us:
        raise _MisfitError(f"makes the token {request.name!r} a second time")
    user.tokens[request.name] = IggyToken(_digest(text), expires_at(entry.timestamp_us, request.expiry_us))


def _digest(text: bytes) -> bytes:
    try:
        digest = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_BYTES or len(text) != 2 * DIGEST_BYTES:
        raise _MisfitError("holds no hash of a token")
    return digest


def _delete_token(model: IggyModel, entry: Entry) -> None:
    name = _request(entry).name
    _number, user = _find(model.users, entry.user_id, "user")
    if user.tokens.pop(name, None) is None:
        raise _MisfitError(f"deletes the token {name!r}, which does not exist")


_CHANGES: Final[dict[int, Callable[[IggyModel, Entry], None]]] = {
    Code.CREATE_STREAM: _create_stream,
    Code.UPDATE_STREAM: _update_stream,
    Code.DELETE_STREAM: _delete_stream,
    Code.PURGE_STREAM: _files_only,
    Code.CREATE_TOPIC: _create_topic,
    Code.UPDATE_TOPIC: _update_topic,
    Code.DELETE_TOPIC: _delete_topic,
    Code.PURGE_TOPIC: _files_only,
    Code.CREATE_PARTITIONS: _create_partitions,
    Code.DELETE_PARTITIONS: _delete_partitions,
    Code.DELETE_SEGMENTS: _files_only,
    Code.CREATE_CONSUMER_GROUP: _create_group,
    Code.DELETE_CONSUMER_GROUP: _delete_group,
    Code.CREATE_USER: _create_user,
    Code.UPDATE_USER: _update_user,
    Code.DELETE_USER: _delete_user,
    Code.UPDATE_PERMISSIONS: _update_permissions,
    Code.CHANGE_PASSWORD: _change_password,
    Code.CREATE_PERSONAL_ACCESS_TOKEN: _create_token,
    Code.DELETE_PERSONAL_ACCESS_TOKEN: _delete_token,
}
