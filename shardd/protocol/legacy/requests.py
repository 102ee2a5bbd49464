"""Requests of earlier generations (docs/protocol/legacy.md#requests) as the typed ones that services take.

Layouts are found by their length, the newest first, and a layout may tell more of the generation than the login did:
`decode` returns it. What is like the classic payload but for its ids is read by the classic type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from shardd.protocol import account_requests as accounts
from shardd.protocol import catalogue, limits, requests
from shardd.protocol.codes import Code
from shardd.protocol.command_entry import WireRequest
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.legacy import generations
from shardd.protocol.legacy.generations import Generation
from shardd.protocol.legacy.messages import SentMessages, read_send
from shardd.protocol.legacy.numbered import is_numbered, with_identifiers
from shardd.protocol.legacy.permissions import shifted
from shardd.protocol.legacy.reader import LegacyReader
from shardd.protocol.primitives import Consumer

_SECOND_US: Final = 1_000_000
_NAME_MASK: Final = 0x20  # below it no byte of a name
_TAIL_BYTES: Final = {  # behind stream and topic, with a plain partition
    Code.POLL_MESSAGES: 18,
    Code.STORE_CONSUMER_OFFSET: 12,
    Code.GET_CONSUMER_OFFSET: 4,
    Code.DELETE_CONSUMER_OFFSET: 4,
}

LegacyRequest = WireRequest | SentMessages
Decoded = tuple[LegacyRequest, Generation]
_Read = Callable[[LegacyReader, Generation], Decoded]


def decode(code: int, payload: bytes, generation: Generation) -> Decoded:
    """`ShardError` 3 or 4, as the classic `decode`. The generation is `generation`, or what the payload proves."""
    if not generation.logs_in and (generation is generations.NUMBERED or is_numbered(code, payload)):
        generation, payload = generations.NUMBERED, with_identifiers(code, payload)
    reader = LegacyReader(payload, 1 if generation.one_based else 0)
    read = _LEGACY.get(code) if generation.chooses_ids else _SHORT_HEADERS.get(code)
    if read is not None:
        return read(reader, generation)
    if code in _LIKE_CLASSIC and generation.chooses_ids:
        return catalogue.COMMANDS[code].request.read(reader), generation
    return catalogue.decode(code, payload), generation


# ---- login ----


def _login(reader: LegacyReader, generation: Generation) -> Decoded:
    username, password = reader.name(), reader.text8()
    versioned = generation.has(0, 5, 0)
    version, context = (reader.text32(), reader.text32()) if versioned else ("", "")
    return requests.Login(username, password, version, context), generation


def _create_token(reader: LegacyReader, generation: Generation) -> Decoded:
    name = reader.name()
    if reader.remaining >= 8:
        return accounts.CreateTokenRequest(name, reader.u64()), generation
    return accounts.CreateTokenRequest(name, reader.u32() * _SECOND_US), generation


def _update_user(reader: LegacyReader, generation: Generation) -> Decoded:
    """0.0.80 to 0.0.82 write the length of the name in four bytes."""
    user = reader.identifier()
    begin = reader.position
    for wide in (False, True):
        at = reader.at(begin)
        try:
            username = None
            if at.u8() == 1:
                username = at.text32() if wide else at.name()
            status = at.u8() if at.u8() == 1 else None
        except ShardError:
            continue
        if at.remaining == 0 and (username is None or "\0" not in username):
            return accounts.UpdateUserRequest(user, username, status), generation
    raise ShardError(Status.INVALID_COMMAND, "payload is cut")


# ---- streams and topics ----


def _create_stream(reader: LegacyReader, generation: Generation) -> Decoded:
    chosen = reader.chosen_id()
    rest = reader.rest
    if generation.has(0, 0, 50) and rest and len(rest) == 1 + rest[0]:
        return requests.CreateStreamRequest(reader.name(), chosen), generation
    return requests.CreateStreamRequest(reader.name_to_the_end(), chosen), _older(
        generation, generations.WITHOUT_EXPIRY
    )


def _older(generation: Generation, bound: Generation) -> Generation:
    return generation if generation.number <= bound.number else bound


def _narrowed(generation: Generation, proved: Generation) -> Generation:
    """Of those that log in without a version; a version is never doubted, nor is what has been proved. One that read no
    body of a refusal is taken for the earlier of the two that read none, until a topic says more."""
    if generation is generations.UNVERSIONED:
        return proved
    if generation is generations.WITHOUT_SIZES and proved is generations.WITH_SIZES:
        return generations.WITH_SIZES_WITHOUT_BODIES
    return generation


def _plausible(rest: bytes, name_at: int, partitions: int, compression: int) -> bool:
    """A layout fits: the name ends with the payload and has no control bytes, and the numbers are possible."""
    if len(rest) <= name_at or len(rest) != name_at + 1 + rest[name_at] or rest[name_at] == 0:
        return False
    if partitions > limits.PARTITIONS_PER_REQUEST_MAX or compression not in (1, 2):
        return False
    return all(byte >= _NAME_MASK for byte in rest[name_at + 1 :])


def _is_name(data: bytes) -> bool:
    return 0 < len(data) <= limits.NAME_BYTES_MAX and all(byte >= _NAME_MASK for byte in data)


def _create_topic(reader: LegacyReader, generation: Generation) -> Decoded:
    """By the length of the name, which stands at another place in each layout; a compression of 1 stands for none."""
    stream, chosen, rest = reader.identifier(), reader.chosen_id(), reader.rest
    partitions = reader.u32()
    for layout in _layouts_of(generation):
        compression = rest[4] if layout.compressed and len(rest) > 4 else 1
        if _plausible(rest, 4 + layout.name_at, partitions, compression):
            values = layout.read(reader)
            return requests.CreateTopicRequest(stream, partitions, *values, chosen), _narrowed(
                generation, layout.proves
            )
    if generation.has(0, 0, 50) and (generation.logs_in or not _is_name(rest[4:])):
        values = _layout_of(generation).read(reader)
        return requests.CreateTopicRequest(stream, partitions, *values, chosen), generation
    name = reader.name_to_the_end()
    older = _older(generation, generations.WITHOUT_EXPIRY)
    return requests.CreateTopicRequest(stream, partitions, 1, limits.UNLIMITED, 0, 0, name, chosen), older


def _update_topic(reader: LegacyReader, generation: Generation) -> Decoded:
    stream, topic, rest = reader.identifier(), reader.identifier(), reader.rest
    for layout in _layouts_of(generation):
        compression = rest[0] if layout.compressed and rest else 1
        if _plausible(rest, layout.name_at, 0, compression):
            break
    else:
        layout = _layout_of(generation)
    compression, expiry_us, size, replication, name = layout.read(reader)
    if not layout.wide_expiry:
        size = size or limits.UNLIMITED
    update = requests.UpdateTopicRequest(stream, topic, compression, expiry_us, size, replication, name)
    return update, _narrowed(generation, layout.proves)


class _TopicLayout:
    """Compression, expiry, size, replication factor and name, as far as a generation has them."""

    def __init__(self, proves: Generation, *, compressed: bool, wide_expiry: bool, sized: bool) -> None:
        self.proves = proves
        self.compressed, self.wide_expiry, self._sized = compressed, wide_expiry, sized
        self.name_at = compressed + (8 if wide_expiry else 4) + (9 if sized else 0)

    def read(self, reader: LegacyReader) -> tuple[int, int, int, int, str]:
        compression = reader.u8() if self.compressed else 1
        expiry_us = reader.u64() if self.wide_expiry else (reader.u32() * _SECOND_US or limits.UNLIMITED)
        size, replication = (reader.u64(), reader.u8()) if self._sized else (limits.SERVER_DEFAULT, 0)
        return compression, expiry_us, size, replication, reader.name()


_SINCE_0_5 = _TopicLayout(generations.COMPRESSED, compressed=True, wide_expiry=True, sized=True)
# The oldest first: a newer request has the replication factor, a control byte, where an older one has its name.
_TOPIC_LAYOUTS: Final = (
    _TopicLayout(generations.WITHOUT_SIZES, compressed=False, wide_expiry=False, sized=False),
    _TopicLayout(generations.WITH_SIZES, compressed=False, wide_expiry=False, sized=True),
    _TopicLayout(generations.COMPRESSED, compressed=True, wide_expiry=False, sized=True),
)


def _layouts_of(generation: Generation) -> tuple[_TopicLayout, ...]:
    if not generation.logs_in:
        return _TOPIC_LAYOUTS[:1] if generation.has(0, 0, 50) else ()
    return (_SINCE_0_5,) if generation.has(0, 5, 0) else _TOPIC_LAYOUTS


def _layout_of(generation: Generation) -> _TopicLayout:
    """What a request that fits none is read as, for the status of what is wrong with it."""
    fitting = [each for each in _layouts_of(generation) if each.proves.last <= generation.last]
    return fitting[-1] if fitting else _TOPIC_LAYOUTS[0]


# ---- groups ----


def _numbered(rest: bytes) -> bool:
    """A number of four bytes, where newer ones write an identifier: that of a two-byte name is as long."""
    return len(rest) == 4 and not (rest[0] == 2 and rest[1] == 2 and rest[2:] != b"\0\0")


def _group(reader: LegacyReader, generation: Generation) -> Decoded:
    stream, topic = reader.identifier(), reader.identifier()
    if _numbered(reader.rest):
        older = _narrowed(generation, generations.WITHOUT_SIZES)
        return requests.GroupRequest(stream, topic, reader.own_id(reader.u32())), older
    return requests.GroupRequest(stream, topic, reader.identifier()), generation


def _create_group(reader: LegacyReader, generation: Generation) -> Decoded:
    """Groups without a name are called by their number (docs/protocol/legacy.md#groups)."""
    stream, topic = reader.identifier(), reader.identifier()
    sent = reader.at(reader.position).u32()
    chosen = reader.chosen_id()
    if reader.remaining == 0:
        older = generation if not generation.has(0, 0, 90) else _narrowed(generation, generations.NAMELESS_GROUPS)
        return requests.CreateGroupRequest(stream, topic, str(sent), chosen), older
    return requests.CreateGroupRequest(stream, topic, reader.name(), chosen), generation


# ---- messages and offsets ----


def _place(reader: LegacyReader, code: Code) -> tuple[Consumer, LegacyReader]:
    """The consumer, and a reader behind it. A number where newer ones write an identifier: before 0.0.92."""
    for consumer_of in (LegacyReader.consumer, LegacyReader.numbered_consumer):
        at = reader.at(reader.position)
        try:
            consumer = consumer_of(at)
            behind = at.at(at.position)
            at.identifier()
            at.identifier()
        except ShardError:
            continue
        if at.remaining >= _TAIL_BYTES[code]:
            return consumer, behind
    raise ShardError(Status.INVALID_COMMAND, "payload is cut")


def _poll(reader: LegacyReader, generation: Generation) -> Decoded:
    consumer, at = _place(reader, Code.POLL_MESSAGES)
    stream, topic, partition = at.identifier(), at.identifier(), at.optional_partition()
    strategy, value = at.polling_strategy()
    return requests.PollMessages(
        consumer, stream, topic, partition, strategy, value, at.u32(), at.u8() == 1
    ), generation


def _store_offset(reader: LegacyReader, generation: Generation) -> Decoded:
    consumer, at = _place(reader, Code.STORE_CONSUMER_OFFSET)
    stream, topic, partition = at.identifier(), at.identifier(), at.optional_partition()
    return requests.StoreOffset(consumer, stream, topic, partition, at.u64()), generation


def _offset(reader: LegacyReader, generation: Generation) -> Decoded:
    consumer, at = _place(reader, Code.GET_CONSUMER_OFFSET)
    return requests.OffsetRequest(consumer, at.identifier(), at.identifier(), at.optional_partition()), generation


def _flush(reader: LegacyReader, generation: Generation) -> Decoded:
    stream, topic = reader.identifier(), reader.identifier()
    return requests.FlushUnsavedBuffer(stream, topic, reader.partition(), reader.flag()), generation


def _delete_segments(reader: LegacyReader, generation: Generation) -> Decoded:
    stream, topic = reader.identifier(), reader.identifier()
    return accounts.DeleteSegments(stream, topic, reader.partition(), reader.u32()), generation


# ---- users ----


def _create_user(reader: LegacyReader, generation: Generation) -> Decoded:
    request = accounts.CreateUserRequest.read(reader)
    return replace(request, permissions=shifted(request.permissions, -1)), generation


def _update_permissions(reader: LegacyReader, generation: Generation) -> Decoded:
    request = accounts.UpdatePermissionsRequest.read(reader)
    return replace(request, permissions=shifted(request.permissions, -1)), generation


_SHORT_HEADERS: Final[dict[int, _Read]] = {Code.SEND_MESSAGES: read_send}
_LEGACY: Final[dict[int, _Read]] = {
    Code.LOGIN_USER: _login,
    Code.CREATE_PERSONAL_ACCESS_TOKEN: _create_token,
    Code.UPDATE_USER: _update_user,
    Code.CREATE_USER: _create_user,
    Code.UPDATE_PERMISSIONS: _update_permissions,
    Code.CREATE_STREAM: _create_stream,
    Code.CREATE_TOPIC: _create_topic,
    Code.UPDATE_TOPIC: _update_topic,
    Code.GET_CONSUMER_GROUP: _group,
    Code.DELETE_CONSUMER_GROUP: _group,
    Code.JOIN_CONSUMER_GROUP: _group,
    Code.LEAVE_CONSUMER_GROUP: _group,
    Code.CREATE_CONSUMER_GROUP: _create_group,
    Code.POLL_MESSAGES: _poll,
    Code.SEND_MESSAGES: read_send,
    Code.STORE_CONSUMER_OFFSET: _store_offset,
    Code.GET_CONSUMER_OFFSET: _offset,
    Code.DELETE_CONSUMER_OFFSET: _offset,
    Code.FLUSH_UNSAVED_BUFFER: _flush,
    Code.DELETE_SEGMENTS: _delete_segments,
}
# like the classic payload but for its ids
_LIKE_CLASSIC: Final = frozenset(
    {
        Code.GET_USER,
        Code.DELETE_USER,
        Code.CHANGE_PASSWORD,
        Code.GET_STREAM,
        Code.DELETE_STREAM,
        Code.PURGE_STREAM,
        Code.UPDATE_STREAM,
        Code.GET_TOPIC,
        Code.GET_TOPICS,
        Code.DELETE_TOPIC,
        Code.PURGE_TOPIC,
        Code.CREATE_PARTITIONS,
        Code.DELETE_PARTITIONS,
        Code.GET_CONSUMER_GROUPS,
    }
)
