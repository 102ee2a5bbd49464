"""SET_TOPIC_SETTINGS (0x5344_0020) and GET_TOPIC_SETTINGS (0x5344_0021), extension commands: what the classic wire
cannot say about a topic, by key. Sans-IO, both directions. Layout and statuses: docs/extensions.md#topic-settings. A
new key needs no new command and no new version: keys and values are those of topic_setting_table.py.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier, Payload, Reader

SETTINGS_MAX: Final = 64  # of one request

Settings = tuple[tuple[str, str], ...]


class SetTopicSettings(msgspec.Struct, frozen=True):
    stream: Identifier
    topic: Identifier
    settings: Settings

    @classmethod
    def read(cls, reader: Reader) -> SetTopicSettings:
        stream, topic, count = reader.identifier(), reader.identifier(), reader.u8()
        settings = tuple((reader.text8(), reader.text8()) for _ in range(count))
        if not 1 <= count <= SETTINGS_MAX or len(dict(settings)) != count:
            raise ShardError(Status.INVALID_FORMAT, f"{count} settings")
        return cls(stream, topic, settings)

    def encode(self) -> bytes:
        pairs = (wire.text8(key) + wire.text8(value) for key, value in self.settings)
        head = wire.identifier(self.stream) + wire.identifier(self.topic) + wire.u8(len(self.settings))
        return head + b"".join(pairs)


class GetTopicSettings(msgspec.Struct, frozen=True):
    stream: Identifier
    topic: Identifier

    @classmethod
    def read(cls, reader: Reader) -> GetTopicSettings:
        return cls(reader.identifier(), reader.identifier())

    def encode(self) -> bytes:
        return wire.identifier(self.stream) + wire.identifier(self.topic)


class TopicSetting(msgspec.Struct, frozen=True):
    """`is_set`: for this topic; else `value` is the server's default."""

    key: str
    value: str
    is_set: bool


def encode_reply(settings: tuple[TopicSetting, ...]) -> bytes:
    """The whole reply of GET_TOPIC_SETTINGS."""
    entries = (wire.text8(each.key) + wire.text8(each.value) + wire.u8(each.is_set) for each in settings)
    return wire.u8(len(settings)) + b"".join(entries)


def decode_reply(payload: Payload) -> tuple[TopicSetting, ...]:
    """The reply, for clients. `ShardError` 3 when it is cut."""
    reader = Reader(payload)
    return tuple(TopicSetting(reader.text8(), reader.text8(), reader.u8() == 1) for _ in range(reader.u8()))
