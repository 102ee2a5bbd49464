"""The short form of `make crash-clean`, and proof that what judges it finds what is planted."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import faults
from tests.crash.clean_kills import CLEANING, COMPRESSING, KINDS, STREAM, TOPIC, Kind, Lane, run
from tests.crash.kill_figures import Figures, report
from tests.support import wire
from tests.support.expiry_observer import ExpiryObserver

EXPIRY_US = 1_000_000
SHORT = tuple(step for step in COMPRESSING if step.operation == "rename")


def test_a_kill_at_a_step_of_cleaning_or_compressing_loses_nothing_and_brings_nothing_back(tmp_path: Path) -> None:
    expiry, compression = KINDS[0], KINDS[1]
    kinds = (expiry, Kind("compression", SHORT, compression=compression.compression))
    figures = run(tmp_path, 12, seed=6, lanes=4, kinds=kinds)
    print(figures)
    assert not figures.findings, figures.findings
    assert figures.killed.total() >= 10
    assert figures.killed.keys() & {step.about for step in CLEANING}
    assert figures.killed.keys() >= {step.about for step in SHORT[:2]}


def message(offset: int, timestamp_us: int, payload: bytes) -> wire.Message:
    return wire.Message(offset, timestamp_us, 0, b"", 0, 0, payload, b"", payload)


def test_a_run_that_is_cut_short_tells_what_it_counted_and_is_not_green(tmp_path: Path) -> None:
    stopping = threading.Event()
    stopping.set()
    figures = run(tmp_path / "stopped", 2, seed=1, lanes=1, kinds=KINDS[2:3], stopping=stopping)
    lines, status = report("crash-clean", figures, 0.0, 1)
    assert not figures.findings and status == 1
    assert lines[0] == "CUT SHORT count: 0 of 2 kills" and lines[-1].startswith("crash-clean: cut short")

    class Failing(Lane):
        def make_topic(self) -> None:
            raise TimeoutError("a busy machine")

    figures = run(tmp_path / "failed", 2, seed=1, lanes=2, kinds=KINDS[2:3], lane_of=Failing)
    lines, status = report("crash-clean", figures, 0.0, 1)
    assert len(figures.cut) == 2 and "a busy machine" in lines[0] and status == 1
    whole = Figures()
    whole.killed["a step"] = 2
    assert report("crash-clean", whole, 0.0, 1)[1] == 0


class Scripted:
    """An observer with a clock of its own, and three messages."""

    def __init__(self, expiry_us: int = EXPIRY_US) -> None:
        self.now_us = 0
        self.observer = ExpiryObserver(expiry_us, clock=lambda: self.now_us)
        self.found: list[wire.Message] = []
        for offset in range(3):
            self.now_us = 10_000_000 + offset
            with Nowhere() as connection:
                self.observer.send(connection, STREAM, TOPIC, [b"%d" % offset])
            self.found.append(message(offset, self.now_us, b"%d" % offset))
        self.look(0, 10_000_003)

    def look(self, first: int, at_us: int) -> list[str]:
        self.observer.judge(self.found[first:], at_us, at_us)
        return self.observer.findings


class Nowhere(wire.Wire):
    """Takes everything."""

    def __init__(self) -> None:  # no socket
        pass

    def send(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("first", "at_us", "finding"),
    [
        (0, 10_999_999, ""),
        (0, 11_000_000, "late"),
        (1, 10_999_999, "lost"),
        (1, 11_000_000, ""),
        (2, 11_000_000, "lost"),
    ],
)
def test_the_observer_finds_a_microsecond_early_and_a_microsecond_late(first: int, at_us: int, finding: str) -> None:
    findings = Scripted().look(first, at_us)
    assert [each.split(":")[0] for each in findings] == ([finding] if finding else [])


def test_the_observer_finds_messages_of_others_and_offsets_that_changed() -> None:
    other = Scripted()
    other.found[1] = message(1, 10_000_001, b"other")
    assert other.look(0, 10_000_004)[0].startswith("altered")
    moved = Scripted()
    moved.found = [message(each.offset + 1, each.timestamp_us, each.payload) for each in moved.found]
    assert moved.look(0, 10_000_004)[0].startswith("altered")


def _take_a_segment_away(lane: Lane) -> None:
    for path in lane.directory.glob(f"{sorted(lane.directory.glob('*.blocks'))[1].stem}.*"):
        path.unlink()


def _give_one_another_content(lane: Lane) -> None:
    first, second = sorted(lane.directory.glob("*.blocks"))[:2]
    shutil.copyfile(second, first)


@pytest.mark.parametrize("damage", [_take_a_segment_away, _give_one_another_content])
def test_a_segment_that_is_lost_or_other_than_its_digest_is_found(
    damage: Callable[[Lane], None], tmp_path: Path
) -> None:
    lane = Lane(tmp_path / "lane", KINDS[1], seed=1)
    lane.start()
    try:
        lane.make_topic()
        with wire.connect(lane.server.address) as connection:
            lane.send(connection, 40)
            faults.wait_until(lambda: len(list(lane.directory.glob("*.blocks"))) > 3, "compressed")
            faults.wait_until(lambda: len(list(lane.directory.glob("*.log"))) == 1, "nothing plain is left")
            lane.look(connection)
        lane.server.stop()
        lane.check_digests()
        assert not lane.figures.findings and not lane.observer.findings and lane.figures.counts["compressed"] > 3
        damage(lane)
        lane.check_digests()
        lane.server.start()
        with wire.connect(lane.server.address) as connection:
            try:
                lane.look(connection)
            except wire.StatusError:
                lane.figures.findings.append("refused")
        assert lane.figures.findings or lane.observer.findings
    finally:
        lane.server.stop()
