"""The block of options that 0.9 has behind creations and updates (docs/protocol/iggy-0.9.md#options), sans-IO: pairs of
key and value, each `u8 kind, u32 length, bytes`, to the end of the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from shardd.config import units
from shardd.protocol import primitives as wire
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Compression, Reader

BLOCK_BYTES_MAX: Final = 100_000
PAIRS_MAX: Final = 1024
KIND_STRING: Final = 2
KIND_U64: Final = 12
NEVER: Final = 2**64 - 1

Value = tuple[int, bytes]
"""Kind and bytes."""


def read_options(reader: Reader) -> dict[str, Value]:
    """All that is left of a request. `ShardError` 4043 too large, 4 not well-formed."""
    if reader.remaining > BLOCK_BYTES_MAX:
        raise ShardError(Status.OPTIONS_BLOCK_TOO_LARGE)
    options: dict[str, Value] = {}
    while reader.remaining:
        key_kind, key = _field(reader)
        value = _field(reader)
        if key_kind != KIND_STRING:
            raise ShardError(Status.INVALID_FORMAT, "a key is text")
        try:
            name = key.decode()
        except UnicodeDecodeError as error:
            raise ShardError(Status.INVALID_FORMAT, "a key is UTF-8") from error
        if name in options or len(options) == PAIRS_MAX:
            raise ShardError(Status.INVALID_FORMAT, "a key comes twice, or there are too many")
        options[name] = value
    return options


def _field(reader: Reader) -> Value:
    kind, length = reader.u8(), reader.u32()
    if not 1 <= length <= 255:
        raise ShardError(Status.INVALID_FORMAT, "length of an option")
    return kind, reader.take(length)


def encode_options(options: Mapping[str, Value]) -> bytes:
    """A block of an answer: its length in front."""
    block = b"".join(
        wire.u8(kind) + wire.u32(len(data)) + data
        for key, value in options.items()
        for kind, data in ((KIND_STRING, key.encode()), value)
    )
    return wire.u32(len(block)) + block


class TopicOptions(msgspec.Struct, frozen=True):
    """What a request says; None: nothing."""

    compression: int | None = None
    message_expiry_us: int | None = None
    max_topic_size_bytes: int | None = None
    durability: str | None = None
    consumer_offset_durability: str | None = None


REPLICATED: Final = "replicated"
PERSISTED: Final = "persisted"
_COMPRESSIONS: Final = {"none": int(Compression.NONE), "gzip": int(Compression.GZIP)}


def _compression(value: Value) -> int:
    return _COMPRESSIONS[_text(value)]


def _durability(value: Value) -> str:
    text = _text(value)
    if text not in (REPLICATED, PERSISTED):
        raise ValueError(text)
    return text


def _text(value: Value) -> str:
    if value[0] != KIND_STRING:
        raise ValueError(value)
    return value[1].decode()


def _number(parse: Callable[[str], int]) -> Callable[[Value], int]:
    """A u64, or the text that `parse` reads."""

    def read(value: Value) -> int:
        kind, data = value
        if kind == KIND_U64 and len(data) == 8:
            return int.from_bytes(data, "little")
        return parse(_text(value))

    return read


_READERS: Final[Mapping[str, tuple[str, Callable[[Value], int | str]]]] = {
    "compression_algorithm": ("compression", _compression),
    "message_expiry": ("message_expiry_us", _number(units.parse_expiry_us)),
    "max_topic_size": ("max_topic_size_bytes", _number(units.parse_max_size_bytes)),
    "durability": ("durability", _durability),
    "consumer_offset_durability": ("consumer_offset_durability", _durability),
}
UPDATABLE: Final = ("compression_algorithm", "message_expiry", "max_topic_size")


def topic_options(options: Mapping[str, Value], allowed: tuple[str, ...] = tuple(_READERS)) -> TopicOptions:
    """`ShardError` 4041 for a key that has no effect here, 4042 for a value."""
    fields: dict[str, int | str] = {}
    for key, value in options.items():
        if key not in allowed:
            raise ShardError(Status.UNSUPPORTED_OPTION_KEY, key)
        field, read = _READERS[key]
        try:
            fields[field] = read(value)
        except (ValueError, KeyError) as error:
            raise ShardError(Status.INVALID_OPTION_VALUE, key) from error
    return msgspec.convert(fields, TopicOptions)


def no_options(reader: Reader) -> None:
    """Streams and users have none."""
    for key in read_options(reader):
        raise ShardError(Status.UNSUPPORTED_OPTION_KEY, key)


SCOPE_TOPIC: Final = 1
SCOPES: Final = (SCOPE_TOPIC, 2, 3)
_NAMES: Final = {number: name.encode() for name, number in _COMPRESSIONS.items()}


def _described(defaults: TopicOptions) -> tuple[tuple[str, Value, str], ...]:
    def number(value: int | None) -> Value:
        return KIND_U64, (NEVER if value is None else value).to_bytes(8, "little")

    def level(value: str | None) -> Value:
        return KIND_STRING, (value or REPLICATED).encode()

    compression = _NAMES[defaults.compression or int(Compression.NONE)]
    return (
        ("compression_algorithm", (KIND_STRING, compression), "Compression: none or gzip"),
        ("message_expiry", number(defaults.message_expiry_us), "Age at which messages go, in microseconds"),
        ("max_topic_size", number(defaults.max_topic_size_bytes), "Size at which old segments go, in bytes"),
        ("durability", level(defaults.durability), "persisted: on the device before a send is answered"),
        ("consumer_offset_durability", level(defaults.consumer_offset_durability), "The same for stored offsets"),
    )


def describe(scope: int, defaults: TopicOptions) -> bytes:
    """The answer of DESCRIBE_OPTIONS: those that have an effect, and what holds for a topic that does not say.
    `ShardError` 3 for another scope."""
    if scope not in SCOPES:
        raise ShardError(Status.INVALID_COMMAND, f"scope {scope}")
    described = _described(defaults) if scope == SCOPE_TOPIC else ()
    return wire.u32(len(described)) + b"".join(
        wire.text8(key) + wire.u8(kind) + wire.u32(len(data)) + data + wire.text32(text)
        for key, (kind, data), text in described
    )
