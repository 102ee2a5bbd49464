"""What earlier generations send (docs/protocol/legacy.md): their commands as templates, and how a connection becomes
one of theirs."""

from __future__ import annotations

import struct
from typing import Final

from shardd.protocol.codes import Code
from shardd.protocol.legacy import generations
from shardd.protocol.legacy.generations import Generation, release_of
from tests.fuzz import templates as classic
from tests.fuzz.mutator import Mutator
from tests.fuzz.templates import GROUP, PASSWORD, STREAM, TEMPLATES, TOPIC, USER, Field, Template
from tests.support import wire

# Not those of which it stays open whether they read bodies of refusals: lanes do not wait for answers.
FUZZED: Final = ("0.1.0", "0.4.4", "0.6.9", "0.6.31", "0.6.202", "0.7.0", "0.8.0")
_NEVER: Final = 2**64 - 1
_HEADERS: Final = struct.pack("<I", 1) + b"k" + b"\x02" + struct.pack("<I", 1) + b"v"


def generation_of_clients(release: str) -> Generation:
    """As the server knows it when the greetings are over."""
    found = release_of(release)
    return generations.COMPRESSED if found is generations.UNVERSIONED else found


def mutator(seed: str, generation: Generation) -> Mutator:
    return Mutator(seed, templates_of(generation), is_versioned=generation.has(0, 5, 0))


def greetings(generation: Generation) -> list[bytes]:
    """What tells the generation: a login, and before it had a version a new topic as well. The name is too short to be
    looked up, so the refusal comes at once. Whom the lane is comes later, by a token: mutated frames give accounts
    other names and passwords, and each failed login waits."""
    login = b"".join(map(wire.str8, ("x", "wrong")))
    if generation.has(0, 5, 0):
        version = ".".join(map(str, generation.last))
        return [wire.frame(Code.LOGIN_USER, login + wire.str32(version) + wire.str32(""))]
    topic = next(each for each in templates_of(generation) if each.code == Code.CREATE_TOPIC)
    return [wire.frame(Code.LOGIN_USER, login), classic.build(topic, [field[0] for field in topic.fields])]


def _records(generation: Generation) -> Field:
    """Two messages, one with user headers; then cut, longer, and with other lengths."""
    if generation.has(0, 7, 0):
        header = bytes(8 + 16 + 8 + 8 + 8)
        one = header + struct.pack("<II", 0, 5) + b"hello"
        two = header + struct.pack("<II", len(_HEADERS), 2) + b"hi" + _HEADERS
        index = b"".join(struct.pack("<IIQ", 0, end, 0) for end in (len(one), len(one) + len(two)))
        right, lengths = index + one + two, (4, 20, 32 + 48, 32 + 52)
    else:
        one = bytes(16) + struct.pack("<II", 0, 5) + b"hello"
        two = bytes(16) + struct.pack("<I", len(_HEADERS)) + _HEADERS + struct.pack("<I", 2) + b"hi"
        right, lengths = one + two, (16, 20, len(one) + 16, len(one) + 20)
    found = [right, b"", right[:-1], right + b"\0", right[16:], bytes(len(right)), one]
    for at in lengths:
        for value in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF):
            changed = bytearray(right)
            struct.pack_into("<I", changed, at, value)
            found.append(bytes(changed))
    return tuple(found)


def _topic_values(generation: Generation) -> tuple[Field, ...]:
    """Compression, expiry, size and replication factor, as far as a generation has them."""
    fields: list[Field] = []
    if generation.has(0, 2, 18):
        fields.append(classic.u8(1))
    fields.append(classic.u64(_NEVER) if generation.has(0, 5, 0) else classic.u32(0))
    if generation.has(0, 2, 0):
        fields += [classic.u64(0), classic.u8(1)]
    return tuple(fields)


def templates_of(generation: Generation) -> tuple[Template, ...]:
    """Every command: those that look otherwise, and the classic ones of all other codes."""
    address = (classic.identifier(STREAM), classic.identifier(TOPIC))
    own = _of_messages(generation, address)
    if generation.chooses_ids:
        own += _of_what_has_ids(generation, address)
    codes = {template.code for template in own}
    return (*own, *(template for template in TEMPLATES if template.code not in codes))


def _of_messages(generation: Generation, address: tuple[Field, ...]) -> tuple[Template, ...]:
    records = (_records(generation),)
    count = (classic.u32(2),) if generation.has(0, 7, 0) else ()
    send = (*address, classic.partitioning(), *count, *records)
    own: tuple[Template, ...] = (Template(Code.SEND_MESSAGES, 8.0, send, measured=generation.has(0, 7, 0)),)
    if generation.has(0, 8, 0):
        return own
    numbered = (b"\x01" + struct.pack("<I", 1), b"\x02" + struct.pack("<I", 1))
    place = ((*classic.consumer(), *numbered), *address, classic.u32(1))
    polls = tuple(
        Template(
            Code.POLL_MESSAGES, 1.5, (*place, classic.u8(kind), classic.u64(0), classic.u32(10), classic.u8(commit))
        )
        for kind in range(1, 6)
        for commit in (0, 1)
    )
    return (
        *own,
        *polls,
        Template(Code.STORE_CONSUMER_OFFSET, 5.0, (*place, classic.u64(0))),
        Template(Code.GET_CONSUMER_OFFSET, 1.0, place),
        Template(Code.DELETE_CONSUMER_OFFSET, 0.5, place),
    )


def _of_what_has_ids(generation: Generation, address: tuple[Field, ...]) -> tuple[Template, ...]:
    group = (*classic.identifier(GROUP), struct.pack("<I", 1))
    expiry = classic.u64(0) if generation.has(0, 5, 0) else classic.u32(0)
    login: tuple[Field, ...] = (classic.name(USER), classic.name(PASSWORD))
    if generation.has(0, 5, 0):
        login += (classic.text32(b"0.6.31"), classic.text32(b""))
    values, new = _topic_values(generation), classic.name("another")
    codes = (Code.GET_CONSUMER_GROUP, Code.DELETE_CONSUMER_GROUP, Code.JOIN_CONSUMER_GROUP, Code.LEAVE_CONSUMER_GROUP)
    groups = tuple(Template(code, 0.2, (*address, group)) for code in codes)
    return (
        *groups,
        Template(Code.CREATE_CONSUMER_GROUP, 0.03, (*address, classic.u32(0), classic.name("group2"))),
        Template(Code.CREATE_STREAM, 0.03, (classic.u32(0), new)),
        Template(Code.CREATE_TOPIC, 0.03, (address[0], classic.u32(0), classic.u32(1), *values, new)),
        Template(Code.UPDATE_TOPIC, 0.03, (*address, *values, classic.name(TOPIC))),
        Template(Code.LOGIN_USER, 0.003, login),
        Template(Code.CREATE_PERSONAL_ACCESS_TOKEN, 0.02, (classic.name("one"), expiry)),
    )
