"""Canaries of the replayer: a wrong answer of any kind must be seen."""

from __future__ import annotations

import time
from typing import Any

import pytest
import xxhash

from tests.support import golden, wire

NOW = int(time.time() * 1e6).to_bytes(8, "little")
STEP: dict[str, Any] = {"status": 0, "reply_hex": "0102" + "00" * 8 + "03", "mask": [[2, 10, "timestamp"]]}


def test_the_recorded_answer_is_accepted() -> None:
    assert golden.difference(STEP, 0, b"\x01\x02" + NOW + b"\x03") == ""


@pytest.mark.parametrize(
    ("status", "payload"),
    [
        (3, b""),
        (None, b""),
        (0, b""),
        (0, b"\x01\x02" + NOW + b"\x04"),
        (0, b"\x01\x03" + NOW + b"\x03"),
        (0, b"\x01\x02" + NOW),
        (0, b"\x01\x02" + NOW + b"\x03\x00"),
        (0, b"\x01\x02" + bytes(8) + b"\x03"),
    ],
    ids=("another status", "no answer", "empty", "end", "begin", "too short", "too long", "time"),
)
def test_a_wrong_answer_is_a_difference(status: int | None, payload: bytes) -> None:
    assert golden.difference(STEP, status, payload) != ""


def test_an_answer_where_none_may_come_is_a_difference() -> None:
    assert golden.difference({"status": None}, 0, b"") != ""
    assert golden.difference({"status": None}, None, b"") == ""


def test_a_masked_checksum_is_recomputed() -> None:
    raw = bytearray(wire.message(b"payload"))
    raw[0:8] = xxhash.xxh3_64_intdigest(bytes(raw[8:])).to_bytes(8, "little")
    marks = [[0, 8, "checksum"]]
    assert golden.implausible(bytes(raw), marks) == ""
    raw[70] ^= 1
    assert "checksum" in golden.implausible(bytes(raw), marks)


def test_an_open_mask_leaves_the_bytes_before_it_compared() -> None:
    step: dict[str, Any] = {"status": 0, "reply_hex": "0102", "mask": [[2, None, "archive"]]}
    assert golden.difference(step, 0, b"\x01\x02anything") == ""
    assert golden.difference(step, 0, b"\x01\x03anything") != ""


def test_the_better_answer_is_taken_only_for_a_defect() -> None:
    better = {"status": 4101, "reply_hex": ""}
    assert golden.is_better({"status": 0, "bug": "copied", "better": better}, 4101, b"")
    assert not golden.is_better({"status": 0, "bug": "copied", "better": better}, 3, b"")
    assert not golden.is_better({"status": 0, "better": better}, 4101, b"")


def test_captured_bytes_are_filled_in() -> None:
    captures: dict[str, bytes] = {}
    golden.capture({"capture": [{"name": "id", "start": 1, "end": 3, "add": 1}]}, b"\x00\xff\x00\x00", captures)
    step = {"request_hex": "00000000aa{id}{zeros:2}", "fix_length": True}
    assert golden.request_bytes(step, captures) == bytes.fromhex("05000000aa00010000")
