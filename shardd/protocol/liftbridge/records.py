"""How a message of Liftbridge lies in a native record, and what a record says as one (docs/adr/0080-liftbridge.md): the
value is the payload, so that every native reader gets it; key, subject and headers are user headers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from shardd.protocol.liftbridge.api_messages import Message
from shardd.protocol.limits import USER_HEADERS_BYTES_MAX
from shardd.protocol.record_layout import RECORD_HEAD

RESERVED: Final = frozenset({"subject", "reply"})
"""Headers that readers get from the subjects of a message; those of a publisher are dropped, as Liftbridge does."""
_OWN: Final = "lb."
_KEY: Final = "lb.key"
_SUBJECT: Final = "lb.subj"
_REPLY: Final = "lb.reply"
_EMPTY: Final = "lb.empty"  # of a record whose value is empty: natively a payload has a byte at least
_WHOLE: Final = "lb.env"  # of a record whose payload is an encoded `Message`
_ESCAPED: Final = "lb.h."  # before names that begin as ours
_PIECE: Final = "lb.x"  # with a number: pieces of an encoded `Message` with what fits into no header
_NATIVE: Final = "native."  # before names of a native producer that Liftbridge reserves
_UNREADABLE: Final = "native.headers"
_EMPTY_PAYLOAD: Final = b"\x00"
_NO_ID: Final = bytes(16)
_PART_BYTES_MAX: Final = 255
_PART: Final = struct.Struct("<BI")  # kind, length
_RAW, _STRING, _UINT8 = 1, 2, 9


class LiftbridgeMessage(msgspec.Struct, frozen=True, gc=False):
    """A published message. `headers` has no RESERVED header: readers get these from `subject`, on which the message
    arrived, and `reply_subject`. A `subject` of "" means the subject of the partition."""

    value: bytes
    key: bytes = b""
    headers: Mapping[str, bytes] = {}
    subject: str = ""
    reply_subject: str = ""


class RecordTooLargeError(Exception):
    """A message that is larger than a record can be."""


def encode_records(
    messages: Iterable[LiftbridgeMessage], partition_subject: str, payload_bytes_max: int
) -> Iterator[bytes]:
    """The native record of each message, without id, offset and times: the engine writes these.

    RecordTooLargeError."""
    pack = RECORD_HEAD.pack
    for message in messages:
        payload, headers = stored(message, partition_subject, payload_bytes_max)
        yield pack(0, _NO_ID, 0, 0, 0, len(headers), len(payload), 0) + payload + headers


def stored(message: LiftbridgeMessage, partition_subject: str, payload_bytes_max: int) -> tuple[bytes, bytes]:
    """The payload and the user headers of the record. RecordTooLargeError."""
    payload, parts = message.value, []
    if not payload:
        payload = _EMPTY_PAYLOAD
        parts.append(_entry(_EMPTY, b"\x01", _UINT8))
    subject = "" if message.subject == partition_subject else message.subject
    rest = None  # what no header holds
    if len(message.key) > _PART_BYTES_MAX:
        rest = Message(key=message.key)
    elif message.key:
        parts.append(_entry(_KEY, message.key))
    for name, text in ((_SUBJECT, subject), (_REPLY, message.reply_subject)):
        if not text:
            continue
        encoded = text.encode()
        if len(encoded) > _PART_BYTES_MAX:
            rest = rest or Message()
            if name == _SUBJECT:
                rest.subject = text
            else:
                rest.replySubject = text
        else:
            parts.append(_entry(name, encoded, _STRING))
    for name, value in message.headers.items():
        if name in RESERVED:
            continue
        own = _ESCAPED + name if name.startswith(_OWN) else name
        if 1 <= len(own.encode()) <= _PART_BYTES_MAX and 1 <= len(value) <= _PART_BYTES_MAX:
            parts.append(_entry(own, value))
        else:
            rest = rest or Message()
            rest.headers[name] = value
    if rest is not None:
        parts += _pieces(rest.SerializeToString(deterministic=True))
    block = b"".join(parts)
    if len(block) > USER_HEADERS_BYTES_MAX:
        payload, block = _whole(message, subject), _entry(_WHOLE, b"\x01", _UINT8)
    if len(payload) > payload_bytes_max:
        raise RecordTooLargeError(f"a record takes {payload_bytes_max} bytes, this message has {len(payload)}")
    return payload, block


def loaded(payload: bytes, block: bytes, partition_subject: str) -> LiftbridgeMessage:
    """The message of a record, whoever wrote it: native producers may write anything that they like, also what begins
    as our names do, so nothing here is an error."""
    try:
        entries = dict(_entries(block))
    except (struct.error, ValueError):
        return LiftbridgeMessage(payload, headers={_UNREADABLE: block}, subject=partition_subject)
    if _WHOLE in entries:
        whole = _decoded(payload)
        if whole is not None:
            subject = whole.subject or partition_subject
            return LiftbridgeMessage(whole.value, whole.key, _unreserved(whole.headers), subject, whole.replySubject)
    rest = _decoded(b"".join(_pieces_of(entries))) or Message()
    headers = {}
    for name, value in entries.items():
        if name.startswith(_ESCAPED):
            headers[name.removeprefix(_ESCAPED)] = value
        elif not name.startswith(_OWN):
            headers[_NATIVE + name if name in RESERVED else name] = value
    headers.update(_unreserved(rest.headers))
    return LiftbridgeMessage(
        b"" if _EMPTY in entries and payload == _EMPTY_PAYLOAD else payload,
        rest.key or entries.get(_KEY, b""),
        headers,
        rest.subject or _text(entries.get(_SUBJECT, b"")) or partition_subject,
        rest.replySubject or _text(entries.get(_REPLY, b"")),
    )


def _whole(message: LiftbridgeMessage, subject: str) -> bytes:
    return Message(
        key=message.key,
        value=message.value,
        headers=_unreserved(message.headers),
        subject=subject,
        replySubject=message.reply_subject,
    ).SerializeToString(deterministic=True)


def _unreserved(headers: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: value for name, value in headers.items() if name not in RESERVED}


def _entry(name: str, value: bytes, kind: int = _RAW) -> bytes:
    key = name.encode()
    return _PART.pack(_STRING, len(key)) + key + _PART.pack(kind, len(value)) + value


def _pieces(encoded: bytes) -> list[bytes]:
    starts = range(0, len(encoded), _PART_BYTES_MAX)
    if len(encoded) > USER_HEADERS_BYTES_MAX:
        return [encoded]  # too long for headers in any way: the caller sees the length
    return [_entry(f"{_PIECE}{n}", encoded[at : at + _PART_BYTES_MAX]) for n, at in enumerate(starts)]


def _pieces_of(entries: Mapping[str, bytes]) -> Iterator[bytes]:
    for number in range(len(entries)):
        piece = entries.get(f"{_PIECE}{number}")
        if piece is None:
            return
        yield piece


def _decoded(encoded: bytes) -> Message | None:
    try:
        return Message.FromString(encoded)
    except DecodeError:
        return None


def _entries(block: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and the bytes of values: numbers are little-endian. ValueError, struct.error: no such block."""
    at = 0
    while at < len(block):
        name, at = _part_at(block, at)
        value, at = _part_at(block, at)
        yield _text(name), value


def _part_at(block: bytes, at: int) -> tuple[bytes, int]:
    _kind, length = _PART.unpack_from(block, at)
    start = at + _PART.size
    if not 1 <= length <= _PART_BYTES_MAX or start + length > len(block):
        raise ValueError
    return block[start : start + length], start + length


def _text(value: bytes) -> str:
    """A native name is what its producer made of it; texts of Liftbridge are UTF-8."""
    return value.decode(errors="replace")
