"""The commands of the protocol and the extensions as values: code, payload, and how to read the answer."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from shardd.client import wire
from shardd.client.codec import decode_polled, decode_position
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


POLL: Final = 100
POLL_AND_WAIT: Final = 0x5344_0018
POLL_POSITION: Final = 0x5344_0019
SEND: Final = 101
UNKNOWN_COMMAND: Final = 3  # status
SEND_ONCE: Final = 0x5344_0031
_FOR_SENDER: Final = 8  # flag of get_partition_bounds, version 4
OFFSET, TIMESTAMP, FIRST, LAST, NEXT = 1, 2, 3, 4, 5
_EXTENSIONS: Final = 0x53440000
_STRATEGY: Final = struct.Struct("<BQIB")


def nothing(answer: bytes) -> None:
    """Of commands whose answer is empty."""


def ping() -> Command[None]:
    return Command(1, b"", nothing, True)


def login(name: str, password: str, version: str = "") -> Command[int]:
    texts = wire.text8(name) + wire.text8(password) + wire.text32(version) + wire.text32("")
    return Command(38, texts, answers.number, True)


def login_with_token(token: str) -> Command[int]:
    return Command(44, wire.text8(token), answers.number, True)


def logout() -> Command[None]:
    return Command(39, b"", nothing)


# ---- the server ----


def stats() -> Command[values.Stats]:
    return Command(10, b"", answers.stats, True)


def snapshot(types: Iterable[int] = (100,), *, compression: int = 2) -> Command[bytes]:
    """A ZIP archive (docs/protocol/system.md#get-snapshot)."""
    chosen = bytes(types)
    return Command(11, wire.u8(compression) + wire.u8(len(chosen)) + chosen, bytes, True)


def cluster() -> Command[values.Cluster]:
    return Command(12, b"", answers.cluster, True)


def me() -> Command[values.Connected]:
    return Command(20, b"", answers.connected_details, True)


def connected(client_id: int) -> Command[values.Connected | None]:
    return Command(21, wire.u32(client_id), answers.optional(answers.connected_details), True)


def all_connected() -> Command[list[values.Connected]]:
    return Command(22, b"", answers.listed(answers.read_connected), True)


# ---- users and tokens ----


def user(name: Identifier) -> Command[values.User | None]:
    return Command(31, wire.identifier(name), answers.optional(answers.user_details), True)


def users() -> Command[list[values.User]]:
    return Command(32, b"", answers.listed(answers.read_user), True)


def create_user(
    name: str, password: str, *, active: bool = True, permissions: values.Permissions | None = None
) -> Command[values.User]:
    head = wire.text8(name) + wire.text8(password) + wire.u8(1 if active else 2)
    return Command(33, head + answers.encode_permissions(permissions), answers.user_details)


def delete_user(name: Identifier) -> Command[None]:
    return Command(34, wire.identifier(name), nothing)


def update_user(user: Identifier, *, name: str | None = None, active: bool | None = None) -> Command[None]:
    named = b"\x00" if name is None else b"\x01" + wire.text8(name)
    status = b"\x00" if active is None else b"\x01" + wire.u8(1 if active else 2)
    return Command(35, wire.identifier(user) + named + status, nothing, True)


def update_permissions(user: Identifier, permissions: values.Permissions | None) -> Command[None]:
    return Command(36, wire.identifier(user) + answers.encode_permissions(permissions), nothing, True)


def change_password(user: Identifier, current: str, new: str) -> Command[None]:
    return Command(37, wire.identifier(user) + wire.text8(current) + wire.text8(new), nothing)


def tokens() -> Command[list[values.Token]]:
    return Command(41, b"", answers.listed(answers.read_token), True)


def create_token(name: str, *, expiry_us: int = 0) -> Command[str]:
    """The secret, which is told only here. `expiry_us`: a duration, 0: never."""
    return Command(42, wire.text8(name) + wire.u64(expiry_us), lambda answer: wire.Reader(answer).text8())


def delete_token(name: str) -> Command[None]:
    return Command(43, wire.text8(name), nothing)


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
    place = _place(consumer, stream, topic, partition, group)
    if bytes_max is not None:
        payload = place + _STRATEGY.pack(strategy, value, count, 0) + wire.u32(wait_ms) + wire.u32(bytes_max)
        return Command(POLL_POSITION, payload, decode_position, True, wait_ms / 1000)
    if wait_ms > 0:
        payload = place + _STRATEGY.pack(strategy, value, count, 0) + wire.u32(wait_ms)
        return Command(POLL_AND_WAIT, payload, decode_polled, True, wait_ms / 1000)
    return Command(POLL, place + _STRATEGY.pack(strategy, value, count, 0), decode_polled, True)


def flush(stream: Identifier, topic: Identifier, partition: int, *, fsync: bool = True) -> Command[None]:
    payload = wire.identifiers(stream, topic) + wire.u32(partition) + wire.u8(fsync)
    return Command(102, payload, nothing, True)


def _place(consumer: Identifier, stream: Identifier, topic: Identifier, partition: int | None, group: bool) -> bytes:
    return wire.consumer(group, consumer) + wire.identifiers(stream, topic) + wire.optional_partition(partition)


def stored_offset(
    consumer: Identifier, stream: Identifier, topic: Identifier, partition: int | None = None, *, group: bool = False
) -> Command[values.StoredOffset | None]:
    payload = _place(consumer, stream, topic, partition, group)
    return Command(120, payload, answers.optional(answers.stored_offset), True)


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
        return Command(121, payload, nothing, True)
    head = wire.u64(history.incarnation) + wire.u32(history.epoch)
    return Command(_EXTENSIONS + 0x1A, head + payload, nothing, True)


def delete_offset(
    consumer: Identifier, stream: Identifier, topic: Identifier, partition: int | None = None, *, group: bool = False
) -> Command[None]:
    return Command(122, _place(consumer, stream, topic, partition, group), nothing)


# ---- streams, topics, partitions ----


def stream(name: Identifier) -> Command[tuple[values.Stream, list[values.Topic]] | None]:
    return Command(200, wire.identifier(name), answers.optional(answers.stream_details), True)


def streams() -> Command[list[values.Stream]]:
    return Command(201, b"", answers.listed(answers.read_stream), True)


def create_stream(name: str) -> Command[values.Stream]:
    return Command(202, wire.text8(name), lambda answer: answers.read_stream(wire.Reader(answer)))


def delete_stream(name: Identifier) -> Command[None]:
    return Command(203, wire.identifier(name), nothing)


def update_stream(stream: Identifier, name: str) -> Command[None]:
    return Command(204, wire.identifier(stream) + wire.text8(name), nothing)


def purge_stream(name: Identifier) -> Command[None]:
    return Command(205, wire.identifier(name), nothing)


def topic(stream: Identifier, name: Identifier) -> Command[values.Topic | None]:
    return Command(300, wire.identifiers(stream, name), answers.optional(answers.topic_details), True)


def topics(stream: Identifier) -> Command[list[values.Topic]]:
    return Command(301, wire.identifier(stream), answers.listed(answers.read_topic), True)


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
    return Command(302, payload, answers.topic_details)


def delete_topic(stream: Identifier, topic: Identifier) -> Command[None]:
    return Command(303, wire.identifiers(stream, topic), nothing)


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
    return Command(304, wire.identifiers(stream, topic) + payload, nothing)


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
    return Command(
        _EXTENSIONS + 0x23, wire.identifiers(stream, topic) + wire.u8(present) + b"".join(values), nothing, True
    )


def purge_topic(stream: Identifier, topic: Identifier) -> Command[None]:
    return Command(305, wire.identifiers(stream, topic), nothing)


def create_partitions(stream: Identifier, topic: Identifier, count: int) -> Command[None]:
    return Command(402, wire.identifiers(stream, topic) + wire.u32(count), nothing)


def delete_partitions(stream: Identifier, topic: Identifier, count: int) -> Command[None]:
    return Command(403, wire.identifiers(stream, topic) + wire.u32(count), nothing)


def delete_segments(stream: Identifier, topic: Identifier, partition: int, count: int) -> Command[None]:
    return Command(503, wire.identifiers(stream, topic) + wire.u32(partition) + wire.u32(count), nothing)


# ---- consumer groups ----


def group(stream: Identifier, topic: Identifier, name: Identifier) -> Command[values.Group | None]:
    return Command(600, wire.identifiers(stream, topic, name), answers.optional(answers.group_details), True)


def groups(stream: Identifier, topic: Identifier) -> Command[list[values.Group]]:
    return Command(601, wire.identifiers(stream, topic), answers.listed(answers.read_group), True)


def create_group(stream: Identifier, topic: Identifier, name: str) -> Command[values.Group]:
    return Command(602, wire.identifiers(stream, topic) + wire.text8(name), answers.group_details)


def delete_group(stream: Identifier, topic: Identifier, name: Identifier) -> Command[None]:
    return Command(603, wire.identifiers(stream, topic, name), nothing)


def join_group(stream: Identifier, topic: Identifier, name: Identifier) -> Command[None]:
    return Command(604, wire.identifiers(stream, topic, name), nothing, True)


def leave_group(stream: Identifier, topic: Identifier, name: Identifier) -> Command[None]:
    return Command(605, wire.identifiers(stream, topic, name), nothing)


# ---- extensions ----


def extensions() -> Command[values.Extensions]:
    return Command(_EXTENSIONS, b"", answers.extensions, True)


def metrics() -> Command[values.Metrics]:
    return Command(_EXTENSIONS + 1, b"", answers.metrics, True)


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
    return Command(_EXTENSIONS + 0x10, payload, answers.topic_bounds, True)


def set_topic_settings(stream: Identifier, topic: Identifier, settings: Mapping[str, str]) -> Command[None]:
    pairs = b"".join(wire.text8(key) + wire.text8(value) for key, value in settings.items())
    payload = wire.identifiers(stream, topic) + wire.u8(len(settings)) + pairs
    return Command(_EXTENSIONS + 0x20, payload, nothing, True)


def lease_files(stream: Identifier, topic: Identifier, partition: int, offset: int, seconds: int) -> Command[None]:
    """Segments from `offset` on stay for so long for who reads files; 0: no longer (docs/extensions.md#lease-files)."""
    tail = wire.u32(partition) + wire.u64(offset) + wire.u32(seconds)
    return Command(_EXTENSIONS + 0x12, wire.identifiers(stream, topic) + tail, nothing, True)


def topic_settings(stream: Identifier, topic: Identifier) -> Command[tuple[values.TopicSetting, ...]]:
    return Command(_EXTENSIONS + 0x21, wire.identifiers(stream, topic), answers.topic_settings, True)
