"""Requests of 0.0.11 to 0.0.14, which name everything by numbers of four bytes: as 0.0.15 writes them
(docs/protocol/legacy.md#numbered)."""

from __future__ import annotations

from typing import Final

from shardd.protocol import primitives as wire
from shardd.protocol.catalogue import COMMANDS
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status

_NUMBERED: Final = frozenset(
    {
        Code.GET_STREAM,
        Code.DELETE_STREAM,
        Code.GET_TOPICS,
        Code.CREATE_TOPIC,
        Code.GET_TOPIC,
        Code.DELETE_TOPIC,
        Code.CREATE_PARTITIONS,
        Code.DELETE_PARTITIONS,
        Code.SEND_MESSAGES,
        Code.POLL_MESSAGES,
        Code.STORE_CONSUMER_OFFSET,
        Code.GET_CONSUMER_OFFSET,
        Code.GET_CONSUMER_GROUPS,
        Code.CREATE_CONSUMER_GROUP,
        Code.GET_CONSUMER_GROUP,
        Code.DELETE_CONSUMER_GROUP,
        Code.JOIN_CONSUMER_GROUP,
        Code.LEAVE_CONSUMER_GROUP,
    }
)
# How many numbers name the stream and the topic; they begin the payload, or stand behind the consumer.
_NUMBERS: Final[dict[int, int]] = {
    code: len({"stream", "topic"} & {*COMMANDS[code].request.__struct_fields__}) for code in _NUMBERED
}
_BEHIND_CONSUMER: Final = frozenset({Code.POLL_MESSAGES, Code.STORE_CONSUMER_OFFSET, Code.GET_CONSUMER_OFFSET})
_CONSUMER_BYTES: Final = 5  # kind and number
_NUMBER_BYTES: Final = 4
_IDENTIFIER_HEAD: Final = b"\x01\x04"  # a number of four bytes follows


def is_numbered(code: int, payload: bytes) -> bool:
    """Where newer releases have an identifier stands a number below 65,536. As an identifier it would have no length,
    or be a name of zeros, or an id that is a multiple of 65,536: none of them names anything."""
    if code not in _NUMBERS:
        return False
    at = _CONSUMER_BYTES if code in _BEHIND_CONSUMER else 0
    number = payload[at : at + _NUMBER_BYTES]
    return len(number) == _NUMBER_BYTES and number[:2] != b"\0\0" and number[2:] == b"\0\0"


def with_identifiers(code: int, payload: bytes) -> bytes:
    """Also kinds begin at 1 from then on, and a SEND has no count. 0.0.14 has identifiers in SEND and POLL already."""
    if code not in _NUMBERS:
        return payload
    at = 0
    parts: list[bytes] = []
    if code in _BEHIND_CONSUMER:
        parts.append(_next_kind(payload, 0) + payload[1:_CONSUMER_BYTES])
        at = _CONSUMER_BYTES
    if is_numbered(code, payload):
        for _ in range(_NUMBERS[code]):
            parts.append(_IDENTIFIER_HEAD + payload[at : at + _NUMBER_BYTES])
            at += _NUMBER_BYTES
    else:
        for _ in range(_NUMBERS[code]):
            length = 2 + (payload[at + 1] if at + 1 < len(payload) else 0)
            parts.append(payload[at : at + length])
            at += length
    rest = payload[at:]
    if code == Code.SEND_MESSAGES:
        value_end = 2 + (rest[1] if len(rest) > 1 else 0)
        rest = _next_kind(rest, 0) + rest[1:value_end] + rest[value_end + _NUMBER_BYTES :]
    elif code == Code.POLL_MESSAGES:
        rest = rest[:_NUMBER_BYTES] + _next_kind(rest, _NUMBER_BYTES) + rest[_NUMBER_BYTES + 1 :]
    return b"".join((*parts, rest))


def _next_kind(data: bytes, at: int) -> bytes:
    if at >= len(data) or data[at] == 0xFF:
        raise ShardError(Status.INVALID_COMMAND, "payload is cut")
    return wire.u8(data[at] + 1)
