"""Record and index scans in C and in Python over random, cut and flipped logs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shardd.engine import _native as native
from shardd.engine import twin_record
from tests.parity import batches
from tests.support.generated import examples


@st.composite
def logs(draw: st.DrawFn, first_offset: int = 5) -> bytes:
    """A valid log that starts at `first_offset`, sometimes with a wrong offset or a clock that falls."""
    timestamp, data = 1000, b""
    for i in range(draw(st.integers(0, 6))):
        timestamp += draw(st.sampled_from((0, 0, 1, 50, -1)))
        offset = first_offset + i + draw(st.sampled_from((0, 0, 0, 0, 0, 0, 0, 1, -1)))
        identity = draw(st.sampled_from((1, 2**127, 0)))
        payload, headers = draw(st.binary(max_size=30)), draw(st.binary(max_size=10))
        data += batches.stored_record(offset, timestamp, identity, payload, headers)
    return data


@contextmanager
def file_with(data: bytes) -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.fileno()


DAMAGES = 10  # of one log


@settings(max_examples=examples(100))
@given(logs(), batches.seeds)
def test_scan_buffer(sound: bytes, random: Random) -> None:
    for _ in range(DAMAGES):
        data, expected, minimum = (
            batches.damaged(random, sound),
            random.choice((5, 4, 6)),
            random.choice((0, 1000, 1001)),
        )
        start, base = random.choice((0, 5, 6)), random.choice((0, 4096, 2**32 - 200))
        arguments = (data, expected, minimum, start, base, random.choice((0, 0, 8, 10, 2**63)))
        assert native.scan_buffer(*arguments) == twin_record.scan_buffer(*arguments), arguments


@settings(max_examples=examples(60))
@given(logs(), batches.seeds)
def test_scan_file_and_its_index(sound: bytes, random: Random) -> None:
    for _ in range(DAMAGES):
        data, before = batches.damaged(random, sound), random.randbytes(random.randint(0, 40))
        start = random.choice((0, 3, 5))
        found = []
        for scan in (native.scan_file, twin_record.scan_file):
            with file_with(before + data) as log, file_with(b"") as index:
                result = scan(log, len(before), start, 5, 0, index)
                found.append((result, os.pread(index, 1 << 20, 0)))
                assert scan(log, len(before), start, 5, 0, -1) == result
        assert found[0] == found[1], (before, data, start)


@settings(max_examples=examples(100))
@given(logs(), batches.seeds)
def test_find_later(sound: bytes, random: Random) -> None:
    for _ in range(DAMAGES):
        data = batches.damaged(random, sound)
        at_least, minimum = random.choice((0, 5, 7, 2**40)), random.choice((0, 1000, 1050))
        at_most, end = random.choice((0, 6, 2**64 - 1)), random.randint(0, 600)
        with file_with(random.randbytes(random.randint(0, 90)) + data) as log:
            arguments = (0, at_least, minimum, at_most, end)
            found = native.find_later(log, *arguments), twin_record.find_later(log, *arguments)
        assert found[0] == found[1], (data, arguments)


def test_scan_over_many_windows() -> None:
    """More than one window of 1 MiB, records that cross its border, one record larger than a window."""
    sizes = [100_000] * 25 + [2_500_000] + [10] * 20_000
    data = b"".join(batches.stored_record(i, 7, i + 1, bytes(size)) for i, size in enumerate(sizes))
    whole = native.scan_buffer(data, 0, 0, 0, 0)
    assert whole == twin_record.scan_buffer(data, 0, 0, 0, 0)
    assert whole[:3] == (len(data), len(sizes), len(sizes))
    with file_with(data) as log, file_with(b"") as index:
        assert native.scan_file(log, 0, 0, 0, 0, index) == whole[:6]
        assert os.pread(index, len(whole[6]) + 1, 0) == whole[6]


def test_zero_bytes_are_no_record() -> None:
    assert native.scan_buffer(bytes(640), 0, 0, 0, 0) == twin_record.scan_buffer(bytes(640), 0, 0, 0, 0)
    assert native.scan_buffer(bytes(640), 0, 0, 0, 0)[:2] == (0, 0)
    with file_with(bytes(640)) as log:
        assert not native.find_later(log, 0, 0)
        assert not twin_record.find_later(log, 0, 0)
