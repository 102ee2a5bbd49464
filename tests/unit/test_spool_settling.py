"""A segment is taken into the spool once the engine has renamed all its files, whatever the wall clock does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shardd.log import layout, spool
from shardd.log.spool import SETTLE_S, Segment, Settling

SEGMENT = Segment((1, 2, 3), 7, 40)
LATER = Segment((1, 2, 3), 7, 80)


class Steady:
    """Takes the place of the monotonic clock."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def arrive(data: Path, segment: Segment, suffix: str) -> Path:
    prefix = Path(spool.incoming_prefix(data, segment.ids, segment.incarnation))
    path = prefix.with_name(f"{prefix.name}-{segment.start:020}.{suffix}")
    path.write_bytes(b"x")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    layout.make_incoming(tmp_path)
    return tmp_path


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_wall_clock_that_jumps_settles_no_segment(data: Path, jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    steady = Steady()
    settling = Settling(steady)
    arrive(data, SEGMENT, "index")
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + jump_s)
    assert settling.incoming(data) == []
    steady.now_s += SETTLE_S
    assert settling.incoming(data) == [SEGMENT]


def test_a_segment_settles_when_no_file_has_come_for_a_while(data: Path) -> None:
    steady = Steady()
    settling = Settling(steady)
    arrive(data, SEGMENT, "manifest")
    assert settling.incoming(data) == []
    steady.now_s += SETTLE_S
    arrive(data, SEGMENT, "log")
    arrive(data, LATER, "index")
    assert settling.incoming(data) == []  # it is in the middle of its renames
    steady.now_s += SETTLE_S / 2
    arrive(data, LATER, "log")
    assert settling.incoming(data) == []
    steady.now_s += SETTLE_S / 2
    assert settling.incoming(data) == [SEGMENT]
    steady.now_s += SETTLE_S / 2
    assert settling.incoming(data) == [SEGMENT, LATER]


def test_a_segment_that_comes_again_settles_anew(data: Path) -> None:
    """After a power loss, say: what was known of the one before says nothing about it."""
    steady = Steady()
    settling = Settling(steady)
    path = arrive(data, SEGMENT, "log")
    settling.incoming(data)
    path.unlink()
    steady.now_s += SETTLE_S
    assert settling.incoming(data) == []
    arrive(data, SEGMENT, "log")
    assert settling.incoming(data) == []


def test_an_entry_that_is_being_made_does_not_wait_but_with_a_file_that_came_later(data: Path) -> None:
    steady = Steady()
    settling = Settling(steady)
    building = Path(f"{spool.incoming_prefix(data, SEGMENT.ids, SEGMENT.incarnation)}-{SEGMENT.start:020}.log.building")
    building.mkdir()
    assert settling.incoming(data) == [SEGMENT]
    arrive(data, SEGMENT, "index")
    assert settling.incoming(data) == []
    assert spool.incoming(data) == [SEGMENT]
