"""SEND_MESSAGES in C and in Python: the same status, the same parts, the same stored bytes."""

from __future__ import annotations

import struct
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardd.engine import _native as native
from shardd.engine import twin
from tests.parity import batches
from tests.parity.batches import Message
from tests.support.generated import examples

STREAM, TOPIC = b"\x02\x02st", b"\x02\x02tp"
BALANCED = b"\x01\x00"
DAMAGES = 20  # of one payload

plain = st.builds(
    batches.send_payload,
    st.lists(batches.messages, min_size=1, max_size=5),
    batches.partitionings,
    batches.identifiers,
    batches.identifiers,
)
well_formed = st.builds(
    batches.send_payload,
    st.lists(batches.messages.map(lambda message: replace(message, offset=0, reserved=0)), min_size=1, max_size=6),
    st.sampled_from((BALANCED, b"\x02\x04\x07\x00\x00\x00", b"\x03\x03key")),
    st.just(STREAM),
    st.just(TOPIC),
)


@settings(max_examples=examples(150))
@given(plain, batches.seeds)
def test_parse_of_damaged_payloads(sound: bytes, random: Random) -> None:
    for _ in range(DAMAGES):
        payload = batches.damaged(random, sound)
        assert native.send_request_parse(payload) == twin.send_request_parse(payload), payload.hex()


def with_fields_changed(random: Random, payload: bytes) -> bytes:
    """One or two of the 32-bit fields of the index and the message headers, where the rules are."""
    metadata_length = int.from_bytes(payload[:4], "little")
    count = int.from_bytes(payload[metadata_length : 4 + metadata_length], "little")
    body = 4 + metadata_length + 16 * count
    entry = 4 + metadata_length + 16 * random.randrange(count) + random.choice((0, 4, 8, 12))
    header = body + random.choice((0, 24, 28, 32, 48, 52, 56, 60))
    changed = bytearray(payload)
    for position in random.choices((entry, header, metadata_length), k=random.randint(1, 2)):
        old = int.from_bytes(changed[position : position + 4], "little")
        near = (max(old - 1, 0), min(old + 1, 2**32 - 1), old)
        changed[position : position + 4] = struct.pack("<I", random.choice(near + batches.INTERESTING_U32))
    return bytes(changed)


@settings(max_examples=examples(150))
@given(well_formed, batches.seeds)
def test_parse_with_one_field_changed(sound: bytes, random: Random) -> None:
    for _ in range(DAMAGES):
        payload = with_fields_changed(random, sound)
        assert native.send_request_parse(payload) == twin.send_request_parse(payload), payload.hex()


@given(st.binary(max_size=120))
def test_parse_of_noise(payload: bytes) -> None:
    assert native.send_request_parse(payload) == twin.send_request_parse(payload)


@given(well_formed)
def test_well_formed_payloads_pass(payload: bytes) -> None:
    status, parts = native.send_request_parse(payload)
    assert status == 0
    assert parts is not None
    assert parts[:2] == (STREAM, TOPIC)


HUGE = Message(payload=bytes(64_000_001))
LONG_HEADERS = Message(user_headers=bytes(100_001))
ONE = Message(payload=b"one")


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([ONE], 0),
        ([HUGE], 4022),
        ([LONG_HEADERS], 4017),
        ([replace(ONE, offset=2), replace(ONE, offset=1)], 4100),
        ([replace(ONE, reserved=1)], 4101),
        ([ONE, replace(ONE, reserved=1), replace(ONE, offset=5)], 4101),
    ],
)
def test_rules_of_the_header(messages: list[Message], status: int) -> None:
    payload = batches.send_payload(messages, BALANCED, STREAM, TOPIC)
    assert native.send_request_parse(payload)[0] == twin.send_request_parse(payload)[0] == status


@given(
    st.lists(batches.messages, min_size=1, max_size=6),
    st.integers(0, 2**63),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**31),
    st.integers(0, 2**31),
    st.integers(0, 2**64 - 1),
)
def test_assignment(
    messages: list[Message], first_offset: int, timestamp: int, relative: int, position: int, seed: int
) -> None:
    body = b"".join(message.encode() for message in messages)
    arguments = (body, len(messages), first_offset, timestamp, relative, position, seed)
    assert native.batch_assign(*arguments) == twin.batch_assign(*arguments)
