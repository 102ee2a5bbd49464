"""The file of stored offsets: the core and its twin read any bytes the same way, and what a partition writes is what
was stored, whenever it is killed."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardd.engine import SegmentInfo
from shardd.log import layout
from shardd.log.offsets_table import (
    HALF_BYTES,
    HEAD_BYTES,
    Half,
    Head,
    StoredOffset,
    decode_table,
    encode_half,
    encode_head,
)
from shardd.log.recovery import open_partition
from shardd.log.stored_offsets import read_table
from tests.sim.log_disk import LogDisk
from tests.sim.log_library import Batch, LogPartition, Place, Producing, read_places
from tests.support.built import make
from tests.support.first_offsets import first_half, first_head

INCARNATION = 5
TAKEN, LOST = 1, 2  # offsets_place_state
MESSAGES = 200


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    built = make(Path(__file__).parents[2] / "native", f"PYTHON={sys.executable}", "sim")
    assert built.returncode == 0, built.stderr


HEADS = st.sampled_from(
    [
        encode_head(INCARNATION),
        first_head(INCARNATION),
        encode_head(INCARNATION + 1),
        bytes(HEAD_BYTES),
        b"SHRDOFFS" + bytes(56),
        b"",
        b"SHRD",
    ]
)
HALF = st.builds(
    Half,
    st.integers(1, 9) | st.sampled_from([0, 2**55, 2**55 + 1]),
    st.integers(0, 3),
    st.integers(0, 3) | st.sampled_from([2**32 - 1, 2**32]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2) | st.just(2**64 - 1),
    st.integers(0, 2) | st.just(2**64 - 1),
    st.integers(0, 2) | st.just(2**64 - 1),
)
WHOLE = HALF.map(encode_half) | st.lists(HALF.map(first_half), min_size=2, max_size=2).map(b"".join)
HALVES = WHOLE | st.just(bytes(HALF_BYTES)) | st.binary(min_size=HALF_BYTES, max_size=HALF_BYTES)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    content = bytearray(draw(HEADS) + b"".join(draw(st.lists(HALVES, max_size=12))))
    for at in draw(st.lists(st.integers(0, max(0, len(content) - 1)), max_size=3)):
        if content:
            content[at] ^= draw(st.sampled_from([1, 0x80]))
    return bytes(content[: len(content) - draw(st.sampled_from([0, 0, 0, 1, 31]))])


def newest(places: list[Place]) -> list[StoredOffset]:
    found: dict[tuple[int, int], Place] = {}
    for each in places:
        before = found.get((each.kind, each.id))
        if each.state == TAKEN and (before is None or each.sequence > before.sequence):
            found[each.kind, each.id] = each
    return sorted(StoredOffset(*key, p.value, p.used_us, p.owner, p.name) for key, p in found.items())


@settings(max_examples=500, deadline=None)
@given(files())
def test_the_core_and_its_twin_read_any_bytes_the_same_way(content: bytes) -> None:
    descriptor = os.memfd_create("offsets")
    try:
        os.write(descriptor, content)
        head, places = read_places(descriptor, INCARNATION, len(content))
    finally:
        os.close(descriptor)
    table = decode_table(content, INCARNATION)
    assert table.head.value == head
    assert (table.places, table.taken) == (len(places), sum(each.state == TAKEN for each in places))
    assert table.hurt == [each.place for each in places if each.hurt]
    assert table.lost == [each.place for each in places if each.state == LOST]
    assert sorted(table.offsets) == newest(places)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "delete", "kill"]),
        st.integers(1, 2),
        st.integers(0, 20),
        st.integers(0, MESSAGES - 1),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(OPERATIONS)
def test_what_was_stored_is_what_the_file_says(operations: list[tuple[str, int, int, int]]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as root:
        directory = layout.partition_directory(Path(root), 1, 2, 3)
        disk = LogDisk(Path(root), random.Random(1))
        segments: list[SegmentInfo] = []
        known: dict[tuple[int, int], int] = {}
        partition = LogPartition(disk, directory, INCARNATION, 0, 1 << 20, 0, 1, Producing(), segments)
        partition.append([Batch([bytes(48) + b"\0\0\0\0\4\0\0\0" + bytes(8) + b"text"] * MESSAGES)], 1000)
        for operation, kind, number, value in operations:
            if operation == "store":
                assert partition.offset_store(kind, number, value) == 0
                known[kind, number] = value
            elif operation == "delete":
                status = partition.offset_delete(kind, number)
                assert (status == 0) is (known.pop((kind, number), None) is not None)
            else:
                partition.free(orderly=False)
                segments = open_partition(directory, INCARNATION).segments
                disk.adopt()
                partition = LogPartition(disk, directory, INCARNATION, 0, 1 << 20, 0, 1, Producing(), segments)
            assert {(k, n): partition.offset_get(k, n) for k, n in known} == known
        partition.free(orderly=False)
        table = read_table(directory, INCARNATION)
        if table is None:
            assert not known
            return
        assert table.head is Head.WHOLE and not table.hurt
        assert sorted(each[:3] for each in table.offsets) == sorted((*key, value) for key, value in known.items())
