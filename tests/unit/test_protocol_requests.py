"""Request codecs: golden vectors (docs/protocol/examples.md has some) and the statuses of malformed payloads."""

from __future__ import annotations

import pytest

from shardd.protocol import requests
from shardd.protocol.catalogue import decode
from shardd.protocol.codes import Code
from shardd.protocol.command_entry import WireRequest
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Consumer, ConsumerKind, PollingKind

UNLIMITED = 2**64 - 1

GOLDEN = [
    ("0400000001000000", requests.Empty()),
    (
        "1c000000260000000469676779046967677906000000302e31302e3000000000",
        requests.Login("iggy", "iggy", "0.10.0", ""),
    ),
    ("040000000c000000", requests.Empty()),
    ("0a000000c800000002046e6f7065", requests.StreamRequest("nope")),
    ("07000000ca000000027374", requests.CreateStreamRequest("st")),
    (
        "210000002e0100000202737402000000010000000000000000000000000000000000027470",
        requests.CreateTopicRequest("st", 2, 1, 0, 0, 0, "tp"),
    ),
    (
        "260000006400000001010400000000020273740202747001010000000300000000000000000200000000",
        requests.PollMessages(
            Consumer(ConsumerKind.CONSUMER, 0), "st", "tp", 1, PollingKind.FIRST, 0, count=2, auto_commit=False
        ),
    ),
    (
        "24000000640000000202026367020273740202747000000000000500000000000000000a00000001",
        requests.PollMessages(
            Consumer(ConsumerKind.GROUP, "cg"), "st", "tp", None, PollingKind.NEXT, 0, count=10, auto_commit=True
        ),
    ),
    (
        "1e000000790000000202026367020273740202747001010000000100000000000000",
        requests.StoreOffset(Consumer(ConsumerKind.GROUP, "cg"), "st", "tp", 1, 1),
    ),
    (
        "18000000780000000101040100000002027374020274700100000000",
        requests.OffsetRequest(Consumer(ConsumerKind.CONSUMER, 1), "st", "tp", 0),
    ),
]


@pytest.mark.parametrize(("frame_hex", "request_value"), GOLDEN)
def test_golden_vectors_both_ways(frame_hex: str, request_value: WireRequest) -> None:
    frame = bytes.fromhex(frame_hex)
    assert int.from_bytes(frame[:4], "little") == len(frame) - 4
    code = int.from_bytes(frame[4:8], "little")
    assert decode(code, frame[8:]) == request_value
    assert request_value.encode() == frame[8:]


def refused(code: int, payload_hex: str) -> Status:
    with pytest.raises(ShardError) as caught:
        decode(code, bytes.fromhex(payload_hex))
    return caught.value.status


# One byte short of a well-formed payload of every command that has one.
WHOLE_PAYLOADS = {
    Code.GET_CLIENT: "01000000",
    Code.POLL_MESSAGES: "01010401000000020273740202747001000000000300000000000000006400000000",
    Code.FLUSH_UNSAVED_BUFFER: "02027374020274700000000000",
    Code.GET_CONSUMER_OFFSET: "0101040100000002027374020274700100000000",
    Code.STORE_CONSUMER_OFFSET: "01010401000000020273740202747001000000000000000000000000",
    Code.DELETE_CONSUMER_OFFSET: "0101040100000002027374020274700100000000",
    Code.GET_STREAM: "02027374",
    Code.CREATE_STREAM: "096e657773747265616d",
    Code.DELETE_STREAM: "02096e657773747265616d",
    Code.UPDATE_STREAM: "02096e657773747265616d056f74686572",
    Code.PURGE_STREAM: "02096e657773747265616d",
    Code.GET_TOPIC: "0202737402027470",
    Code.GET_TOPICS: "02027374",
    Code.CREATE_TOPIC: "0202737401000000010000000000000000000000000000000000086e6577746f706963",
    Code.DELETE_TOPIC: "0202737402086e6577746f706963",
    Code.UPDATE_TOPIC: "0202737402086e6577746f706963010000000000000000000000000000000000056f74686572",
    Code.PURGE_TOPIC: "0202737402086e6577746f706963",
    Code.CREATE_PARTITIONS: "020273740202747001000000",
    Code.DELETE_PARTITIONS: "020273740202747001000000",
    Code.LOGIN_USER: "046967677904696767790000000000000000",
}


@pytest.mark.parametrize("code", WHOLE_PAYLOADS)
def test_every_cut_is_an_invalid_command(code: Code) -> None:
    whole = bytes.fromhex(WHOLE_PAYLOADS[code])
    decode(code, whole)
    for size in range(len(whole)):
        assert refused(code, whole[:size].hex()) is Status.INVALID_COMMAND


@pytest.mark.parametrize("code", WHOLE_PAYLOADS)
def test_surplus_bytes_are_ignored(code: Code) -> None:
    whole = bytes.fromhex(WHOLE_PAYLOADS[code])
    assert decode(code, whole + b"more") == decode(code, whole)
    assert decode(Code.PING, b"surplus") == requests.Empty()


@pytest.mark.parametrize(
    ("payload_hex", "status"),
    [
        ("000400000000", Status.INVALID_COMMAND),
        ("030161", Status.INVALID_COMMAND),
        ("0200", Status.INVALID_FORMAT),
        ("0100", Status.INVALID_FORMAT),
        ("01020000", Status.INVALID_FORMAT),
        ("01080000000000000000", Status.INVALID_FORMAT),
        ("0202fffe", Status.INVALID_COMMAND),
        ("02056162", Status.INVALID_COMMAND),
    ],
)
def test_identifier_rules_hold_at_every_place(payload_hex: str, status: Status) -> None:
    assert refused(Code.GET_STREAM, payload_hex) is status
    assert refused(Code.GET_TOPIC, "02027374" + payload_hex) is status
    tail = "020273740202747000000000000000000000000000000000000000"
    assert refused(Code.POLL_MESSAGES, "01" + payload_hex + tail) is status


@pytest.mark.parametrize(
    ("code", "payload_hex", "status"),
    [
        (Code.POLL_MESSAGES, "00010401000000020273740202747000000000000300000000000000000100000000", 3),
        (Code.POLL_MESSAGES, "03010401000000020273740202747000000000000300000000000000000100000000", 3),
        (Code.POLL_MESSAGES, "01010401000000020273740202747001000000000000000000000000006400000000", 3),
        (Code.POLL_MESSAGES, "01010401000000020273740202747001000000000600000000000000006400000000", 3),
        (Code.CREATE_STREAM, "00", 4),
        (Code.UPDATE_STREAM, "0202737400", 4),
        (Code.CREATE_STREAM, "02fffe", 3),
        (Code.CREATE_TOPIC, "020273740100000001000000000000000000000000000000000000", 4),
        (Code.LOGIN_USER, "0004696767790000000000000000", 4),
        (Code.LOGIN_USER, "0469676779046967677900000000", 3),
    ],
)
def test_field_rules(code: Code, payload_hex: str, status: int) -> None:
    assert refused(code, payload_hex) == status


@pytest.mark.parametrize("code", [0, 2, 11, 31, 44, 99, 101, 103, 503, 600, 605, 2**31, 2**32 - 1])
def test_unknown_codes(code: int) -> None:
    assert refused(code, "") is Status.INVALID_COMMAND


def test_values_judged_after_the_login_check_are_decoded() -> None:
    request = decode(Code.CREATE_TOPIC, bytes.fromhex("02027374ffffffff09ffffffffffffffffffffffffffffffffff027470"))
    assert request == requests.CreateTopicRequest("st", 2**32 - 1, 9, UNLIMITED, UNLIMITED, 255, "tp")


def test_flags_and_absent_partition() -> None:
    absent = decode(
        Code.POLL_MESSAGES, bytes.fromhex("01010401000000020273740202747002010000000300000000000000000900000005")
    )
    assert isinstance(absent, requests.PollMessages)
    assert absent.partition is None  # only a flag of exactly 1 means present
    assert absent.auto_commit  # any non-zero value is true
    flush = decode(Code.FLUSH_UNSAVED_BUFFER, bytes.fromhex("02027374020274700000000002"))
    assert flush == requests.FlushUnsavedBuffer("st", "tp", 0, fsync=True)
