"""A sector of a log that cannot be read costs its offsets, never the partition, wherever it lies."""

from __future__ import annotations

import errno
import struct

import pytest

from tests.crash.faults import wait_until
from tests.crash.opened import BATCH, BATCHES, MESSAGES, Left
from tests.support import wire

CANNOT_READ, DAMAGED = 10002, 4027


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """All of it behind the last checkpoint, in one or in several segments."""
    return Left(tmp_path_factory.mktemp("lost"), {"SHARDD_SYSTEM_SEGMENT_SIZE": "1 MiB"}, sync_interval="1 h")


def one_by_one(root: wire.Wire, end: int) -> dict[int, int | bytes]:
    """By offset: the payload or the status."""
    found: dict[int, int | bytes] = {}
    for offset in range(end):
        try:
            messages = root.poll("s", "t", 0, value=offset, count=1).messages
            found[offset] = messages[0].payload if messages and messages[0].offset == offset else b""
        except wire.StatusError as error:
            found[offset] = error.status
    return found


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """In many segments."""
    return Left(tmp_path_factory.mktemp("rolled"), {})


@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_a_lost_sector_of_the_active_segment_costs_its_offsets(left: Left, part: float) -> None:
    left.fresh()
    [log] = left.partition.glob("*.log")
    before = log.read_bytes()
    borders = ends(before)
    at = int(len(before) * part)
    left.control.arm("read", f"{log.name}$", 1, errno.EIO, for_ever=True, sector=at)
    with left.opened() as root:
        found = one_by_one(root, MESSAGES)
        served = [offset for offset, what in found.items() if what == b"%d" % offset]
        assert set(found.values()) - {b"%d" % offset for offset in served} <= {CANNOT_READ, DAMAGED}
        assert {offset for offset in range(MESSAGES) if borders[offset] <= at // 4096 * 4096} <= set(served)
        lost = sorted(set(range(MESSAGES)) - set(served))
        assert lost, "no message lies on the sector"
        left.send(root, BATCHES)  # behind the highest offset that the segment can hold
        last = root.poll("s", "t", 0, strategy=wire.POLL_LAST, count=BATCH).messages
        assert [int(each.payload) for each in last] == list(range(MESSAGES, MESSAGES + BATCH))
        assert last[0].offset >= MESSAGES
        assert log.read_bytes() == before, "it was changed"
    with left.opened() as root:  # once more
        assert {offset for offset in served if one_of(root, offset) == b"%d" % offset} == set(served)
        again = root.poll("s", "t", 0, strategy=wire.POLL_LAST, count=BATCH).messages
        assert again == last
    left.control.disarm()  # the device gives it again
    with left.opened() as root:
        wait_until(lambda: one_of(root, lost[0]) == b"%d" % lost[0], "what can be read is not served")
        assert one_of(root, served[-1]) == b"%d" % served[-1] if served else True
    assert "read only" not in left.server.log()


@pytest.mark.parametrize("number", [0, -2])
def test_a_lost_sealed_segment_costs_its_offsets_while_it_cannot_be_read(rolled: Left, number: int) -> None:
    rolled.fresh()
    starts = sorted(int(path.stem) for path in rolled.partition.glob("*.log"))
    assert len(starts) >= 4
    start, end = starts[number], starts[starts.index(starts[number]) + 1]
    rolled.control.arm("read", f"{start:020d}.log$", 1, errno.EIO, for_ever=True)
    with rolled.opened() as root:
        found = one_by_one(root, MESSAGES)
        elsewhere = {offset: what for offset, what in found.items() if not start <= offset < end}
        assert elsewhere == {offset: b"%d" % offset for offset in elsewhere}
        assert {found[offset] for offset in range(start, end)} == {CANNOT_READ}
        rolled.send(root, BATCHES)  # sends go on
        rolled.control.disarm()  # the device gives it again
        wait_until(lambda: one_of(root, start) == b"%d" % start, "what can be read is not served")
        assert one_by_one(root, MESSAGES) == {offset: b"%d" % offset for offset in range(MESSAGES)}
    assert "read only" not in rolled.server.log()


def one_of(root: wire.Wire, offset: int) -> int | bytes:
    try:
        return root.poll("s", "t", 0, value=offset, count=1).messages[0].payload
    except wire.StatusError as error:
        return error.status


def ends(log: bytes) -> list[int]:
    """Where each record ends."""
    found: list[int] = []
    at = 0
    while len(found) < MESSAGES:
        headers, payload = struct.unpack_from("<II", log, at + 48)
        at += 64 + headers + payload
        found.append(at)
    return found
