"""The commands of the classic protocol and the extension commands, each of them once: code, request, reply, bounds, and
what ports must know before they execute one. Tables of the server derive from these rows; `shardd.client` and the core
have tables of their own, which tests compare with them. The services that execute the commands:
`shardd/dispatch/classic/commands.py`. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardd.protocol import account_replies, account_requests, bounds, limits, replies, system_replies, topic_settings
from shardd.protocol.access_tokens import AccessToken
from shardd.protocol.codes import Code
from shardd.protocol.command_entry import (
    BOUNDS_BYTES,
    PERMISSIONS_BYTES,
    SEND_BYTES,
    SEND_ONCE_BYTES,
    SETTINGS_BYTES,
    WIDE_ANSWER_BYTES,
    CommandEntry,
    Repeat,
    WireRequest,
)
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import DoorCode, Extension, ExtensionCode, ExtensionList, ExtensionRequest, Metrics
from shardd.protocol.heartbeats import HeartbeatTimeout
from shardd.protocol.leases import LeaseFiles
from shardd.protocol.poll_requests import PollMessages, StoreOffset, WaitForMessages, WaitingPoll
from shardd.protocol.positions import PollPosition, PositionHead, StorePosition
from shardd.protocol.primitives import Payload, Reader
from shardd.protocol.producers import InitProducer, Produced, ProducerEpoch, SendOnce, SendOnceDigest
from shardd.protocol.reply_forms import each, empty, one, optional, raw
from shardd.protocol.requests import (
    CreateGroupRequest,
    CreateStreamRequest,
    CreateTopicRequest,
    Empty,
    FlushUnsavedBuffer,
    GetClient,
    GroupRequest,
    Login,
    OffsetRequest,
    PartitionsRequest,
    StreamRequest,
    TopicRequest,
    UpdateStreamRequest,
    UpdateTopicRequest,
)
from shardd.protocol.send_request import SendMessages
from shardd.protocol.topic_change import ChangeTopic
from shardd.protocol.unused_offsets import UnusedOffsets, UnusedPage

_HTTP: Final = frozenset({"http"})
_FOLLOWING: Final = frozenset({"http", "liftbridge"})  # doors that hand on messages as they come

# ---- the server, its clients ----

PING: Final = CommandEntry(
    Code.PING, Empty, empty, Repeat.YES, payload_bytes_max=limits.CONTROL_PAYLOAD_BYTES_MAX, before_login=True
)
GET_STATS: Final = CommandEntry(
    Code.GET_STATS, Empty, one(system_replies.ServerStats.read), Repeat.YES, answer_bytes=WIDE_ANSWER_BYTES
)
GET_SNAPSHOT: Final = CommandEntry(
    Code.GET_SNAPSHOT, account_requests.GetSnapshot, raw, Repeat.YES, answer_bytes=WIDE_ANSWER_BYTES
)
GET_CLUSTER_METADATA: Final = CommandEntry(
    Code.GET_CLUSTER_METADATA,
    Empty,
    one(system_replies.ClusterMetadata.read),
    Repeat.YES,
    answer_bytes=WIDE_ANSWER_BYTES,
)
GET_ME: Final = CommandEntry(
    Code.GET_ME, Empty, one(system_replies.ClientSummary.read_details), Repeat.YES, answer_bytes=WIDE_ANSWER_BYTES
)
GET_CLIENT: Final = CommandEntry(
    Code.GET_CLIENT,
    GetClient,
    optional(system_replies.ClientSummary.read_details),
    Repeat.YES,
    answer_bytes=WIDE_ANSWER_BYTES,
)
GET_CLIENTS: Final = CommandEntry(
    Code.GET_CLIENTS, Empty, each(system_replies.ClientEntry.read), Repeat.YES, answer_bytes=WIDE_ANSWER_BYTES
)

# ---- users, logins, tokens ----

GET_USER: Final = CommandEntry(
    Code.GET_USER,
    account_requests.UserRequest,
    optional(account_replies.UserDetails.read_details),
    Repeat.YES,
    answer_bytes=WIDE_ANSWER_BYTES,
)
GET_USERS: Final = CommandEntry(
    Code.GET_USERS, Empty, each(account_replies.UserDetails.read), Repeat.YES, answer_bytes=WIDE_ANSWER_BYTES
)
CREATE_USER: Final = CommandEntry(
    Code.CREATE_USER,
    account_requests.CreateUserRequest,
    one(account_replies.UserDetails.read_details),
    payload_bytes_max=PERMISSIONS_BYTES,
    rights_first=True,
    operation=141,
)
DELETE_USER: Final = CommandEntry(Code.DELETE_USER, account_requests.UserRequest, empty, operation=143)
UPDATE_USER: Final = CommandEntry(
    Code.UPDATE_USER, account_requests.UpdateUserRequest, empty, Repeat.YES, operation=142
)
UPDATE_PERMISSIONS: Final = CommandEntry(
    Code.UPDATE_PERMISSIONS,
    account_requests.UpdatePermissionsRequest,
    empty,
    Repeat.YES,
    payload_bytes_max=PERMISSIONS_BYTES,
    rights_first=True,
    operation=145,
)
CHANGE_PASSWORD: Final = CommandEntry(
    Code.CHANGE_PASSWORD, account_requests.ChangePasswordRequest, empty, operation=144
)
LOGIN_USER: Final = CommandEntry(
    Code.LOGIN_USER, Login, one(account_replies.LoggedIn.read), Repeat.YES, before_login=True, changes_login=True
)
LOGOUT_USER: Final = CommandEntry(Code.LOGOUT_USER, Empty, empty, changes_login=True, operation=3)
GET_PERSONAL_ACCESS_TOKENS: Final = CommandEntry(
    Code.GET_PERSONAL_ACCESS_TOKENS,
    Empty,
    each(account_replies.TokenSummary.read),
    Repeat.YES,
    answer_bytes=WIDE_ANSWER_BYTES,
)
CREATE_PERSONAL_ACCESS_TOKEN: Final = CommandEntry(
    Code.CREATE_PERSONAL_ACCESS_TOKEN,
    account_requests.CreateTokenRequest,
    one(account_replies.TokenSecret.read),
    operation=146,
)
DELETE_PERSONAL_ACCESS_TOKEN: Final = CommandEntry(
    Code.DELETE_PERSONAL_ACCESS_TOKEN, account_requests.DeleteTokenRequest, empty, operation=147
)
LOGIN_WITH_PERSONAL_ACCESS_TOKEN: Final = CommandEntry(
    Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN,
    account_requests.TokenLogin,
    one(account_replies.LoggedIn.read),
    Repeat.YES,
    before_login=True,
    changes_login=True,
)

# ---- messages and offsets ----

POLL_MESSAGES: Final = CommandEntry(
    Code.POLL_MESSAGES,
    PollMessages,
    one(replies.PolledRecords.read),
    Repeat.BY_REQUEST,
    answer_bytes=limits.POLLED_BYTES_MAX,
)
SEND_MESSAGES: Final = CommandEntry(
    Code.SEND_MESSAGES, SendMessages, empty, payload_bytes_max=SEND_BYTES, in_engine=True, operation=160
)
FLUSH_UNSAVED_BUFFER: Final = CommandEntry(Code.FLUSH_UNSAVED_BUFFER, FlushUnsavedBuffer, empty, Repeat.YES)
GET_CONSUMER_OFFSET: Final = CommandEntry(
    Code.GET_CONSUMER_OFFSET,
    OffsetRequest,
    optional(replies.ConsumerOffset.read),
    Repeat.YES,
    answer_bytes=WIDE_ANSWER_BYTES,
)
STORE_CONSUMER_OFFSET: Final = CommandEntry(Code.STORE_CONSUMER_OFFSET, StoreOffset, empty, Repeat.YES, operation=161)
DELETE_CONSUMER_OFFSET: Final = CommandEntry(Code.DELETE_CONSUMER_OFFSET, OffsetRequest, empty, operation=162)

# ---- streams, topics, partitions ----

GET_STREAM: Final = CommandEntry(
    Code.GET_STREAM, StreamRequest, optional(replies.StreamDetails.read), Repeat.YES, answer_bytes=WIDE_ANSWER_BYTES
)
GET_STREAMS: Final = CommandEntry(
    Code.GET_STREAMS, Empty, each(replies.StreamSummary.read), Repeat.YES, answer_bytes=WIDE_ANSWER_BYTES
)
CREATE_STREAM: Final = CommandEntry(
    Code.CREATE_STREAM, CreateStreamRequest, one(replies.StreamSummary.read), operation=128
)
DELETE_STREAM: Final = CommandEntry(Code.DELETE_STREAM, StreamRequest, empty, operation=130)
UPDATE_STREAM: Final = CommandEntry(Code.UPDATE_STREAM, UpdateStreamRequest, empty, operation=129)
PURGE_STREAM: Final = CommandEntry(Code.PURGE_STREAM, StreamRequest, empty, operation=131)
GET_TOPIC: Final = CommandEntry(
    Code.GET_TOPIC, TopicRequest, optional(replies.TopicDetails.read), Repeat.YES, answer_bytes=WIDE_ANSWER_BYTES
)
GET_TOPICS: Final = CommandEntry(
    Code.GET_TOPICS, StreamRequest, each(replies.TopicSummary.read), Repeat.YES, answer_bytes=WIDE_ANSWER_BYTES
)
CREATE_TOPIC: Final = CommandEntry(Code.CREATE_TOPIC, CreateTopicRequest, one(replies.TopicDetails.read), operation=132)
DELETE_TOPIC: Final = CommandEntry(Code.DELETE_TOPIC, TopicRequest, empty, operation=134)
UPDATE_TOPIC: Final = CommandEntry(Code.UPDATE_TOPIC, UpdateTopicRequest, empty, operation=133)
PURGE_TOPIC: Final = CommandEntry(Code.PURGE_TOPIC, TopicRequest, empty, operation=135)
CREATE_PARTITIONS: Final = CommandEntry(Code.CREATE_PARTITIONS, PartitionsRequest, empty, operation=136)
DELETE_PARTITIONS: Final = CommandEntry(Code.DELETE_PARTITIONS, PartitionsRequest, empty, operation=137)
DELETE_SEGMENTS: Final = CommandEntry(Code.DELETE_SEGMENTS, account_requests.DeleteSegments, empty, operation=138)

# ---- consumer groups ----

GET_CONSUMER_GROUP: Final = CommandEntry(
    Code.GET_CONSUMER_GROUP,
    GroupRequest,
    optional(replies.GroupDetails.read),
    Repeat.YES,
    answer_bytes=WIDE_ANSWER_BYTES,
)
GET_CONSUMER_GROUPS: Final = CommandEntry(
    Code.GET_CONSUMER_GROUPS, TopicRequest, each(replies.GroupSummary.read), Repeat.YES, answer_bytes=WIDE_ANSWER_BYTES
)
CREATE_CONSUMER_GROUP: Final = CommandEntry(
    Code.CREATE_CONSUMER_GROUP, CreateGroupRequest, one(replies.GroupSummary.read), operation=139
)
DELETE_CONSUMER_GROUP: Final = CommandEntry(Code.DELETE_CONSUMER_GROUP, GroupRequest, empty, operation=140)
JOIN_CONSUMER_GROUP: Final = CommandEntry(
    Code.JOIN_CONSUMER_GROUP, GroupRequest, empty, Repeat.YES, needs_connection=True, operation=148
)
LEAVE_CONSUMER_GROUP: Final = CommandEntry(
    Code.LEAVE_CONSUMER_GROUP, GroupRequest, empty, needs_connection=True, operation=149
)

# ---- extensions ----

LIST_EXTENSIONS: Final = CommandEntry(
    ExtensionCode.LIST_EXTENSIONS, ExtensionRequest, one(ExtensionList.read), Repeat.YES, version=1
)
GET_METRICS: Final = CommandEntry(
    ExtensionCode.GET_METRICS,
    ExtensionRequest,
    one(Metrics.read),
    Repeat.YES,
    answer_bytes=WIDE_ANSWER_BYTES,
    version=1,
)
ANNOUNCE_HEARTBEAT: Final = CommandEntry(
    ExtensionCode.ANNOUNCE_HEARTBEAT,
    HeartbeatTimeout,
    one(HeartbeatTimeout.read),
    Repeat.YES,
    needs_connection=True,
    version=1,
)
GET_PARTITION_BOUNDS: Final = CommandEntry(
    ExtensionCode.GET_PARTITION_BOUNDS,
    bounds.GetPartitionBounds,
    bounds.decode_reply,
    Repeat.YES,
    payload_bytes_max=BOUNDS_BYTES,
    answer_bytes=WIDE_ANSWER_BYTES,
    version=4,
)
LEASE_FILES: Final = CommandEntry(
    ExtensionCode.LEASE_FILES, LeaseFiles, empty, Repeat.YES, needs_connection=True, version=1
)
UNUSED_OFFSETS: Final = CommandEntry(
    ExtensionCode.UNUSED_OFFSETS,
    UnusedOffsets,
    one(UnusedPage.read),
    Repeat.BY_REQUEST,
    needs_connection=True,
    version=1,
)
SEND_ONCE_DIGEST: Final = CommandEntry(
    ExtensionCode.SEND_ONCE_DIGEST,
    SendOnceDigest,
    one(Produced.read),
    Repeat.YES,
    payload_bytes_max=SEND_ONCE_BYTES,
    needs_connection=True,
    in_engine=True,
    version=1,
)
POLL_AND_WAIT: Final = CommandEntry(
    ExtensionCode.POLL_AND_WAIT,
    WaitingPoll,
    one(replies.PolledRecords.read),
    Repeat.BY_REQUEST,
    answer_bytes=limits.POLLED_BYTES_MAX,
    needs_connection=True,
    version=1,
)
POLL_POSITION: Final = CommandEntry(
    ExtensionCode.POLL_POSITION,
    PollPosition,
    one(PositionHead.read),
    Repeat.BY_REQUEST,
    answer_bytes=limits.POLLED_BYTES_MAX,
    needs_connection=True,
    version=1,
)
STORE_POSITION: Final = CommandEntry(
    ExtensionCode.STORE_POSITION, StorePosition, empty, Repeat.YES, needs_connection=True, version=1
)
SET_TOPIC_SETTINGS: Final = CommandEntry(
    ExtensionCode.SET_TOPIC_SETTINGS,
    topic_settings.SetTopicSettings,
    empty,
    Repeat.YES,
    payload_bytes_max=SETTINGS_BYTES,
    version=1,
)
GET_TOPIC_SETTINGS: Final = CommandEntry(
    ExtensionCode.GET_TOPIC_SETTINGS,
    topic_settings.GetTopicSettings,
    topic_settings.decode_reply,
    Repeat.YES,
    answer_bytes=WIDE_ANSWER_BYTES,
    version=1,
)
CHANGE_TOPIC: Final = CommandEntry(ExtensionCode.CHANGE_TOPIC, ChangeTopic, empty, Repeat.YES, version=1)
INIT_PRODUCER: Final = CommandEntry(
    ExtensionCode.INIT_PRODUCER,
    InitProducer,
    one(ProducerEpoch.read),
    Repeat.BY_REQUEST,
    needs_connection=True,
    version=1,
)
SEND_ONCE: Final = CommandEntry(
    ExtensionCode.SEND_ONCE,
    SendOnce,
    one(Produced.read),
    Repeat.YES,
    payload_bytes_max=SEND_ONCE_BYTES,
    needs_connection=True,
    in_engine=True,
    version=1,
)

# ---- doors ----

CREATE_ACCESS_TOKEN: Final = CommandEntry(DoorCode.CREATE_ACCESS_TOKEN, Empty, one(AccessToken.read), doors=_HTTP)
REFRESH_ACCESS_TOKEN: Final = CommandEntry(DoorCode.REFRESH_ACCESS_TOKEN, Empty, one(AccessToken.read), doors=_HTTP)
REVOKE_ACCESS_TOKEN: Final = CommandEntry(DoorCode.REVOKE_ACCESS_TOKEN, Empty, empty, doors=_HTTP)
WAIT_FOR_MESSAGES: Final = CommandEntry(
    DoorCode.WAIT_FOR_MESSAGES, WaitForMessages, one(Reader.flag), Repeat.YES, answer_bytes=0, doors=_FOLLOWING
)
POLL_RANGE: Final = CommandEntry(
    DoorCode.POLL_RANGE,
    PollMessages,
    one(replies.PolledRange.read),
    Repeat.BY_REQUEST,
    answer_bytes=limits.POLLED_BYTES_MAX,
    doors=_FOLLOWING,
)


COMMANDS: Final[Mapping[int, CommandEntry[Any, Any]]] = {
    int(row.code): row for row in [*globals().values()] if isinstance(row, CommandEntry)
}
EXTENSIONS: Final = tuple(Extension(row.code, row.version, row.name) for row in COMMANDS.values() if row.version)
ALLOWED_WITHOUT_LOGIN: Final = frozenset(code for code, row in COMMANDS.items() if row.before_login)
"""docs/protocol/sessions.md#without-login."""
_NAMES: Final = {code: row.code.name for code, row in COMMANDS.items()}


def command_name(code: int) -> str:
    """The command that a frame asks for, as spans and figures call it."""
    return _NAMES.get(code, "unknown command")


def decode(code: int, payload: Payload, door: str = "") -> WireRequest:
    """The request of a whole payload (without the frame's length and code). `door`: the kind of the door whose client
    asks; "": a connection does.

    Raises `ShardError`: 3 for a code that is unknown or another port's, a cut payload, bad UTF-8 or an unknown
    discriminant; 4 for a broken structural rule; 5 for a client of a door that would need a connection. Surplus bytes
    are ignored.
    """
    entry = COMMANDS.get(code)
    if entry is None or not (_is_of_door(entry, door) if door else _is_of_connections(entry)):
        raise ShardError(Status.INVALID_COMMAND, f"unknown command code {code}")
    if door and entry.needs_connection:
        raise ShardError(Status.FEATURE_UNAVAILABLE, f"{entry.name} needs a connection")
    request: WireRequest = entry.request.read(Reader(payload))
    return request


def _is_of_door(entry: CommandEntry[Any, Any], door: str) -> bool:
    return not entry.changes_login and (not entry.doors or door in entry.doors)


def _is_of_connections(entry: CommandEntry[Any, Any]) -> bool:
    return not entry.in_engine and not entry.doors
