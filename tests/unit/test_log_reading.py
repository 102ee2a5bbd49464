"""One pass over a log: every byte is read once whatever the lengths of its records, checked, copied and indexed, at the
rate that was asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shardd.log import single_pass
from shardd.log.segment_reader import opened
from shardd.log.single_pass import LogPass
from shardd.runtime.throttle import Throttle
from tests.unit import log_files

CHUNK_BYTES = 256


class Counting(Throttle):
    """No limit; the bytes that were asked for."""

    asked = 0

    def spend(self, count: int) -> None:
        self.asked += count


def stored(payload_lengths: list[int]) -> log_files.Stored:
    """A segment with a record for each length, one microsecond after the other."""
    return log_files.store(3, [[bytes([number]) * length] for number, length in enumerate(payload_lengths)])


@contextmanager
def opened_memory(content: bytes) -> Iterator[int]:
    """A descriptor of a file in memory."""
    descriptor = os.memfd_create("log")
    try:
        os.pwrite(descriptor, content, 0)
        yield descriptor
    finally:
        os.close(descriptor)


@given(st.lists(st.integers(1, 3 * CHUNK_BYTES), min_size=1, max_size=20))
def test_every_byte_is_read_once_whatever_the_lengths_of_the_records(payload_lengths: list[int]) -> None:
    segment = stored(payload_lengths)
    copy, index, throttle = bytearray(), bytearray(), Counting()
    with pytest.MonkeyPatch.context() as patch, opened_memory(segment.log) as log:
        patch.setattr(single_pass, "CHUNK_BYTES", CHUNK_BYTES)
        found = LogPass(log, segment.start, 0, throttle, copy=copy.extend, index=index.extend).whole()
    assert (found.bytes, found.count, found.damage) == (len(segment.log), segment.count, "")
    assert (found.first_timestamp, found.last_timestamp) == (1000, 1000 + segment.count - 1)
    assert found.digest.digest() == xxhash.xxh3_128_digest(segment.log)
    assert copy == segment.log
    assert index == segment.index
    assert throttle.asked == len(segment.log)


@given(st.lists(st.integers(1, 2 * CHUNK_BYTES), min_size=1, max_size=8), st.data())
def test_a_flip_ends_the_valid_records_and_no_byte_is_lost(payload_lengths: list[int], data: st.DataObject) -> None:
    segment = stored(payload_lengths)
    content = bytearray(segment.log)
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1
    copy = bytearray()
    with pytest.MonkeyPatch.context() as patch, opened_memory(bytes(content)) as log:
        patch.setattr(single_pass, "CHUNK_BYTES", CHUNK_BYTES)
        found = LogPass(log, segment.start, 0, Throttle(), copy=copy.extend).whole()
    assert found.count == sum(border <= at for border in segment.borders) - 1
    assert f"at byte {segment.borders[found.count]} of {len(content)}" in found.damage
    assert copy == content


def test_a_record_before_the_minimum_does_not_count() -> None:
    segment = stored([10, 10])
    with opened_memory(segment.log) as log:
        found = LogPass(log, segment.start, 0, Throttle(), minimum_timestamp=1001).whole()
    assert (found.count, found.damage) == (0, f"BAD_TIMESTAMP at byte 0 of {len(segment.log)}")


def test_what_was_being_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = stored([10, 10])
    path = tmp_path / "log"
    path.write_bytes(segment.log[: segment.borders[1]] + bytes(len(segment.log) - segment.borders[1]))
    monkeypatch.setattr(time, "sleep", lambda _: path.write_bytes(segment.log))
    with opened(path, os.O_RDONLY) as log:
        found = LogPass(log, segment.start, 0, Throttle()).tail(len(segment.log))
    assert (found.bytes, found.count, found.damage) == (len(segment.log), 2, "")


def test_a_rate_is_kept_until_it_is_lifted() -> None:
    throttle = Throttle(1000)
    throttle.spend(1)
    began = time.monotonic()
    throttle.spend(100_000)
    assert time.monotonic() - began >= 0.001, "for the byte before"
    throttle.lift()
    throttle.spend(1)
    throttle.spend(1)
    assert time.monotonic() - began < 50, "100 seconds were left"
