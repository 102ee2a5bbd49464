"""Commands of the classic protocol as calls of a door: which service a code means, and how what it returns is written.

The same requests and answers as over TCP (docs/protocol/commands.md), without those that need a connection of the
engine (consumer groups as a member, deferred polls)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

import msgspec
from immutables import Map

from shardd.doors.door import DoorClient
from shardd.protocol.account_replies import LoggedIn, TokenSecret, TokenSummary, UserDetails
from shardd.protocol.account_requests import TokenLogin
from shardd.protocol.catalogue import ALLOWED_WITHOUT_LOGIN, decode
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.limits import FRAME_LENGTH_MIN
from shardd.protocol.primitives import Reader
from shardd.protocol.replies import (
    ConsumerOffset,
    GroupDetails,
    GroupSummary,
    PartitionSummary,
    PolledHead,
    StreamDetails,
    StreamSummary,
    TopicDetails,
    TopicSummary,
)
from shardd.protocol.requests import Login
from shardd.protocol.send_request import SendMessages
from shardd.protocol.system_replies import ClientSummary, ClusterMetadata, ServerStats

REQUEST_BYTES_MAX: Final = 7 << 20  # of a frame: with what stands around it it fits into one of a door (8 MiB)
STRANGER_BYTES_MAX: Final = 4096  # before a login
_PAYLOAD_BYTES_MAX: Final = 4096  # of a command without a line here, as over TCP (native/src/wire/frame_limits.h)
_LONG_PAYLOADS: Final[dict[int, int]] = {
    Code.CREATE_USER: 512 << 10,
    Code.UPDATE_PERMISSIONS: 512 << 10,
    Code.PING: REQUEST_BYTES_MAX,
}

Encode = Callable[[Any], bytes]


def _from_map(kind: type[Any], value: object) -> object:
    return Map(msgspec.convert(value, dict[get_args(kind)], dec_hook=_from_map))  # type: ignore[misc]


def _to_map(value: object) -> object:
    if isinstance(value, Map):
        return dict(value)
    raise NotImplementedError(f"a {type(value).__name__} is no value of a request")


def _of(kind: Any, encode: Encode) -> Encode:
    """An answer of that type; an empty one when there is none."""

    def write(value: Any) -> bytes:
        return b"" if value is None else encode(msgspec.convert(value, kind, dec_hook=_from_map))

    return write


def _each(kind: Any) -> Encode:
    return lambda values: b"".join(msgspec.convert(value, kind, dec_hook=_from_map).encode() for value in values)


def _encoded(kind: Any) -> Encode:
    return _of(kind, lambda value: value.encode())


def _details(kind: Any) -> Encode:
    return _of(kind, lambda value: value.encode_details())


def _stream(value: StreamDetails[TopicSummary]) -> bytes:
    return value.stream.encode() + b"".join(topic.encode() for topic in value.topics)


def _topic(value: TopicDetails[PartitionSummary]) -> bytes:
    return value.topic.encode() + b"".join(partition.encode() for partition in value.partitions)


def _polled(value: Any) -> bytes:
    return PolledHead(value["partition"], value["current_offset"], value["count"]).encode() + bytes(value["records"])


def _nothing(value: Any) -> bytes:
    return b""


_TOPIC: Final = _of(TopicDetails[PartitionSummary], _topic)
_COMMANDS: Final[dict[int, tuple[str, Encode]]] = {
    Code.PING: ("ping", _nothing),
    Code.GET_STATS: ("get_stats", _encoded(ServerStats)),
    Code.GET_SNAPSHOT: ("get_snapshot", bytes),
    Code.GET_CLUSTER_METADATA: ("get_cluster_metadata", _encoded(ClusterMetadata)),
    Code.GET_ME: ("get_me", _details(ClientSummary)),
    Code.GET_CLIENT: ("get_client", _details(ClientSummary)),
    Code.GET_CLIENTS: ("get_clients", _each(ClientSummary)),
    Code.GET_USER: ("get_user", _details(UserDetails)),
    Code.GET_USERS: ("get_users", _each(UserDetails)),
    Code.CREATE_USER: ("create_user", _details(UserDetails)),
    Code.DELETE_USER: ("delete_user", _nothing),
    Code.UPDATE_USER: ("update_user", _nothing),
    Code.UPDATE_PERMISSIONS: ("update_permissions", _nothing),
    Code.CHANGE_PASSWORD: ("change_password", _nothing),
    Code.GET_PERSONAL_ACCESS_TOKENS: ("get_personal_access_tokens", _each(TokenSummary)),
    Code.CREATE_PERSONAL_ACCESS_TOKEN: ("create_personal_access_token", _encoded(TokenSecret)),
    Code.DELETE_PERSONAL_ACCESS_TOKEN: ("delete_personal_access_token", _nothing),
    Code.GET_STREAM: ("get_stream", _of(StreamDetails[TopicSummary], _stream)),
    Code.GET_STREAMS: ("get_streams", _each(StreamSummary)),
    Code.CREATE_STREAM: ("create_stream", _encoded(StreamSummary)),
    Code.DELETE_STREAM: ("delete_stream", _nothing),
    Code.UPDATE_STREAM: ("update_stream", _nothing),
    Code.PURGE_STREAM: ("purge_stream", _nothing),
    Code.GET_TOPIC: ("get_topic", _TOPIC),
    Code.GET_TOPICS: ("get_topics", _each(TopicSummary)),
    Code.CREATE_TOPIC: ("create_topic", _TOPIC),
    Code.DELETE_TOPIC: ("delete_topic", _nothing),
    Code.UPDATE_TOPIC: ("update_topic", _nothing),
    Code.PURGE_TOPIC: ("purge_topic", _nothing),
    Code.CREATE_PARTITIONS: ("create_partitions", _nothing),
    Code.DELETE_PARTITIONS: ("delete_partitions", _nothing),
    Code.DELETE_SEGMENTS: ("delete_segments", _nothing),
    Code.SEND_MESSAGES: ("send_messages", _nothing),
    Code.POLL_MESSAGES: ("poll_messages", _polled),
    Code.FLUSH_UNSAVED_BUFFER: ("flush_unsaved_buffer", _nothing),
    Code.GET_CONSUMER_OFFSET: ("get_consumer_offset", _encoded(ConsumerOffset)),
    Code.STORE_CONSUMER_OFFSET: ("store_consumer_offset", _nothing),
    Code.DELETE_CONSUMER_OFFSET: ("delete_consumer_offset", _nothing),
    Code.GET_CONSUMER_GROUP: ("get_consumer_group", _encoded(GroupDetails)),
    Code.GET_CONSUMER_GROUPS: ("get_consumer_groups", _each(GroupSummary)),
    Code.CREATE_CONSUMER_GROUP: ("create_consumer_group", _encoded(GroupSummary)),
    Code.DELETE_CONSUMER_GROUP: ("delete_consumer_group", _nothing),
    Code.JOIN_CONSUMER_GROUP: ("join_consumer_group", _nothing),
    Code.LEAVE_CONSUMER_GROUP: ("leave_consumer_group", _nothing),
}
SENT_WITH_MAPS: Final = frozenset({Code.CREATE_USER, Code.UPDATE_PERMISSIONS})


def refusal(length: int, code: int, *, logged_in: bool) -> Status | None:
    """What the head of a frame is answered with before the rest has come; None: it may come."""
    if length < FRAME_LENGTH_MIN or (not logged_in and code != Code.SEND_MESSAGES and length > STRANGER_BYTES_MAX):
        return Status.INVALID_COMMAND
    if not logged_in and code == Code.SEND_MESSAGES:
        return Status.UNAUTHENTICATED
    if code == Code.SEND_MESSAGES:
        return Status.TOO_BIG_MESSAGE_PAYLOAD if length > REQUEST_BYTES_MAX else None
    payload_bytes_max = _LONG_PAYLOADS.get(code, _PAYLOAD_BYTES_MAX)
    return Status.INVALID_COMMAND if length - FRAME_LENGTH_MIN > payload_bytes_max else None


def read_request(code: int, payload: memoryview) -> Any:
    """Nothing of the payload is needed behind it. ShardError."""
    return SendMessages.read(Reader(payload)) if code == Code.SEND_MESSAGES else decode(code, bytes(payload))


async def execute(client: DoorClient, code: int, request: Any) -> bytes:
    """The payload of the answer. ShardError, WorkerLostError. Checks in the order of docs/protocol/framing.md, behind
    that of `read_request`."""
    if not client.handle and code not in ALLOWED_WITHOUT_LOGIN:
        raise ShardError(Status.UNAUTHENTICATED)
    if code == Code.PING:
        return b""  # also without a login, which no command of a door is
    if isinstance(request, Login):
        return LoggedIn(await client.login(request.username, request.password)).encode()
    if isinstance(request, TokenLogin):
        return LoggedIn(await client.login_with_token(request.token)).encode()
    if code == Code.LOGOUT_USER:
        await client.logout()
        return b""
    if code not in _COMMANDS:
        raise ShardError(Status.INVALID_COMMAND, "no command over QUIC")
    name, encode = _COMMANDS[code]
    if code in SENT_WITH_MAPS:
        request = msgspec.to_builtins(request, enc_hook=_to_map)
    return encode(await client.command(name, request))
