"""Canaries: the checkers of the soak find what is planted."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
import xxhash

from tests.soak.sampler import descriptors
from tests.soak.series import MEBIBYTE, TOLERANCES, Series, judge
from tests.soak.truth import PartitionTruth
from tests.support import wire
from tests.support.wire import Message

PARTITION = 7


def stored(payloads: list[bytes]) -> list[Message]:
    """As a log would hold them, with offsets and checksums."""
    found: list[Message] = []
    for offset, payload in enumerate(payloads):
        (plain,) = wire.parse_messages(wire.message(payload))
        body = plain.raw[8:24] + struct.pack("<Q", offset) + plain.raw[32:]
        found += wire.parse_messages(struct.pack("<Q", xxhash.xxh3_64_intdigest(body)) + body)
    return found


def batches(truth: PartitionTruth, sizes: list[int]) -> list[list[bytes]]:
    sent = []
    for size in sizes:
        sent.append(truth.attempt(size))
        truth.acknowledge()
    return sent


def kinds(truth: PartitionTruth, payloads: list[bytes]) -> set[str]:
    truth.check(stored(payloads))
    truth.finish()
    return {finding.kind for finding in truth.findings}


def test_a_log_with_legal_repeats_is_clean_and_nothing_is_remembered() -> None:
    truth = PartitionTruth(PARTITION)
    first, second = truth.attempt(3), truth.attempt(3)
    assert first == second
    third = truth.attempt(3)
    truth.acknowledge()
    (more,) = batches(truth, [2])
    assert kinds(truth, [*first, *second[:1], *third, *more]) == set()
    assert (truth.repeats, truth.remembered, truth.acknowledged) == (4, 0, 5)


def test_planted_faults_are_found() -> None:
    def faulty(change: str) -> set[str]:
        truth = PartitionTruth(PARTITION)
        payloads = [payload for batch in batches(truth, [3, 3, 3]) for payload in batch]
        if change == "lost":
            del payloads[4]
        elif change == "cut":
            del payloads[-1]
        elif change == "duplicate":
            payloads.insert(4, payloads[3])
        elif change == "swapped":
            payloads[3], payloads[4] = payloads[4], payloads[3]
        elif change == "altered":
            payloads[4] = payloads[4][:-1] + b"!"
        elif change == "foreign":
            payloads.append(PartitionTruth(PARTITION + 1).attempt(1)[0])
        return kinds(truth, payloads)

    assert faulty("nothing") == set()
    assert faulty("lost") == {"lost"}
    assert faulty("cut") == {"lost"}
    assert faulty("duplicate") == {"duplicate"}
    assert faulty("swapped") >= {"lost", "duplicate"}
    assert faulty("altered") == {"altered"}
    assert faulty("foreign") == {"foreign"}


def test_a_repeat_that_was_not_sent_so_often_is_a_duplicate() -> None:
    truth = PartitionTruth(PARTITION)
    first, second = truth.attempt(2), truth.attempt(2)
    truth.acknowledge()
    assert kinds(truth, [*first, *second, *second]) == {"duplicate"}


def measured(quantity: str, level: float, noise: float, lives: int = 3) -> Series:
    """An hour in lives of 20 minutes, a sample every ten seconds; each life climbs to its level in its first minute."""
    generator, series = random.Random(6), Series(quantity, "worker")
    for life in range(lives):
        for step in range(120):
            at = life * 1200.0 + 60.0 + step * 10.0 * 1140 / 1200
            series.add(life, at, level + generator.gauss(0, noise) + (50 * noise if step % 40 == 17 else 0))
    return series


@pytest.mark.parametrize(
    ("quantity", "level", "noise"),
    [
        ("rss", 90 * MEBIBYTE, MEBIBYTE),
        ("fds", 80.0, 1.0),
        ("threads", 9.0, 0.0),
        ("p99", 0.004, 0.001),
        ("p99 ratio", 2.0, 0.3),
    ],
)
def test_a_noisy_level_is_flat_and_a_planted_leak_is_found(quantity: str, level: float, noise: float) -> None:
    series = measured(quantity, level, noise)
    verdict = judge(series)
    assert verdict.flat, verdict.row()
    leak = judge(series.with_leak(2 * verdict.tolerance))
    assert leak.flat is False, leak.row()
    assert leak.growth == pytest.approx(2 * verdict.tolerance, rel=0.5)


def test_a_leak_in_steps_is_found() -> None:
    series = Series("fds", "worker")
    for step in range(360):
        series.add(0, step * 10.0, 80.0 + step // 30)  # one descriptor in five minutes
    assert judge(series).flat is False
    assert judge(series).growth > TOLERANCES["fds"].absolute


def test_a_short_series_is_not_judged() -> None:
    series = Series("rss", "worker")
    for step in range(10):
        series.add(0, step * 10.0, float(step * 100 * MEBIBYTE))
    assert judge(series).flat is None


def test_open_files_of_segments_are_told_apart_from_what_somebody_forgets_to_close(tmp_path: Path) -> None:
    partition = tmp_path / "partitions" / "0"
    partition.mkdir(parents=True)
    before = descriptors(os.getpid())
    with (partition / f"{0:020}.log").open("wb"), (partition / f"{0:020}.index").open("wb"):
        assert descriptors(os.getpid()) == (before[0] + 2, before[1])
        (partition / f"{0:020}.index").unlink()  # its segment was removed
        with (tmp_path / "forgotten").open("wb"):
            assert descriptors(os.getpid()) == (before[0] + 1, before[1] + 2)
    assert descriptors(os.getpid()) == before
