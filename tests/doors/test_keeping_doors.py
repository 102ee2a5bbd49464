"""How the supervisor keeps doors: what dies is started again, up to a limit."""

from __future__ import annotations

import contextlib
import itertools
import re
import selectors
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.config.loader import load_settings
from shardd.runtime.trust import Trust
from shardd.server import child_process, doors
from shardd.server.child_process import ProcessState
from shardd.server.doors import DoorKeeper, DoorProcess, DoorSpecification, PeerNews
from shardd.server.introductions import Introductions, make_private_listeners
from shardd.server.standstill import ThreadSample
from tests.doors.door_server import HERE, WAIT_S

LOGS = load_settings(None, {}).settings.system.logging


@contextlib.contextmanager
def keeping(directory: Path, *command: str) -> Iterator[tuple[DoorKeeper, Introductions, selectors.BaseSelector]]:
    """One door of one shard, whose worker is a socket that nobody serves."""
    listeners = make_private_listeners(directory, 2)
    introductions = Introductions(listeners[:1], ["x"], listeners[1:])
    with contextlib.closing(introductions), selectors.DefaultSelector() as selector:
        keeper = DoorKeeper([DoorSpecification("x", command)], introductions, selector, 1, LOGS, "test")
        try:
            yield keeper, introductions, selector
        finally:
            keeper.stop()
            keeper.kill_all()
            until(keeper, selector, lambda: not keeper.any_running)


def until(
    keeper: DoorKeeper, selector: selectors.BaseSelector, done: object, looks: list[float] | None = None
) -> PeerNews:
    """`looks` gets the times at which the keeper looks."""
    assert callable(done)
    news: PeerNews = []
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline
        for key, _ in selector.select(0.02):
            news += keeper.on_event(key.data, key.fd)
        now = time.monotonic()
        keeper.look(now, 0.0)
        if looks is not None:
            looks.append(now)
    return news


def test_a_door_that_dies_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "RESTARTS_MAX", 3)
    monkeypatch.setattr(child_process, "_BACKOFF_FIRST_S", 0.01)
    with keeping(tmp_path, str(HERE / "dying_door.py")) as (keeper, introductions, selector):
        (door,) = keeper._doors
        trust = Trust(introductions.inheritance_for_doors(0))  # type: ignore[arg-type]
        keeper.start()
        news = until(keeper, selector, lambda: door.state is ProcessState.GIVEN_UP)
        assert door.respawns == 4
        assert [key.incarnation for _, key in news] == [2, 3, 4, 5]
        for _, key in news:
            trust.renew(key)
        assert trust.sender("door-x.4") is None


def test_a_door_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    """What it runs does not exist: its process ends at once."""
    with keeping(tmp_path, str(tmp_path / "missing.py")) as (keeper, _, selector):
        (door,) = keeper._doors
        keeper.start()
        until(keeper, selector, lambda: door.respawns >= 2)


def test_no_door_means_no_socket(tmp_path: Path) -> None:
    with contextlib.closing(Introductions(make_private_listeners(tmp_path, 2))) as introductions:
        assert introductions.inheritance_for_doors(0) is None
        assert len(introductions.inheritance(0).descriptors()) == 2


def test_the_bus_and_the_doors_do_not_know_each_other(tmp_path: Path) -> None:
    listeners = make_private_listeners(tmp_path, 4)
    with contextlib.closing(Introductions(listeners[:2], ["x", "y"], listeners[2:])) as introductions:
        bus, of_door = introductions.inheritance(0), introductions.inheritance_of_door("x")
        for_doors = introductions.inheritance_for_doors(0)
        assert for_doors is not None
        assert {key.name for key in bus.keys} == {"shard-1"}
        assert {key.name for key in for_doors.keys} == {"door-x", "door-y"}
        assert {key.name for key in of_door.keys} == {"shard-0", "shard-1"}
        assert not {*of_door.descriptors()} & {*bus.descriptors()}
        key = Trust(of_door).credentials("shard-0")
        uid = tmp_path.stat().st_uid
        assert Trust(for_doors).refusal(uid, *key) is None
        assert Trust(bus).refusal(uid, *key) == "no such process"
        introductions.ended(0)
        next_one = introductions.inheritance_for_doors(0)
        assert next_one is not None
        assert Trust(next_one).refusal(uid, *key) == "the key is wrong"


@pytest.mark.parametrize("what", ["loops", "blocks", "stops"])
def test_a_door_whose_loop_stands_still_is_replaced_within_ten_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """By the clock of the keeper, which does not count what is forgiven: in the first look after that time."""
    looks: list[float] = []
    with keeping(tmp_path, str(HERE / "stuck_door.py"), what) as (keeper, _, selector):
        (door,) = keeper._doors
        keeper.start()
        until(keeper, selector, lambda: door.respawns >= 2, looks)
    pause_s = max(after - before for before, after in itertools.pairwise(looks))
    silences_s = [float(each) for each in re.findall(r"it is replaced after ([\d.]+) s", caplog.text)]
    assert silences_s and all(10.0 <= each <= 10.0 + pause_s for each in silences_s), (silences_s, pause_s)


def test_a_door_that_is_busy_for_longer_than_one_may_stand_still_is_left_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def was_busy() -> bool:
        said.append(capfd.readouterr().err)
        return "was busy" in "".join(said)

    with keeping(tmp_path, str(HERE / "stuck_door.py"), "busy") as (keeper, _, selector):
        (door,) = keeper._doors
        keeper.start()
        until(keeper, selector, was_busy)
        assert door.respawns == 1


def test_the_silence_of_a_door_that_gets_no_cpu_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at after a second of silence. It gets 10 ms of a second, then half of one, then it sleeps."""
    seen = iter((("R", 0), ("R", 10_000_000), ("R", 510_000_000), ("S", 510_000_000), *[("R", 510_000_000)] * 3))
    monkeypatch.setattr(doors, "read_thread", lambda thread: ThreadSample(*next(seen), 0))
    door = DoorProcess(DoorSpecification("x", ("-c", "")))
    assert [door.starved_s(now) for now in (0.9, 2.0, 3.0, 4.0, 5.0, 6.0)] == [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    assert door.starved_s(0.5) == 0.0 == door.starved_s(7.0)
