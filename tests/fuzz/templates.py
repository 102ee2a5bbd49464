"""Every command of the classic wire and every extension as a list of fields, each with the values that a mutation may
put in its place.

A right frame is the first value of each field. The other values are those at which a decoder or a check can go wrong:
borders of numbers, kinds and lengths that do not fit, names that are no UTF-8, ids that do not exist.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from immutables import Map

from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions, encode_permissions
from tests.support import wire

STREAM, TOPIC, GROUP, USER, PASSWORD = "fuzz", "fuzz", "group", "low", "low-secret"
Field = tuple[bytes, ...]

U32_BORDERS = (
    0,
    1,
    2,
    3,
    4,
    5,
    0x7F,
    0xFF,
    0xFFF,
    0x1000,
    0xFFFF,
    0xFFFFF,
    0x100000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
)
U64_BORDERS = (*U32_BORDERS, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
U8_BORDERS = tuple(bytes([value]) for value in (0, 1, 2, 3, 4, 5, 6, 7, 0x7F, 0x80, 0xFF))


def u32(*first: int) -> Field:
    return tuple(struct.pack("<I", value) for value in (*first, *U32_BORDERS))


def u64(*first: int) -> Field:
    return tuple(struct.pack("<Q", value) for value in (*first, *U64_BORDERS))


def u8(*first: int) -> Field:
    return (*(bytes([value]) for value in first), *U8_BORDERS)


def identifier(name: str) -> Field:
    """By name and by id, then what is no identifier or names nothing."""
    right = (wire.identifier(name), wire.identifier(0), wire.identifier(1), wire.identifier("nowhere"))
    wrong = (
        wire.identifier(0xFFFFFFFF),
        b"\x01\x00",
        b"\x01\x03abc",
        b"\x01\x08" + bytes(8),
        b"\x02\x00",
        b"\x02\xff" + b"x" * 255,
        b"\x02\xff" + b"x" * 20,
        b"\x02\x04\xff\xfe\xfd\xfc",
        b"\x00\x04" + bytes(4),
        b"\x03\x04" + bytes(4),
        b"",
    )
    return right + wrong


def name(name: str) -> Field:
    encoded = name.encode()
    return (
        bytes([len(encoded)]) + encoded,
        b"\x00",
        b"\x01a",
        b"\xff" + b"n" * 255,
        b"\xff" + b"n" * 254,
        b"\x04\xc3\x28\xa0\xa1",
        b"\x03\x00\x00\x00",
        b"\x10../../etc/passwd",
        b"",
    )


def text32(text: bytes) -> Field:
    sizes = (len(text), 0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
    return tuple(struct.pack("<I", size) + text for size in sizes)


def _permissions() -> Field:
    topics = TopicPermissions(read_topic=True, poll_messages=True)
    some = Permissions(read_servers=True)
    deep = encode_permissions(Permissions(streams=Map({0: StreamPermissions(topics=Map({0: topics}))})))
    blocks = (encode_permissions(some), deep, struct.pack("<I", 0xFFFFFFFF) + deep[4:], deep[:-3], deep[4:], b"")
    return (*(b"\x01" + block for block in blocks), b"\x00", b"\x02", b"\x01", b"\x01" + bytes(4))


def _records(count: int, size: int) -> Field:
    """Index and messages of a send; then the same with a broken index, sizes, ids, reserved fields and checksums."""
    messages = [wire.message(bytes([65 + number % 26]) * size, b"h" * (number % 3)) for number in range(count)]
    whole = wire.batch(0, 0, wire.balanced(), messages)
    (length,) = struct.unpack_from("<I", whole)
    right = whole[4 + length :]
    found = [right, b"", right[:-1], right + b"\0", right[16:], right[: 16 * count], bytes(len(right))]
    for at in (0, 4, 8, *(16 * count + place for place in (0, 8, 24, 32, 40, 48, 52, 56))):
        for value in (1, 0x7FFFFFFF, 0xFFFFFFFF):
            changed = bytearray(right)
            struct.pack_into("<I", changed, at, value)
            found.append(bytes(changed))
    return tuple(found)


def partitioning() -> Field:
    return (
        wire.balanced(),
        wire.to_partition(0),
        wire.to_partition(2),
        wire.to_key(b"key"),
        wire.to_partition(3),
        wire.to_partition(0xFFFFFFFF),
        b"\x02\x03abc",
        b"\x01\x04abcd",
        b"\x03\x00",
        b"\x03\xff" + b"k" * 255,
        b"\x03\xff",
        b"\x00\x00",
        b"\x04\x04" + bytes(4),
        b"",
    )


def _optional_partition() -> Field:
    return (
        wire.optional_partition(0),
        wire.optional_partition(1),
        wire.optional_partition(2),
        wire.optional_partition(None),
        b"\x02" + bytes(4),
        wire.optional_partition(0xFFFFFFFF),
        b"\x01",
        b"",
    )


def consumer() -> Field:
    one, other = wire.identifier(1), wire.identifier("someone")
    group = wire.identifier(GROUP)
    return (b"\x01" + one, b"\x01" + other, b"\x02" + group, b"\x02" + one, b"\x00" + one, b"\x03" + one, b"\x01", b"")


@dataclass(frozen=True, slots=True)
class Template:
    """`weight`: how often the command is taken; those that cost a password hash, a sync or an archive come rarely.

    `measured`: a send that begins with the length of its first fields, see `build`."""

    code: int
    weight: float
    fields: tuple[Field, ...]
    measured: bool = True


def _send(count: int, size: int) -> Template:
    address = (identifier(STREAM), identifier(TOPIC), partitioning(), u32(count))
    return Template(Code.SEND_MESSAGES, 2.0, (*address, _records(count, size)))


_ADDRESS = (identifier(STREAM), identifier(TOPIC))
_OFFSET = (consumer(), *_ADDRESS, _optional_partition())
_GROUP = (*_ADDRESS, identifier(GROUP))
_TOPIC_TAIL = (u8(1), u64(0), u64(0), u8(0))

_SENT_ONCE: Field = tuple(
    wire.batch(STREAM, TOPIC, place, [wire.message(b"x")]) for place in (wire.to_partition(0), wire.balanced())
)
TEMPLATES: tuple[Template, ...] = (
    *(_send(count, size) for count, size in ((1, 100), (1, 0), (10, 20), (100, 1))),
    *(
        Template(Code.POLL_MESSAGES, 1.5, (*_OFFSET, u8(strategy), u64(0), u32(10), u8(commit)))
        for strategy in range(1, 6)
        for commit in (0, 1)
    ),
    Template(Code.STORE_CONSUMER_OFFSET, 5.0, (*_OFFSET, u64(0))),
    Template(Code.GET_CONSUMER_OFFSET, 1.0, _OFFSET),
    Template(Code.DELETE_CONSUMER_OFFSET, 0.5, _OFFSET),
    Template(Code.FLUSH_UNSAVED_BUFFER, 0.1, (*_ADDRESS, u32(0), u8(1))),
    Template(Code.PING, 2.0, ((b"", b"\0", bytes(1000)),)),
    Template(Code.GET_STATS, 0.03, ()),
    Template(Code.GET_SNAPSHOT, 0.002, (u8(1), u8(1), u8(4, 100))),
    Template(Code.GET_CLUSTER_METADATA, 0.3, ()),
    Template(Code.GET_ME, 0.3, ()),
    Template(Code.GET_CLIENT, 0.1, (u32(0),)),
    Template(Code.GET_CLIENTS, 0.05, ()),
    Template(Code.GET_USER, 0.5, (identifier(USER),)),
    Template(Code.GET_USERS, 0.3, ()),
    Template(Code.CREATE_USER, 0.01, (name("somebody"), name("password"), u8(1), _permissions())),
    Template(Code.DELETE_USER, 0.02, (identifier("somebody"),)),
    Template(Code.UPDATE_USER, 0.05, (identifier(USER), u8(1), name("low2"), u8(1), u8(1))),
    Template(Code.UPDATE_PERMISSIONS, 0.05, (identifier(USER), _permissions())),
    Template(Code.CHANGE_PASSWORD, 0.01, (identifier(USER), name(PASSWORD), name(PASSWORD))),
    Template(Code.LOGIN_USER, 0.003, (name(USER), name(PASSWORD), text32(b""), text32(b"fuzz"))),
    Template(Code.LOGOUT_USER, 0.01, ()),
    Template(Code.GET_PERSONAL_ACCESS_TOKENS, 0.3, ()),
    Template(Code.CREATE_PERSONAL_ACCESS_TOKEN, 0.02, (name("one"), u64(0))),
    Template(Code.DELETE_PERSONAL_ACCESS_TOKEN, 0.02, (name("one"),)),
    Template(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, 0.01, (name("no such token"),)),
    Template(Code.GET_STREAM, 1.0, (identifier(STREAM),)),
    Template(Code.GET_STREAMS, 0.3, ()),
    Template(Code.CREATE_STREAM, 0.03, (name("another"),)),
    Template(Code.DELETE_STREAM, 0.005, (identifier("another"),)),
    Template(Code.UPDATE_STREAM, 0.03, (identifier("another"), name("another"))),
    Template(Code.PURGE_STREAM, 0.01, (identifier("another"),)),
    Template(Code.GET_TOPIC, 1.0, _ADDRESS),
    Template(Code.GET_TOPICS, 0.5, _ADDRESS[:1]),
    Template(Code.CREATE_TOPIC, 0.03, (identifier(STREAM), u32(1), *_TOPIC_TAIL, name("another"))),
    Template(Code.DELETE_TOPIC, 0.01, (identifier(STREAM), identifier("another"))),
    Template(Code.UPDATE_TOPIC, 0.03, (*_ADDRESS, *_TOPIC_TAIL, name(TOPIC))),
    Template(Code.PURGE_TOPIC, 0.01, _ADDRESS),
    Template(Code.CREATE_PARTITIONS, 0.02, (*_ADDRESS, u32(1))),
    Template(Code.DELETE_PARTITIONS, 0.02, (*_ADDRESS, u32(1))),
    Template(Code.DELETE_SEGMENTS, 0.05, (*_ADDRESS, u32(0), u32(1))),
    Template(Code.GET_CONSUMER_GROUP, 0.5, _GROUP),
    Template(Code.GET_CONSUMER_GROUPS, 0.5, _ADDRESS),
    Template(Code.CREATE_CONSUMER_GROUP, 0.03, (*_ADDRESS, name("group2"))),
    Template(Code.DELETE_CONSUMER_GROUP, 0.02, (*_ADDRESS, identifier("group2"))),
    Template(Code.JOIN_CONSUMER_GROUP, 0.1, _GROUP),
    Template(Code.LEAVE_CONSUMER_GROUP, 0.1, _GROUP),
    Template(ExtensionCode.LIST_EXTENSIONS, 0.1, ()),
    Template(ExtensionCode.GET_METRICS, 0.02, ()),
    Template(ExtensionCode.ANNOUNCE_HEARTBEAT, 0.1, (u32(60_000, 0, 999, 1_000, 3_600_001, 0xFFFF_FFFF),)),
    *(
        Template(ExtensionCode.POLL_AND_WAIT, 0.2, (*_OFFSET, u8(5), u64(0), u32(10), u8(1), u32(wait_ms)))
        for wait_ms in (0, 1, 20)
    ),
    Template(ExtensionCode.POLL_POSITION, 0.2, (*_OFFSET, u8(5), u64(0), u32(10), u8(1), u32(1), u32(1 << 20, 0, 1))),
    Template(ExtensionCode.STORE_POSITION, 0.1, (u64(1), u32(0), *_OFFSET, u64(0))),
    Template(ExtensionCode.GET_PARTITION_BOUNDS, 0.2, (u8(1, 0, 2), u32(1), *_ADDRESS, u32(0), u32(0))),
    *(
        Template(ExtensionCode.SET_TOPIC_SETTINGS, 0.05, (*_ADDRESS, u8(1), name("ack"), name(level)))
        for level in ("memory", "written", "durable")
    ),
    Template(ExtensionCode.GET_TOPIC_SETTINGS, 0.3, _ADDRESS),
    Template(ExtensionCode.CHANGE_TOPIC, 0.05, (*_ADDRESS, u8(1, 0, 31, 255), name(TOPIC))),
    Template(ExtensionCode.LEASE_FILES, 0.2, (*_ADDRESS, u32(0), u64(0), u32(1, 0, 601))),
    Template(ExtensionCode.UNUSED_OFFSETS, 0.1, (*_ADDRESS, u32(0), u32(0, 1024), u64(0), u8(0, 1, 2))),
    Template(ExtensionCode.INIT_PRODUCER, 0.05, (u64(0), u32(0), u8(0, 1))),
    Template(ExtensionCode.SEND_ONCE_DIGEST, 0.2, (u64(100), u64(0), u32(0), u64(0, 1), _SENT_ONCE)),
    Template(ExtensionCode.SEND_ONCE, 0.2, (u64(100), u64(0), u32(0), _SENT_ONCE)),
)


def build(template: Template, values: list[bytes]) -> bytes:
    """The whole frame. A send begins with the length of what stands before its index."""
    body = b"".join(values)
    if template.code == Code.SEND_MESSAGES and template.measured:
        body = struct.pack("<I", sum(map(len, values[:4]))) + body
    return struct.pack("<II", len(body) + 4, template.code) + body
