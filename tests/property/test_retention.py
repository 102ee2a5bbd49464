"""For any sequence of sends, rolls, steps of the clock, stored offsets and cleanings, what is served is what a list of
(offset, time) says: not one microsecond early, not one late."""

from __future__ import annotations

import random
import shutil
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardd.log import layout
from tests.sim.log_disk import LogDisk
from tests.sim.log_library import POLL_FIRST, POLL_TIMESTAMP, Batch, LogPartition, Producing
from tests.sim.log_model import split_records
from tests.support.built import make
from tests.support.generated import examples

NATIVE = Path(__file__).parents[2] / "native"
EXPIRY_US, HELD_US = 1000, 700
SEGMENT_BYTES = 600
CONSUMER = 1  # kind of a stored offset


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    done = make(NATIVE, "sim")
    assert done.returncode == 0, done.stderr


class World:
    """The real partition, and the list."""

    def __init__(self, root: Path, expiry_us: int = EXPIRY_US) -> None:
        self.root = root
        self.disk = LogDisk(root, random.Random(1))
        self.partition = LogPartition(
            self.disk, layout.partition_directory(root, 1, 2, 3), 1, 0, SEGMENT_BYTES, 0, 1, Producing(), []
        )
        self.partition.limit(EXPIRY_US, HELD_US)
        self.expiry_us = expiry_us  # as the list has it
        self.times: list[int] = []  # by offset
        self.stored: dict[int, int] = {}
        self.start = 0
        self.now_us, self.monotonic_us, self.cleanings = 1_000_000, 1_000_000, 0
        self.step(0)

    def step(self, us: int) -> None:
        """Of both clocks; back, of the wall clock."""
        self.now_us += us
        self.monotonic_us += max(us, 0)
        self.partition.clock(self.now_us, self.monotonic_us)

    def send(self, count: int) -> None:
        body = struct.pack("<Q", 7) * 8
        batch = Batch([bytes(48) + struct.pack("<IIQ", 0, len(body), 0) + body] * count)
        self.partition.append([batch], self.now_us)
        assert (batch.status, batch.first_offset) == (0, len(self.times))
        self.times += [max(self.now_us, self.times[-1] if self.times else 0)] * count

    def store(self, consumer: int, share: float) -> None:
        if self.times:
            offset = int(share * (len(self.times) - 1))
            assert self.partition.offset_store(CONSUMER, consumer, offset) == 0
            self.stored[consumer] = offset
            self.look()

    def forget(self, consumer: int) -> None:
        if self.stored.pop(consumer, None) is not None:
            assert self.partition.offset_delete(CONSUMER, consumer) == 0
            self.look()

    def clean(self) -> None:
        for _ in range(3):  # a sync and a second lie between the number and the files
            self.cleanings += 1
            status, _ = self.partition.clean(self.root / f"trash-{self.cleanings}")
            assert status == 0
            for descriptor in self.partition.sync_begin(everything=True):
                self.disk.close(descriptor)
            self.partition.sync_done(0)
            self.monotonic_us += 1_500_000
            self.partition.clock(self.now_us, self.monotonic_us)
        self.look()

    def _younger(self, age_us: int) -> int:
        expired = [at for at in self.times if at + age_us <= self.now_us]
        return len(expired)  # times never fall

    def look(self) -> None:
        """What is served, and where the log is said to begin."""
        wanted = self._younger(self.expiry_us)
        if self.stored:
            barrier = min(self.stored.values())
            wanted = min(wanted, max(barrier + 1, self._younger(self.expiry_us + HELD_US)))
        self.start = max(self.start, wanted)
        expected = list(range(self.start, len(self.times)))
        for kind in (POLL_FIRST, POLL_TIMESTAMP):
            status, _, _, data = self.partition.poll(kind, 0, 10_000, 99)
            assert status == 0
            assert [struct.unpack_from("<Q", record, 24)[0] for record in split_records(data)] == expected
        if self.times:
            assert self.partition.ends().first == self.start

    def close(self) -> None:
        self.partition.free(orderly=False)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 9)),
        st.tuples(st.just("step"), st.integers(-300, 1200)),
        st.tuples(st.just("store"), st.integers(1, 3), st.floats(0, 1)),
        st.tuples(st.just("forget"), st.integers(1, 3)),
        st.tuples(st.just("clean")),
    ),
    max_size=40,
)


def play(steps: list[tuple[object, ...]], expiry_us: int = EXPIRY_US) -> None:
    root = Path(tempfile.mkdtemp(prefix="retention-", dir="/dev/shm"))
    world = World(root, expiry_us)
    try:
        for name, *arguments in steps:
            getattr(world, str(name))(*arguments)
            world.look()
    finally:
        world.close()
        shutil.rmtree(root, ignore_errors=True)


@given(STEPS)
@settings(max_examples=examples(150), deadline=None)
def test_what_is_served_is_what_a_list_of_offsets_and_times_says(steps: list[tuple[object, ...]]) -> None:
    play(steps)


@pytest.mark.parametrize("wrong_by_us", [-1, 1])
def test_a_microsecond_early_or_late_is_found(wrong_by_us: int) -> None:
    steps: list[tuple[object, ...]] = [("send", 3), ("step", EXPIRY_US - 1), ("step", 1)]
    play(steps)
    with pytest.raises(AssertionError):
        play(steps, EXPIRY_US + wrong_by_us)


def test_what_is_held_is_found_when_nobody_holds_it() -> None:
    steps: list[tuple[object, ...]] = [("send", 9), ("store", 1, 0.5), ("step", EXPIRY_US), ("clean",)]
    play(steps)
    steps.append(("step", HELD_US))
    play([*steps, ("clean",)])
