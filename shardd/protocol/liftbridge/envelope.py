"""The envelope in which Liftbridge puts messages and acks on NATS (Lb 3), big-endian:

    0  4  magic B9 0E 43 B4
    4  1  version 0
    5  1  where the payload begins: 8, or 12 with a checksum
    6  1  flags; 1: there is a checksum, others do not count
    7  1  type: 0 a message, 1 an ack; others are between Liftbridge's own servers
    8  4  CRC-32C of the payload, with flag 1 only
       …  payload, protobuf: `Message` or `Ack`

What is no envelope of a message is a message all the same: a plain one, with all its bytes as its value."""

from __future__ import annotations

import struct
from typing import Final

import google_crc32c
import msgspec
from google.protobuf.message import DecodeError

from shardd.protocol.liftbridge.api_messages import Ack, Message
from shardd.protocol.liftbridge.records import LiftbridgeMessage

HEAD: Final = struct.Struct(">4sBBBB")
MAGIC: Final = b"\xb9\x0e\x43\xb4"
_CRC: Final = struct.Struct(">I")
_BEHIND_CRC: Final = HEAD.size + _CRC.size
_VERSION: Final = 0
_WITH_CRC: Final = 1
_PUBLISH, _ACK = 0, 1
_PUBLISH_HEAD: Final = HEAD.pack(MAGIC, _VERSION, HEAD.size, 0, _PUBLISH)
_ACK_HEAD: Final = HEAD.pack(MAGIC, _VERSION, HEAD.size, 0, _ACK)


class Published(msgspec.Struct, frozen=True, gc=False):
    """What counts of a message that came in an envelope. `ack_policy`: any number may stand there."""

    value: bytes
    key: bytes
    headers: dict[str, bytes]
    ack_inbox: str
    correlation_id: str
    ack_policy: int
    expected_offset: int

    def message(self, subject: str, reply: str) -> LiftbridgeMessage:
        return LiftbridgeMessage(self.value, self.key, self.headers, subject, reply)


def decode_publish(data: bytes) -> Published | None:
    """The message of an envelope; None: this is a plain one."""
    begin = _payload_begin(data)
    if begin is None:
        return None
    try:
        said = Message.FromString(data[begin:])
    except DecodeError:
        return None
    return Published(
        said.value,
        said.key,
        dict(said.headers),
        said.ackInbox,
        said.correlationId,
        said.ackPolicy,
        said.offset,
    )


def encode_publish(message: Message) -> bytes:
    """Without a checksum, as Liftbridge's are."""
    return _PUBLISH_HEAD + message.SerializeToString()


def encode_ack(ack: Ack) -> bytes:
    return _ACK_HEAD + ack.SerializeToString()


def decode_ack(data: bytes) -> Ack | None:
    """The `Ack` of an envelope as `encode_ack` makes it; None: it is none."""
    if data[: HEAD.size] != _ACK_HEAD:
        return None
    try:
        return Ack.FromString(data[HEAD.size :])
    except DecodeError:
        return None


def _payload_begin(data: bytes) -> int | None:
    if len(data) < HEAD.size or not data.startswith(MAGIC):
        return None
    _, version, begin, flags, kind = HEAD.unpack_from(data)
    if version != _VERSION or kind != _PUBLISH or not HEAD.size <= begin <= len(data):
        return None
    if flags & _WITH_CRC:
        if begin != _BEHIND_CRC:
            return None
        (crc,) = _CRC.unpack_from(data, HEAD.size)
        if google_crc32c.value(data[begin:]) != crc:
            return None
    return int(begin)
