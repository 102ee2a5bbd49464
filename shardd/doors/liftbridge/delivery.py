"""Records of a partition as the `Message`s that subscribers get, encoded: this is most of what a subscription costs, so
no object is made of a message that has no headers."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from shardd.protocol.liftbridge.positions import NO_STOP
from shardd.protocol.liftbridge.records import LiftbridgeMessage, loaded
from shardd.protocol.record_layout import RECORD_HEAD

_OFFSET, _KEY, _VALUE, _TIMESTAMP = b"\x08", b"\x12", b"\x1a", b"\x20"
_STREAM, _PARTITION, _SUBJECT, _REPLY, _HEADERS = b"\x2a", b"\x30", b"\x3a", b"\x42", b"\x4a"
_NAME, _HEADER_VALUE = b"\x0a", b"\x12"
_NS_PER_US: Final = 1_000
_BYTE: Final = [bytes((number,)) for number in range(128)]


class Delivered(msgspec.Struct, frozen=True):
    """`messages`: encoded. `next_offset`: where it goes on. `reached`: the stop, all up to it is among them.
    `larger_bytes`: of the first record, when it alone is more than was allowed; then there are no messages."""

    messages: list[bytes]
    next_offset: int
    reached: bool = False
    larger_bytes: int = 0


class Frame:
    """What all messages of a partition have in common."""

    def __init__(self, stream: str, partition: int, subject: str) -> None:
        self.subject = subject
        self._stream = _text(_STREAM, stream) + (_PARTITION + varint(partition) if partition else b"")
        self._plain = self._stream + _text(_SUBJECT, subject) + _own_headers(subject, "")

    def delivered(self, records: bytes, count: int, begin: int, stop: int, bytes_max: int) -> Delivered:
        """Those from `begin` on, through `stop`, for as long as they have no more than `bytes_max`. ValueError: records
        are cut."""
        unpack, head_bytes = RECORD_HEAD.unpack_from, RECORD_HEAD.size
        messages: list[bytes] = []
        at, total, following = 0, 0, begin
        try:
            for _ in range(count):
                _, _, offset, timestamp_us, _, headers, payload, _ = unpack(records, at)
                if stop != NO_STOP and offset > stop:
                    return Delivered(messages, following, reached=True)
                body = at + head_bytes
                end = body + payload
                total += head_bytes + payload + headers
                if total > bytes_max:
                    return Delivered(messages, following, larger_bytes=0 if messages else total)
                at = end + headers
                if at > len(records):
                    raise ValueError("the records are cut")
                if offset >= begin:
                    value, block = records[body:end], records[end:at]
                    messages.append(self._message(offset, timestamp_us * _NS_PER_US, value, block))
                    following = offset + 1
                    if offset == stop:
                        return Delivered(messages, following, reached=True)
        except struct.error:
            raise ValueError("the records are cut") from None
        return Delivered(messages, following)

    def _message(self, offset: int, timestamp_ns: int, payload: bytes, block: bytes) -> bytes:
        head = (_OFFSET + varint(offset) if offset else b"", _TIMESTAMP, varint(timestamp_ns))
        if not block:
            return b"".join((*head, _VALUE, varint(len(payload)), payload, self._plain))
        return b"".join((*head, *self._fields(loaded(payload, block, self.subject))))

    def _fields(self, message: LiftbridgeMessage) -> Iterable[bytes]:
        if message.key:
            yield from (_KEY, varint(len(message.key)), message.key)
        if message.value:
            yield from (_VALUE, varint(len(message.value)), message.value)
        yield self._stream
        yield _text(_SUBJECT, message.subject)
        if message.reply_subject:
            yield _text(_REPLY, message.reply_subject)
        for name, value in message.headers.items():
            yield _header(name, value)
        yield _own_headers(message.subject, message.reply_subject)


def varint(number: int) -> bytes:
    """As protobuf has it; negative ones as u64."""
    if 0 <= number < 0x80:
        return _BYTE[number]
    number &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _text(tag: bytes, text: str) -> bytes:
    data = text.encode()
    return tag + varint(len(data)) + data


def _header(name: str, value: bytes) -> bytes:
    entry = _text(_NAME, name) + _HEADER_VALUE + varint(len(value)) + value
    return _HEADERS + varint(len(entry)) + entry


def _own_headers(subject: str, reply: str) -> bytes:
    return _header("subject", subject.encode()) + _header("reply", reply.encode())
