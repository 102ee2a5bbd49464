"""Commands of the server: code, name, and whether a second execution is as good as one, so that the client may ask
again when no answer came. Made of the catalogue of the server by `python -m tests.client.command_codes --write`."""

from __future__ import annotations

from typing import Final, NamedTuple


class CommandCode(NamedTuple):
    """`repeatable`: of each request. Where a field of the request decides, it is False here."""

    code: int
    name: str
    repeatable: bool


PING: Final = CommandCode(1, "ping", True)
GET_STATS: Final = CommandCode(10, "get_stats", True)
GET_SNAPSHOT: Final = CommandCode(11, "get_snapshot", True)
GET_CLUSTER_METADATA: Final = CommandCode(12, "get_cluster_metadata", True)
GET_ME: Final = CommandCode(20, "get_me", True)
GET_CLIENT: Final = CommandCode(21, "get_client", True)
GET_CLIENTS: Final = CommandCode(22, "get_clients", True)
GET_USER: Final = CommandCode(31, "get_user", True)
GET_USERS: Final = CommandCode(32, "get_users", True)
CREATE_USER: Final = CommandCode(33, "create_user", False)
DELETE_USER: Final = CommandCode(34, "delete_user", False)
UPDATE_USER: Final = CommandCode(35, "update_user", True)
UPDATE_PERMISSIONS: Final = CommandCode(36, "update_permissions", True)
CHANGE_PASSWORD: Final = CommandCode(37, "change_password", False)
LOGIN_USER: Final = CommandCode(38, "login_user", True)
LOGOUT_USER: Final = CommandCode(39, "logout_user", False)
GET_PERSONAL_ACCESS_TOKENS: Final = CommandCode(41, "get_personal_access_tokens", True)
CREATE_PERSONAL_ACCESS_TOKEN: Final = CommandCode(42, "create_personal_access_token", False)
DELETE_PERSONAL_ACCESS_TOKEN: Final = CommandCode(43, "delete_personal_access_token", False)
LOGIN_WITH_PERSONAL_ACCESS_TOKEN: Final = CommandCode(44, "login_with_personal_access_token", True)
POLL_MESSAGES: Final = CommandCode(100, "poll_messages", False)
SEND_MESSAGES: Final = CommandCode(101, "send_messages", False)
FLUSH_UNSAVED_BUFFER: Final = CommandCode(102, "flush_unsaved_buffer", True)
GET_CONSUMER_OFFSET: Final = CommandCode(120, "get_consumer_offset", True)
STORE_CONSUMER_OFFSET: Final = CommandCode(121, "store_consumer_offset", True)
DELETE_CONSUMER_OFFSET: Final = CommandCode(122, "delete_consumer_offset", False)
GET_STREAM: Final = CommandCode(200, "get_stream", True)
GET_STREAMS: Final = CommandCode(201, "get_streams", True)
CREATE_STREAM: Final = CommandCode(202, "create_stream", False)
DELETE_STREAM: Final = CommandCode(203, "delete_stream", False)
UPDATE_STREAM: Final = CommandCode(204, "update_stream", False)
PURGE_STREAM: Final = CommandCode(205, "purge_stream", False)
GET_TOPIC: Final = CommandCode(300, "get_topic", True)
GET_TOPICS: Final = CommandCode(301, "get_topics", True)
CREATE_TOPIC: Final = CommandCode(302, "create_topic", False)
DELETE_TOPIC: Final = CommandCode(303, "delete_topic", False)
UPDATE_TOPIC: Final = CommandCode(304, "update_topic", False)
PURGE_TOPIC: Final = CommandCode(305, "purge_topic", False)
CREATE_PARTITIONS: Final = CommandCode(402, "create_partitions", False)
DELETE_PARTITIONS: Final = CommandCode(403, "delete_partitions", False)
DELETE_SEGMENTS: Final = CommandCode(503, "delete_segments", False)
GET_CONSUMER_GROUP: Final = CommandCode(600, "get_consumer_group", True)
GET_CONSUMER_GROUPS: Final = CommandCode(601, "get_consumer_groups", True)
CREATE_CONSUMER_GROUP: Final = CommandCode(602, "create_consumer_group", False)
DELETE_CONSUMER_GROUP: Final = CommandCode(603, "delete_consumer_group", False)
JOIN_CONSUMER_GROUP: Final = CommandCode(604, "join_consumer_group", True)
LEAVE_CONSUMER_GROUP: Final = CommandCode(605, "leave_consumer_group", False)
LIST_EXTENSIONS: Final = CommandCode(0x5344_0000, "list_extensions", True)
GET_METRICS: Final = CommandCode(0x5344_0001, "get_metrics", True)
ANNOUNCE_HEARTBEAT: Final = CommandCode(0x5344_0002, "announce_heartbeat", True)
GET_PARTITION_BOUNDS: Final = CommandCode(0x5344_0010, "get_partition_bounds", True)
LEASE_FILES: Final = CommandCode(0x5344_0012, "lease_files", True)
UNUSED_OFFSETS: Final = CommandCode(0x5344_0013, "unused_offsets", False)
SEND_ONCE_DIGEST: Final = CommandCode(0x5344_0015, "send_once_digest", True)
POLL_AND_WAIT: Final = CommandCode(0x5344_0018, "poll_and_wait", False)
POLL_POSITION: Final = CommandCode(0x5344_0019, "poll_position", False)
STORE_POSITION: Final = CommandCode(0x5344_001A, "store_position", True)
SET_TOPIC_SETTINGS: Final = CommandCode(0x5344_0020, "set_topic_settings", True)
GET_TOPIC_SETTINGS: Final = CommandCode(0x5344_0021, "get_topic_settings", True)
CHANGE_TOPIC: Final = CommandCode(0x5344_0023, "change_topic", True)
INIT_PRODUCER: Final = CommandCode(0x5344_0030, "init_producer", False)
SEND_ONCE: Final = CommandCode(0x5344_0031, "send_once", True)

ALL: Final = (
    PING,
    GET_STATS,
    GET_SNAPSHOT,
    GET_CLUSTER_METADATA,
    GET_ME,
    GET_CLIENT,
    GET_CLIENTS,
    GET_USER,
    GET_USERS,
    CREATE_USER,
    DELETE_USER,
    UPDATE_USER,
    UPDATE_PERMISSIONS,
    CHANGE_PASSWORD,
    LOGIN_USER,
    LOGOUT_USER,
    GET_PERSONAL_ACCESS_TOKENS,
    CREATE_PERSONAL_ACCESS_TOKEN,
    DELETE_PERSONAL_ACCESS_TOKEN,
    LOGIN_WITH_PERSONAL_ACCESS_TOKEN,
    POLL_MESSAGES,
    SEND_MESSAGES,
    FLUSH_UNSAVED_BUFFER,
    GET_CONSUMER_OFFSET,
    STORE_CONSUMER_OFFSET,
    DELETE_CONSUMER_OFFSET,
    GET_STREAM,
    GET_STREAMS,
    CREATE_STREAM,
    DELETE_STREAM,
    UPDATE_STREAM,
    PURGE_STREAM,
    GET_TOPIC,
    GET_TOPICS,
    CREATE_TOPIC,
    DELETE_TOPIC,
    UPDATE_TOPIC,
    PURGE_TOPIC,
    CREATE_PARTITIONS,
    DELETE_PARTITIONS,
    DELETE_SEGMENTS,
    GET_CONSUMER_GROUP,
    GET_CONSUMER_GROUPS,
    CREATE_CONSUMER_GROUP,
    DELETE_CONSUMER_GROUP,
    JOIN_CONSUMER_GROUP,
    LEAVE_CONSUMER_GROUP,
    LIST_EXTENSIONS,
    GET_METRICS,
    ANNOUNCE_HEARTBEAT,
    GET_PARTITION_BOUNDS,
    LEASE_FILES,
    UNUSED_OFFSETS,
    SEND_ONCE_DIGEST,
    POLL_AND_WAIT,
    POLL_POSITION,
    STORE_POSITION,
    SET_TOPIC_SETTINGS,
    GET_TOPIC_SETTINGS,
    CHANGE_TOPIC,
    INIT_PRODUCER,
    SEND_ONCE,
)
