"""Canaries of the history checker: each planted fault is named, and clean histories are clean."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
import xxhash

from tests.support.checker import History, identity_of, make_payload
from tests.support.wire import Message, message, parse_messages

Log = list[Message]


def stored(offset: int, payload: bytes, timestamp_us: int = 1_000) -> Message:
    """A message as a correct server stores it."""
    raw = bytearray(message(payload))
    raw[8:24] = struct.pack("<QQ", offset + 1, 7)
    raw[24:40] = struct.pack("<QQ", offset, timestamp_us)
    raw[0:8] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(raw[8:])))
    return parse_messages(bytes(raw))[0]


def sent(history: History, count: int = 10, *, times: int = 1) -> Log:
    """Producer 1 sends `count` messages to partition 0, all acknowledged; returns the partition as it must be."""
    log = []
    for sequence in range(count):
        payload = make_payload(1, sequence)
        for _ in range(times):
            history.attempt((1, sequence), payload, 0)
        history.acknowledge([(1, sequence)])
        log.append(stored(sequence, payload))
    return log


def renumbered(payloads: list[bytes]) -> Log:
    return [stored(offset, payload) for offset, payload in enumerate(payloads)]


def lose_one(log: Log) -> Log:
    return renumbered([item.payload for item in log if item.offset != 4])


def repeat_one(log: Log) -> Log:
    return renumbered([item.payload for item in [*log[:5], log[4], *log[5:]]])


def swap_two(log: Log) -> Log:
    return renumbered([item.payload for item in [*log[:3], log[4], log[3], *log[5:]]])


def flip_one_bit(log: Log) -> Log:
    payload = bytearray(log[4].payload)
    payload[50] ^= 1
    return [*log[:4], stored(4, bytes(payload)), *log[5:]]


def flip_identity(log: Log) -> Log:
    return [*log[:4], stored(4, b"X" + log[4].payload[1:]), *log[5:]]


def skip_offset(log: Log) -> Log:
    return [*log[:4], *(stored(item.offset + 1, item.payload) for item in log[4:])]


def spoil_checksum(log: Log) -> Log:
    return [*log[:4], replace(log[4], checksum=log[4].checksum ^ 1), *log[5:]]


def turn_clock_back(log: Log) -> Log:
    return [*log[:4], stored(4, log[4].payload, timestamp_us=999), *log[5:]]


def cut_tail(log: Log) -> Log:
    return log[:-1]


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (lose_one, {"lost"}),
        (cut_tail, {"lost"}),
        (repeat_one, {"duplicate"}),
        (swap_two, {"reordered"}),
        (flip_one_bit, {"altered"}),
        (flip_identity, {"foreign", "lost"}),
        (skip_offset, {"gap"}),
        (spoil_checksum, {"checksum"}),
        (turn_clock_back, {"clock"}),
    ],
)
def test_planted_fault_is_named(plant: Callable[[Log], Log], kinds: set[str]) -> None:
    history = History()
    log = sent(history)
    report = history.judge({0: plant(log)})
    assert kinds <= report.kinds()
    with pytest.raises(AssertionError):
        report.require_clean()


def test_clean_history_has_no_findings() -> None:
    history = History()
    log = sent(history)
    report = history.judge({0: log})
    report.require_clean()
    assert (report.acknowledged, report.stored, report.repeats) == (10, 10, 0)


def test_repeat_after_sending_again_is_counted_and_legal() -> None:
    history = History()
    log = sent(history, times=2)
    report = history.judge({0: repeat_one(log)})
    report.require_clean()
    assert report.repeats == 1


def test_unacknowledged_message_may_be_missing_or_there() -> None:
    history = History()
    log = sent(history)
    for sequence in (10, 11):
        history.attempt((1, sequence), make_payload(1, sequence), 0)
    report = history.judge({0: [*log, stored(10, make_payload(1, 10))]})
    report.require_clean()
    assert report.unacknowledged == 1


def test_a_refused_message_that_is_there_is_one_too_many() -> None:
    history = History()
    log = sent(history)
    for _ in range(2):
        history.attempt((1, 10), make_payload(1, 10), 0)
    history.refuse([(1, 10)])
    history.judge({0: [*log, stored(10, make_payload(1, 10))]}).require_clean()
    history.refuse([(1, 10)])
    assert "duplicate" in history.judge({0: [*log, stored(10, make_payload(1, 10))]}).kinds()


def test_offset_that_held_another_message_before_is_reuse() -> None:
    history = History()
    log = sent(history)
    history.observe(0, [stored(9, make_payload(1, 3))])
    assert "reuse" in history.judge({0: log}).kinds()


def test_offset_that_was_read_once_and_is_gone_is_lost() -> None:
    history = History()
    log = sent(history)
    history.attempt((1, 10), make_payload(1, 10), 0)
    history.observe(0, [stored(10, make_payload(1, 10))])
    assert history.judge({0: log}).kinds() == {"lost"}


def test_message_in_another_partition_is_misplaced() -> None:
    history = History()
    log = sent(history)
    report = history.judge({0: log[:9], 1: [stored(0, log[9].payload)]})
    assert report.kinds() == {"misplaced"}


def test_key_in_two_partitions_is_misplaced() -> None:
    history = History()
    payloads = [make_payload(1, sequence) for sequence in range(2)]
    for sequence, payload in enumerate(payloads):
        history.attempt((1, sequence), payload, b"key")
        history.acknowledge([(1, sequence)])
    assert history.judge({0: [stored(0, payloads[0])], 1: [stored(0, payloads[1])]}).kinds() == {"misplaced"}


def test_payload_carries_its_identity() -> None:
    assert identity_of(make_payload(7, 2**40, 20)) == (7, 2**40)
    assert len(make_payload(7, 1, 5000)) == 5000
    assert identity_of(b"short") is None
