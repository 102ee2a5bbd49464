"""Command codes of the classic protocol that this server serves (iggy-protocol 3). Every other code answers 3."""

from enum import IntEnum


class Code(IntEnum):
    """Request code of a frame."""

    PING = 1
    GET_STATS = 10
    GET_CLUSTER_METADATA = 12
    GET_ME = 20
    GET_CLIENT = 21
    GET_CLIENTS = 22
    LOGIN_USER = 38
    LOGOUT_USER = 39
    POLL_MESSAGES = 100
    SEND_MESSAGES = 101
    FLUSH_UNSAVED_BUFFER = 102
    GET_CONSUMER_OFFSET = 120
    STORE_CONSUMER_OFFSET = 121
    DELETE_CONSUMER_OFFSET = 122
    GET_STREAM = 200
    GET_STREAMS = 201
    CREATE_STREAM = 202
    DELETE_STREAM = 203
    UPDATE_STREAM = 204
    PURGE_STREAM = 205
    GET_TOPIC = 300
    GET_TOPICS = 301
    CREATE_TOPIC = 302
    DELETE_TOPIC = 303
    UPDATE_TOPIC = 304
    PURGE_TOPIC = 305
    CREATE_PARTITIONS = 402
    DELETE_PARTITIONS = 403


ALLOWED_WITHOUT_LOGIN = frozenset({Code.PING, Code.LOGIN_USER})
"""iggy-protocol 1.4; LOGIN_WITH_PAT (44) belongs to the tokens, which are not served."""
