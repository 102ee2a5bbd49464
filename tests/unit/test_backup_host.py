"""What a backup asks of the machine: errors of the disk at any call, its rate, its priority."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from shardd.backup import priority
from shardd.backup.create import Options
from shardd.backup.format import BackupError
from shardd.backup.restore import restore_backup
from shardd.backup.verify import verify_backup
from shardd.runtime.throttle import Throttle
from tests.unit import backup_data
from tests.unit.backup_data import BACKUPS, DataDirectory, back_up

# The entry point, with a look around instead of the command.
PRIORITY = """
import os, signal, sys, types
from shardd.cli import start

def look():
    import psutil
    own = psutil.Process()
    idle = os.sched_getscheduler(0) == os.SCHED_IDLE
    print(idle, int(own.ionice().ioclass), callable(signal.getsignal(signal.SIGALRM)))

sys.modules["shardd.cli.main"] = types.SimpleNamespace(main=look)
sys.argv = ["shardd", *sys.argv[1:]]
start.main()
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    backup_data.quick(monkeypatch)


class Failing:
    """One call of `os.<name>` fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, at: int, number: int) -> None:
        self._left, self._number = at, number
        self._plain: Callable[..., Any] = getattr(os, name)
        monkeypatch.setattr(os, name, self._call)

    @property
    def failed(self) -> bool:
        return self._left < 0

    def _call(self, *arguments: Any, **options: Any) -> Any:
        self._left -= 1
        if self._left == -1:
            raise OSError(self._number, os.strerror(self._number))
        return self._plain(*arguments, **options)


@pytest.mark.parametrize("name", ["open", "write", "link", "rename", "mkdir"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE], ids=errno.errorcode.get)
def test_an_error_at_any_call_gives_a_whole_backup_or_none(
    tmp_path: Path, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDirectory(tmp_path / "data")
    back_up(data)
    complete = {path.name for path in (tmp_path / BACKUPS).iterdir()}
    at = refused = 0
    while True:
        made = None
        with monkeypatch.context() as patch:
            failing = Failing(patch, name, at, number)
            try:
                made = back_up(data)
            except BackupError as error:
                assert os.strerror(number) in str(error)
                refused += 1
        if made is not None:
            complete.add(made.path.name)
            assert verify_backup(made.path).damage == []
            assert made.backup.left_out == []
        assert {path.name for path in (tmp_path / BACKUPS).iterdir()} == complete
        if not failing.failed:
            break
        at += 1
    assert at > 0
    assert refused > 0 or name == "link"


@pytest.mark.parametrize("name", ["open", "write", "mkdir"])
def test_an_error_at_any_call_of_a_restore_leaves_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = back_up(DataDirectory(tmp_path / "data"))
    at = 0
    while True:
        with monkeypatch.context() as patch:
            failing = Failing(patch, name, at, errno.ENOSPC)
            try:
                restore_backup(made.path, tmp_path / "new")
            except BackupError:
                assert not (tmp_path / "new").exists()
        if not failing.failed:
            break
        at += 1
    assert at > 0


def test_the_rate_is_kept_and_idle_time_is_not_saved_up() -> None:
    now, slept = [100.0], []

    def wait(seconds: float | None) -> None:
        assert seconds is not None
        slept.append(round(seconds, 6))
        now[0] += seconds

    throttle = Throttle(1000, clock=lambda: now[0], wait=wait)
    for _ in range(3):
        throttle.spend(500)
    now[0] += 60
    for _ in range(3):
        throttle.spend(500)
    assert slept == [0.5, 0.5, 0.5, 0.5]
    unlimited = Throttle(0, clock=lambda: now[0], wait=wait)
    for _ in range(3):
        unlimited.spend(10**12)
    assert len(slept) == 4


@pytest.mark.parametrize(
    ("command", "gives_way"),
    [("create", True), ("verify", True), ("restore", False), ("create --full-speed", False)],
)
def test_only_who_is_in_no_hurry_gives_way(command: str, gives_way: bool) -> None:
    arguments = [sys.executable, "-c", PRIORITY, "backup", *command.split()]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert (done.stdout.split() == ["True", "3", "True"]) == gives_way


ALARMS = """
from shardd.backup import priority
priority.WORK_S, priority.REST_S = 0.00001, 0
for _ in range(2000):
    with priority.giving_way():
        sum(range(50))
"""


def test_an_alarm_that_comes_at_the_end_is_not_told() -> None:
    """Python tells of a signal that is ignored by the time its handler is due, with a traceback."""
    done = subprocess.run([sys.executable, "-c", ALARMS], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_resting_changes_nothing(tmp_path: Path) -> None:
    """A backup that is interrupted all the time is the same."""
    data = DataDirectory(tmp_path / "data")
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)  # the time limit of this test
    rests = itertools.count()

    def rest(number: int, frame: FrameType | None) -> None:
        next(rests)
        priority._rest(number, frame)

    try:
        signal.signal(signal.SIGALRM, rest)
        signal.setitimer(signal.ITIMER_REAL, priority.WORK_S)
        resting = back_up(data)
        assert next(rests) > 10
        assert verify_backup(resting.path).damage == []
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # also for the one that is on its way: it would set the timer
        signal.setitimer(signal.ITIMER_REAL, *before[1])
        signal.signal(signal.SIGALRM, before[0])
    plain = back_up(data, Options(full=True))
    assert plain.backup.partitions == resting.backup.partitions
