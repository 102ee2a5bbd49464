"""A message as polls give it (docs/protocol/records.md), for clients in plain Python. Nothing is verified here: what
reads many of them does so natively (`shardd.spark.decode`)."""

from __future__ import annotations

import msgspec

from shardd.protocol.primitives import Reader
from shardd.protocol.record_layout import RECORD_HEAD
from shardd.protocol.replies import PolledHead


class Message(msgspec.Struct, frozen=True):
    """`user_headers`: encoded, as the producer gave them."""

    checksum: int
    id: int
    offset: int
    timestamp_us: int
    origin_timestamp_us: int
    payload: bytes
    user_headers: bytes

    @classmethod
    def read(cls, reader: Reader) -> Message:
        checksum, identifier, offset, timestamp_us, origin_us, headers, payload, _ = RECORD_HEAD.unpack(
            reader.take(RECORD_HEAD.size)
        )
        body, tail = reader.take(payload), reader.take(headers)
        return cls(checksum, int.from_bytes(identifier, "little"), offset, timestamp_us, origin_us, body, tail)


class Polled(msgspec.Struct, frozen=True):
    """The answer of a poll."""

    head: PolledHead
    messages: tuple[Message, ...]

    @classmethod
    def read(cls, reader: Reader) -> Polled:
        head = PolledHead.read(reader)
        return cls(head, tuple(Message.read(reader) for _ in range(head.messages_count)))
