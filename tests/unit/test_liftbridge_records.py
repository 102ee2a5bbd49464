"""A message of Liftbridge comes out of a native record as it went in, and a native record reads as a message."""

from __future__ import annotations

import random
import struct

import pytest

from shardd.client.messages import encode_headers, headers_of
from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.records import LiftbridgeMessage, RecordTooLargeError, loaded, stored
from shardd.protocol.limits import MESSAGE_PAYLOAD_BYTES_MAX, USER_HEADERS_BYTES_MAX

SUBJECT = "orders.in"


def there_and_back(message: LiftbridgeMessage) -> tuple[bytes, bytes]:
    payload, block = stored(message, SUBJECT, MESSAGE_PAYLOAD_BYTES_MAX)
    assert 1 <= len(payload) <= MESSAGE_PAYLOAD_BYTES_MAX and len(block) <= USER_HEADERS_BYTES_MAX
    back = loaded(payload, block, SUBJECT)
    assert (back.value, back.key) == (message.value, message.key)
    kept = {name: value for name, value in message.headers.items() if name not in {"subject", "reply"}}
    assert back.headers == kept
    assert (back.subject, back.reply_subject) == (message.subject or SUBJECT, message.reply_subject)
    return payload, block


def test_a_typical_message_has_nothing_but_its_headers() -> None:
    payload, block = there_and_back(LiftbridgeMessage(b"v", b"k", {"h": b"1"}, SUBJECT))
    assert payload == b"v" and headers_of(block) == {"lb.key": b"k", "h": b"1"}
    assert stored(LiftbridgeMessage(b"v"), SUBJECT, 10) == (b"v", b"")


def test_an_empty_value_is_told_from_a_byte() -> None:
    payload, block = there_and_back(LiftbridgeMessage(b""))
    assert payload == b"\x00" and headers_of(block) == {"lb.empty": 1}
    assert there_and_back(LiftbridgeMessage(b"\x00"))[1] == b""


@pytest.mark.parametrize(
    "message",
    [
        LiftbridgeMessage(b"v", b"k" * 255),
        LiftbridgeMessage(b"v", b"k" * 256),
        LiftbridgeMessage(b"v", headers={"empty": b"", "": b"no name", "long": b"x" * 256, "n" * 256: b"1", "e": b"1"}),
        LiftbridgeMessage(b"v", headers={"lb.key": b"mine", "lb.h.a": b"2", "lb.x0": b"3", "lb." + "n" * 250: b"4"}),
        LiftbridgeMessage(b"v", headers={"subject": b"forged", "reply": b"forged", "a": b"1"}),
        LiftbridgeMessage(b"v", b"k", {}, "orders.in.x", "inbox.1"),
        LiftbridgeMessage(b"v", b"k", {}, "s" * 300, "r" * 300),
        LiftbridgeMessage(b"v", b"k" * 90_000),
        LiftbridgeMessage(b"v", b"k" * 99_999, {"a": b"1"}, "orders.in.x", "inbox.1"),
        LiftbridgeMessage(b"", b"k" * 1_000_000, {"a": b"", "subject": b"forged"}, "orders.in.x"),
        LiftbridgeMessage(b"v", headers={str(number): b"x" * 200 for number in range(1000)}),
    ],
)
def test_nothing_is_lost(message: LiftbridgeMessage) -> None:
    there_and_back(message)


def test_random_messages() -> None:
    rng = random.Random(24)
    lengths = (0, 1, 2, 254, 255, 256, 600)
    for _ in range(2000):
        names = {rng.choice(("", "lb.", "lb.h.", "lb.x")) + "n" * rng.choice(lengths) for _ in range(rng.randrange(6))}
        headers = {name: rng.randbytes(rng.choice(lengths)) for name in names}
        key, value = rng.randbytes(rng.choice(lengths)), rng.randbytes(rng.choice(lengths))
        there_and_back(LiftbridgeMessage(value, key, headers, rng.choice(("", SUBJECT, "a.b")), rng.choice(("", "r"))))


def test_more_than_a_record_can_have_is_refused() -> None:
    assert stored(LiftbridgeMessage(b"12345"), SUBJECT, 5)[0] == b"12345"
    with pytest.raises(RecordTooLargeError):
        stored(LiftbridgeMessage(b"123456"), SUBJECT, 5)
    with pytest.raises(RecordTooLargeError):
        stored(LiftbridgeMessage(b"1", b"k" * 200_000), SUBJECT, 200_000)


def test_headers_of_a_native_producer() -> None:
    block = encode_headers({"text": "x", "number": 258, "subject": "mine", "lb.unknown": "1"})
    message = loaded(b"payload", block, SUBJECT)
    assert message.value == b"payload" and message.key == b"" and message.subject == SUBJECT
    assert message.headers["text"] == b"x" and message.headers["native.subject"] == b"mine"
    assert int.from_bytes(message.headers["number"], "little") == 258
    assert set(message.headers) == {"text", "number", "native.subject"}


@pytest.mark.parametrize("block", [b"\x02", b"\x02\x00\x00\x00\x00", struct.pack("<BI", 2, 1 << 31), b"\xff" * 40])
def test_headers_that_cannot_be_read_are_handed_over(block: bytes) -> None:
    assert loaded(b"p", block, SUBJECT) == LiftbridgeMessage(b"p", headers={"native.headers": block}, subject=SUBJECT)


def test_forged_marks_spoil_nothing() -> None:
    """A native producer says that a payload is a whole message, that it is empty, that there are pieces: it is not."""
    whole = loaded(b"\xff\xff\xff", encode_headers({"lb.env": True}), SUBJECT)
    assert whole.value == b"\xff\xff\xff"
    assert loaded(b"full", encode_headers({"lb.empty": True, "lb.x0": b"\xff\xff"}), SUBJECT).value == b"full"
    assert loaded(b"p", encode_headers({"lb.x1": b"2", "lb.subj": b"\xff"}), SUBJECT).subject == "\ufffd"


def test_random_records_are_messages() -> None:
    rng = random.Random(25)
    good = stored(LiftbridgeMessage(b"v", b"k" * 300, {"a": b"", "b": b"1"}, "x.y", "r"), SUBJECT, 1000)[1]
    for _ in range(5000):
        block = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            block[rng.randrange(len(block))] = rng.randrange(256)
        message = loaded(b"payload", bytes(block[: rng.randrange(len(block) + 1)]), SUBJECT)
        api_messages.Message(
            value=message.value,
            key=message.key,
            headers=message.headers,
            subject=message.subject,
            replySubject=message.reply_subject,
        ).SerializeToString()
