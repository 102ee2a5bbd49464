"""Envelopes: the worked examples of Liftbridge, byte by byte, and what counts as one."""

from __future__ import annotations

from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.envelope import Published, decode_ack, decode_publish, encode_ack, encode_publish

Message, Ack = api_messages.Message, api_messages.Ack
MAGIC = "b90e43b4"
E1_PAYLOAD = "12026b31 1a0568656c6c6f 520661636b732e31 5a03632d37"
E1 = bytes.fromhex(MAGIC + "00080000" + E1_PAYLOAD)
E2 = bytes.fromhex(MAGIC + "000c0100 bca13510" + E1_PAYLOAD)
E2B_PAYLOAD = "08ffffffffffffffffff01 1a026869 4a060a0168120131 6001"
E2B = bytes.fromhex(MAGIC + "000c0100 4ecf4164" + E2B_PAYLOAD)
E3 = bytes.fromhex(
    MAGIC + "00080001 0a066f7264657273 12096f72646572732e696e 1a0b6f72646572732e696e2e31 202a"
    "2a0661636b732e31 3203632d37 40959a97ece39fe7cb17 48b5a79dece39fe7cb17"
)
E4 = bytes.fromhex(
    MAGIC + "00080001 0a066f7264657273 12096f72646572732e696e 1a096f72646572732e696e"
    "2a0661636b732e31 3203632d38 40959a97ece39fe7cb17 48b5a79dece39fe7cb17 5002"
)
E5 = bytes.fromhex(
    MAGIC + "00080001 0a066f7264657273 12096f72646572732e696e 1a0b6f72646572732e696e2e31 2001"
    "2a0661636b732e31 3203632d37 40ac90abdffec9fbf418 48ddc6aedffec9fbf418"
)
KNOWN = Published(b"hello", b"k1", {}, "acks.1", "c-7", 0, 0)
EMPTY = Published(b"", b"", {}, "", "", 0, 0)


def test_the_library_computes_the_castagnoli_checksum() -> None:
    assert google_crc32c.implementation == "c"
    assert google_crc32c.value(b"123456789") == 0xE3069283
    assert google_crc32c.value(b"") == 0 and google_crc32c.value(bytes(32)) == 0x8A9136AA


@pytest.mark.parametrize(
    ("hexadecimal", "wanted"),
    [
        (E1.hex(), KNOWN),
        (E2.hex(), KNOWN),
        (E2B.hex(), Published(b"hi", b"", {"h": b"1"}, "", "", 1, -1)),
        ("", None),
        ("b9", None),
        (MAGIC, None),
        (MAGIC + "000800", None),
        (MAGIC + "00080000", EMPTY),
        (MAGIC + "01080000" + E1_PAYLOAD, None),
        (MAGIC + "00080001" + E1_PAYLOAD, None),
        (MAGIC + "00080002" + E1_PAYLOAD, None),
        (MAGIC + "0008000e" + E1_PAYLOAD, None),
        (MAGIC + "00080000 ffffff", None),
        (MAGIC + "000c0100 00000000", EMPTY),
        (MAGIC + "000c0100 000000", None),
        (MAGIC + "000c0100 00000001", None),
        (MAGIC + "00080100 00000000", None),
        (MAGIC + "000d0100 0000000000", None),
        (MAGIC + "000c0100 bca13511" + E1_PAYLOAD, None),
        (MAGIC + "00080200" + E1_PAYLOAD, KNOWN),
        (MAGIC + "000cff00 bca13510" + E1_PAYLOAD, KNOWN),
        (MAGIC + "000a0000 ffff" + E1_PAYLOAD, KNOWN),
        (MAGIC + "000c0000 ffffffff" + E1_PAYLOAD, KNOWN),
        (MAGIC + "00070000" + E1_PAYLOAD, None),
        (MAGIC + "00000000" + E1_PAYLOAD, None),
        (MAGIC + "00ff0000", None),
        (MAGIC + "00090000", None),
        (MAGIC + "00080000 5202ff00", None),  # a text that is not UTF-8
        (MAGIC + "00080000 f83f01", EMPTY),  # a field that nobody knows
        (MAGIC + "00080000 6007", Published(b"", b"", {}, "", "", 7, 0)),
        ("b80e43b4 00080000" + E1_PAYLOAD, None),
    ],
)
def test_what_is_an_envelope_and_what_is_plain(hexadecimal: str, wanted: Published | None) -> None:
    assert decode_publish(bytes.fromhex(hexadecimal)) == wanted


def test_acks_have_the_bytes_of_liftbridge() -> None:
    common: dict[str, Any] = {"stream": "orders", "partitionSubject": "orders.in", "ackInbox": "acks.1"}
    times: dict[str, Any] = {"receptionTimestamp": 1700000000123456789, "commitTimestamp": 1700000000123556789}
    stored = Ack(**common, **times, msgSubject="orders.in.1", offset=42, correlationId="c-7")
    refused = Ack(**common, **times, msgSubject="orders.in", correlationId="c-8", ackError=2)
    assert encode_ack(stored) == E3 and len(E3) == 75
    assert encode_ack(refused) == E4 and len(E4) == 73
    seen = decode_ack(E5)
    assert seen is not None
    assert (seen.stream, seen.msgSubject, seen.offset, seen.correlationId) == ("orders", "orders.in.1", 1, "c-7")
    assert encode_ack(seen) == E5 and decode_ack(E1) is None and decode_ack(E5[:-1]) is None


@given(
    value=some.binary(max_size=300),
    key=some.binary(max_size=20),
    headers=some.dictionaries(some.text(max_size=9), some.binary(max_size=9), max_size=4),
    inbox=some.text(max_size=9),
    policy=some.integers(0, 2),
    offset=some.integers(-(1 << 63), (1 << 63) - 1),
)
def test_a_message_comes_back(
    value: bytes, key: bytes, headers: dict[str, bytes], inbox: str, policy: int, offset: int
) -> None:
    message = Message(value=value, key=key, headers=headers, ackInbox=inbox, ackPolicy=policy, offset=offset)
    assert decode_publish(encode_publish(message)) == Published(value, key, headers, inbox, "", policy, offset)


@given(some.binary(max_size=64))
def test_any_bytes_are_an_envelope_or_plain(data: bytes) -> None:
    for each in (data, bytes.fromhex(MAGIC) + data, bytes.fromhex(MAGIC + "00080000") + data):
        found = decode_publish(each)
        assert found is None or isinstance(found, Published)
