"""Canaries of the demo: its comparison must see a loss, a flip, a swap, and a repeat that the client did not cause."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.demo import flights

CARRIERS = ("UA", "AA", "B6")
ROWS = 60
Lines = list[bytes]


def line(row: int) -> bytes:
    return json.dumps({"row": row, "carrier": CARRIERS[row % 3], "flight": str(row * 7)}).encode() + b"\n"


def compared(directory: Path, change: Callable[[Lines], Lines], sent: Counter[int]) -> flights.Result:
    """Compares after `change` was applied to what came out of the partition of the first carrier."""
    homes = {carrier: flights.partition_of(carrier) for carrier in CARRIERS}
    out: dict[int, Lines] = {partition: [] for partition in range(flights.PARTITIONS)}
    for row in range(ROWS):
        out[homes[CARRIERS[row % 3]]].append(line(row))
    out[homes["UA"]] = change(out[homes["UA"]])
    for partition, lines in out.items():
        (directory / f"{partition}.jsonl").write_bytes(b"".join(lines))
    produced = directory / "flights.jsonl"
    produced.write_bytes(b"".join(line(row) for row in range(ROWS)))
    result = flights.Result()
    flights.compare(flights.Plan(produced, homes, Counter()), directory, sent, result)
    return result


def once() -> Counter[int]:
    return Counter(range(ROWS))


def test_equal_content_has_no_difference(tmp_path: Path) -> None:
    result = compared(tmp_path, lambda lines: lines, once())
    assert (result.differences, result.repeats) == ([], 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:5] + lines[6:],
        lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]],
        lambda lines: [*lines[:5], lines[5].replace(b"flight", b"flighT"), *lines[6:]],
        lambda lines: [*lines[:6], lines[5], *lines[6:]],
        lambda lines: [line(1), *lines],
    ],
    ids=["loss", "swap", "flip", "repeat", "foreign carrier"],
)
def test_planted_difference_is_seen(tmp_path: Path, change: Callable[[Lines], Lines]) -> None:
    assert compared(tmp_path, change, once()).differences


def test_repeat_that_the_client_sent_is_counted_and_legal(tmp_path: Path) -> None:
    sent = once()
    first_of_carrier = 0
    sent[first_of_carrier] += 1
    result = compared(tmp_path, lambda lines: [lines[0], *lines], sent)
    assert (result.differences, result.repeats, result.sent_again) == ([], 1, 1)
