"""The commands of the protocol and the extensions as values: code, payload, and how to read the answer."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from shardd.client import command_codes as codes
from shardd.client import wire
from shardd.client.codec import decode_polled, decode_position
from shardd.client.command_codes import CommandCode
from shardd.client.lazy import lazy_module
from shardd.client.messages import History, Polled
from shardd.client.wire import Identifier

if TYPE_CHECKING:
    from shardd.client import answers, values
else:  # thirty data classes: who only sends or polls needs none of them
    answers = lazy_module("shardd.client.answers")

T = TypeVar("T")


class Command(NamedTuple, Generic[T]):
    """`repeatable`: carrying it out twice is as good as once, so it may be asked again when its answer did not come.
    `wait_s`: how long the server may wait before it answers."""

    code: int
    payload: bytes
    read: Callable[[bytes], T]
    repeatable: bool = False
    wait_s: float = 0.0


POLL: Final = codes.POLL_MESSAGES.code
POLL_AND_WAIT: Final = codes.POLL_AND_WAIT.code
POLL_POSITION: Final = codes.POLL_POSITION.code
SEND: Final = codes.SEND_MESSAGES.code
SEND_ONCE: Final = codes.SEND_ONCE.code
_FOR_SENDER: Final = 8  # flag of get_partition_bounds, version 4
OFFSET, TIMESTAMP, FIRST, LAST, NEXT = 1, 2, 3, 4, 5
_STRATEGY: Final = struct.Struct("<BQIB")


def of(
    command: CommandCode, payload: bytes, read: Callable[[bytes], T], *, repeatable: bool = False, wait_s: float = 0.0
) -> Command[T]:
    """`repeatable`: this request is, also where not each request of the command is."""
    return Command(command.code, payload, read, command.repeatable or repeatable, wait_s)


def nothing(answer: bytes) -> None:
    """Of commands whose answer is empty."""


def ping() -> Command[None]:
    return of(codes.PING, b"", nothing)


def login(name: str, password: str, version: str = "") -> Command[int]:
    texts = wire.text8(name) + wire.text8(password) + wire.text32(version) + wire.text32("")
    return of(codes.LOGIN_USER, texts, answers.number)


def login_with_token(token: str) -> Command[int]:
    return of(codes.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, wire.text8(token), answers.number)


def logout() -> Command[None]:
    return of(codes.LOGOUT_USER, b"", nothing)


# ---- the server ----


def stats() -> Command[values.Stats]:
    return of(codes.GET_STATS, b"", answers.stats)


def snapshot(types: Iterable[int] = (100,), *, compression: int = 2) -> Command[bytes]:
    """A ZIP archive (docs/protocol/system.md#get-snapshot)."""
    chosen = bytes(types)
    return of(codes.GET_SNAPSHOT, wire.u8(compression) + wire.u8(len(chosen)) + chosen, bytes)


def cluster() -> Command[values.Cluster]:
    return of(codes.GET_CLUSTER_METADATA, b"", answers.cluster)


def me() -> Command[values.Connected]:
    return of(codes.GET_ME, b"", answers.connected_details)


def connected(client_id: int) -> Command[values.Connected | None]:
    return of(codes.GET_CLIENT, wire.u32(client_id), answers.optional(answers.connected_details))


def all_connected() -> Command[list[values.Connected]]:
    return of(codes.GET_CLIENTS, b"", answers.listed(answers.read_connected))


# ---- users and tokens ----


def user(name: Identifier) -> Command[values.User | None]:
    return of(codes.GET_USER, wire.identifier(name), answers.optional(answers.user_details))


def users() -> Command[list[values.User]]:
    return of(codes.GET_USERS, b"", answers.listed(answers.read_user))


def create_user(
    name: str, password: str, *, active: bool = True, permissions: values.Permissions | None = None
) -> Command[values.User]:
    head = wire.text8(name) + wire.text8(password) + wire.u8(1 if active else 2)
    return of(codes.CREATE_USER, head + answers.encode_permissions(permissions), answers.user_details)


def delete_user(name: Identifier) -> Command[None]:
    return of(codes.DELETE_USER, wire.identifier(name), nothing)


def update_user(user: Identifier, *, name: str | None = None, active: bool | None = None) -> Command[None]:
    named = b"\x00" if name is None else b"\x01" + wire.text8(name)
    status = b"\x00" if active is None else b"\x01" + wire.u8(1 if active else 2)
    return of(codes.UPDATE_USER, wire.identifier(user) + named + status, nothing)


def update_permissions(user: Identifier, permissions: values.Permissions | None) -> Command[None]:
    return of(codes.UPDATE_PERMISSIONS, wire.identifier(user) + answers.encode_permissions(permissions), nothing)


def change_password(user: Identifier, current: str, new: str) -> Command[None]:
    return of(codes.CHANGE_PASSWORD, wire.identifier(user) + wire.text8(current) + wire.text8(new), nothing)


def tokens() -> Command[list[values.Token]]:
    return of(codes.GET_PERSONAL_ACCESS_TOKENS, b"", answers.listed(answers.read_token))


def create_token(name: str, *, expiry_us: int = 0) -> Command[str]:
    """The secret, which is told only here. `expiry_us`: a duration, 0: never."""
    payload = wire.text8(name) + wire.u64(expiry_us)
    return of(codes.CREATE_PERSONAL_ACCESS_TOKEN, payload, lambda answer: wire.Reader(answer).text8())


def delete_token(name: str) -> Command[None]:
    return of(codes.DELETE_PERSONAL_ACCESS_TOKEN, wire.text8(name), nothing)


# ---- messages and offsets ----


def poll(
    consumer: Identifier,
    stream: Identifier,
    topic: Identifier,
    partition: int | None = None,
    *,
    strategy: int = NEXT,
    value: int = 0,
    count: int = 1000,
    group: bool = False,
    wait_ms: int = 0,
    bytes_max: int | None = None,
) -> Command[Polled]:
    """Without auto-commit: a client commits what was processed, the server what it has sent. `wait_ms`: an extension;
    later requests of the connection come behind it. `bytes_max`: an extension, too: the answer tells histories and has
    no more bytes, but one message; 0: no bound."""
    payload = _place(consumer, stream, topic, partition, group) + _STRATEGY.pack(strategy, value, count, 0)
    if bytes_max is not None:
        payload += wire.u32(wait_ms) + wire.u32(bytes_max)
        return of(codes.POLL_POSITION, payload, decode_position, repeatable=True, wait_s=wait_ms / 1000)
    if wait_ms > 0:
        payload += wire.u32(wait_ms)
        return of(codes.POLL_AND_WAIT, payload, decode_polled, repeatable=True, wait_s=wait_ms / 1000)
    return of(codes.POLL_MESSAGES, payload, decode_polled, repeatable=True)


def flush(stream: Identifier, topic: Identifier, partition: int, *, fsync: bool = True) -> Command[None]:
    payload = wire.identifiers(stream, topic) + wire.u32(partition) + wire.u8(fsync)
    return of(codes.FLUSH_UNSAVED_BUFFER, payload, nothing)


def _place(consumer: Identifier, stream: Identifier, topic: Identifier, partition: int | None, group: bool) -> bytes:
    return wire.consumer(group, consumer) + wire.identifiers(stream, topic) + wire.optional_partition(partition)


def stored_offset(
    consumer: Identifier, stream: Identifier, topic: Identifier, partition: int | None = None, *, group: bool = False
) -> Command[values.StoredOffset | None]:
    payload = _place(consumer, stream, topic, partition, group)
    return of(codes.GET_CONSUMER_OFFSET, payload, answers.optional(answers.stored_offset))


def store_offset(
    consumer: Identifier,
    stream: Identifier,
    topic: Identifier,
    partition: int | None,
    offset: int,
    *,
    group: bool = False,
    history: History | None = None,
) -> Command[None]:
    """`offset`: of the last message that was processed. `history`: to which it belongs; an extension."""
    payload = _place(consumer, stream, topic, partition, group) + wire.u64(offset)
    if history is None:
        return of(codes.STORE_CONSUMER_OFFSET, payload, nothing)
    head = wire.u64(history.incarnation) + wire.u32(history.epoch)
    return of(codes.STORE_POSITION, head + payload, nothing)


def delete_offset(
    consumer: Identifier, stream: Identifier, topic: Identifier, partition: int | None = None, *, group: bool = False
) -> Command[None]:
    return of(codes.DELETE_CONSUMER_OFFSET, _place(consumer, stream, topic, partition, group), nothing)


# ---- streams, topics, partitions ----


def stream(name: Identifier) -> Command[tuple[values.Stream, list[values.Topic]] | None]:
    return of(codes.GET_STREAM, wire.identifier(name), answers.optional(answers.stream_details))


def streams() -> Command[list[values.Stream]]:
    return of(codes.GET_STREAMS, b"", answers.listed(answers.read_stream))


def create_stream(name: str) -> Command[values.Stream]:
    return of(codes.CREATE_STREAM, wire.text8(name), lambda answer: answers.read_stream(wire.Reader(answer)))


def delete_stream(name: Identifier) -> Command[None]:
    return of(codes.DELETE_STREAM, wire.identifier(name), nothing)


def update_stream(stream: Identifier, name: str) -> Command[None]:
    return of(codes.UPDATE_STREAM, wire.identifier(stream) + wire.text8(name), nothing)


def purge_stream(name: Identifier) -> Command[None]:
    return of(codes.PURGE_STREAM, wire.identifier(name), nothing)


def topic(stream: Identifier, name: Identifier) -> Command[values.Topic | None]:
    return of(codes.GET_TOPIC, wire.identifiers(stream, name), answers.optional(answers.topic_details))


def topics(stream: Identifier) -> Command[list[values.Topic]]:
    return of(codes.GET_TOPICS, wire.identifier(stream), answers.listed(answers.read_topic))


_TOPIC_VALUES: Final = struct.Struct("<BQQB")


def create_topic(
    stream: Identifier,
    name: str,
    partitions: int = 1,
    *,
    compression: int = 1,
    expiry_us: int = 0,
    max_bytes: int = 0,
    replication: int = 1,
) -> Command[values.Topic]:
    """`compression` 1: the server's default, 2: gzip. Expiry and size 0: the server's default; `wire.NEVER`: none."""
    head = wire.identifier(stream) + wire.u32(partitions)
    payload = head + _TOPIC_VALUES.pack(compression, expiry_us, max_bytes, replication) + wire.text8(name)
    return of(codes.CREATE_TOPIC, payload, answers.topic_details)


def delete_topic(stream: Identifier, topic: Identifier) -> Command[None]:
    return of(codes.DELETE_TOPIC, wire.identifiers(stream, topic), nothing)


def update_topic(
    stream: Identifier,
    topic: Identifier,
    name: str,
    *,
    compression: int = 1,
    expiry_us: int = 0,
    max_bytes: int = 0,
    replication: int = 1,
) -> Command[None]:
    """All of these values, those that are not given, too."""
    payload = _TOPIC_VALUES.pack(compression, expiry_us, max_bytes, replication) + wire.text8(name)
    return of(codes.UPDATE_TOPIC, wire.identifiers(stream, topic) + payload, nothing)


def change_topic(
    stream: Identifier,
    topic: Identifier,
    *,
    name: str | None = None,
    compression: int | None = None,
    expiry_us: int | None = None,
    max_bytes: int | None = None,
    replication: int | None = None,
) -> Command[None]:
    """What is not given stays, whatever has changed meanwhile; status 3 of a server that is not shardd."""
    values = (
        b"" if name is None else wire.text8(name),
        b"" if compression is None else wire.u8(compression),
        b"" if expiry_us is None else wire.u64(expiry_us),
        b"" if max_bytes is None else wire.u64(max_bytes),
        b"" if replication is None else wire.u8(replication),
    )
    present = sum(1 << bit for bit, value in enumerate(values) if value)
    return of(codes.CHANGE_TOPIC, wire.identifiers(stream, topic) + wire.u8(present) + b"".join(values), nothing)


def purge_topic(stream: Identifier, topic: Identifier) -> Command[None]:
    return of(codes.PURGE_TOPIC, wire.identifiers(stream, topic), nothing)


def create_partitions(stream: Identifier, topic: Identifier, count: int) -> Command[None]:
    return of(codes.CREATE_PARTITIONS, wire.identifiers(stream, topic) + wire.u32(count), nothing)


def delete_partitions(stream: Identifier, topic: Identifier, count: int) -> Command[None]:
    return of(codes.DELETE_PARTITIONS, wire.identifiers(stream, topic) + wire.u32(count), nothing)


def delete_segments(stream: Identifier, topic: Identifier, partition: int, count: int) -> Command[None]:
    return of(codes.DELETE_SEGMENTS, wire.identifiers(stream, topic) + wire.u32(partition) + wire.u32(count), nothing)


# ---- consumer groups ----


def group(stream: Identifier, topic: Identifier, name: Identifier) -> Command[values.Group | None]:
    return of(codes.GET_CONSUMER_GROUP, wire.identifiers(stream, topic, name), answers.optional(answers.group_details))


def groups(stream: Identifier, topic: Identifier) -> Command[list[values.Group]]:
    return of(codes.GET_CONSUMER_GROUPS, wire.identifiers(stream, topic), answers.listed(answers.read_group))


def create_group(stream: Identifier, topic: Identifier, name: str) -> Command[values.Group]:
    return of(codes.CREATE_CONSUMER_GROUP, wire.identifiers(stream, topic) + wire.text8(name), answers.group_details)


def delete_group(stream: Identifier, topic: Identifier, name: Identifier) -> Command[None]:
    return of(codes.DELETE_CONSUMER_GROUP, wire.identifiers(stream, topic, name), nothing)


def join_group(stream: Identifier, topic: Identifier, name: Identifier) -> Command[None]:
    return of(codes.JOIN_CONSUMER_GROUP, wire.identifiers(stream, topic, name), nothing)


def leave_group(stream: Identifier, topic: Identifier, name: Identifier) -> Command[None]:
    return of(codes.LEAVE_CONSUMER_GROUP, wire.identifiers(stream, topic, name), nothing)


# ---- extensions ----


def extensions() -> Command[values.Extensions]:
    return of(codes.LIST_EXTENSIONS, b"", answers.extensions)


def metrics() -> Command[values.Metrics]:
    return of(codes.GET_METRICS, b"", answers.metrics)


def bounds(
    stream: Identifier,
    topic: Identifier,
    partitions: tuple[int, ...] = (),
    *,
    segments: bool = False,
    for_sender: bool = False,
) -> Command[values.TopicBounds]:
    """`partitions` (): all. More than 10,000 are too many for one request (status 2015). `for_sender`: the user may
    send, and perhaps not poll (docs/extensions.md#get-partition-bounds); not with `segments`."""
    flags = _FOR_SENDER * for_sender | segments
    head = wire.u8(flags) + wire.u32(1) + wire.identifiers(stream, topic) + wire.u32(len(partitions))
    payload = head + b"".join(map(wire.u32, partitions))
    return of(codes.GET_PARTITION_BOUNDS, payload, answers.topic_bounds)


def set_topic_settings(stream: Identifier, topic: Identifier, settings: Mapping[str, str]) -> Command[None]:
    pairs = b"".join(wire.text8(key) + wire.text8(value) for key, value in settings.items())
    payload = wire.identifiers(stream, topic) + wire.u8(len(settings)) + pairs
    return of(codes.SET_TOPIC_SETTINGS, payload, nothing)


def lease_files(stream: Identifier, topic: Identifier, partition: int, offset: int, seconds: int) -> Command[None]:
    """Segments from `offset` on stay for so long for who reads files; 0: no longer (docs/extensions.md#lease-files)."""
    tail = wire.u32(partition) + wire.u64(offset) + wire.u32(seconds)
    return of(codes.LEASE_FILES, wire.identifiers(stream, topic) + tail, nothing)


def topic_settings(stream: Identifier, topic: Identifier) -> Command[tuple[values.TopicSetting, ...]]:
    return of(codes.GET_TOPIC_SETTINGS, wire.identifiers(stream, topic), answers.topic_settings)
