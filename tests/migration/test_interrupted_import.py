"""An import that ends at any of its changes to the disk: Iggy's directory as it was, or an import that goes on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shardd.metadata import FILE_NAME
from shardd.metadata.births import born
from shardd.migration.errors import MigrationError
from shardd.migration.iggy_directory import ImportDisk, import_directory
from tests.migration import iggy_state as iggy
from tests.support import data_fixture
from tests.support.data_fixture import FixtureCheck
from tests.support.server import Server
from tests.unit.log_files import tree

FIRST = born(7 << 32)  # the number that the imports here begin behind; it is drawn otherwise
OURS = (
    "incarnation", "imported", "incarnation.tmp", "imported.tmp", "groups.import", "state.messages.tmp",
    "state.snapshot", "state.snapshot.tmp",
)  # fmt: skip
CHANGES = ("pwrite", "fdatasync", "rename", "sync_directory", "make_directory", "remove_tree", "open")
KILL_IN_PROCESS = """
import os, signal, sys
from pathlib import Path
from tests.migration.test_interrupted_import import FIRST, StoppingDisk
from shardd.migration.iggy_directory import import_directory
def end():
    os.kill(os.getpid(), signal.SIGKILL)
import_directory(Path(sys.argv[1]), StoppingDisk(int(sys.argv[2]), end), FIRST)
"""


class Stopped(BaseException):
    """The process is gone."""


def stop() -> None:
    raise Stopped


class StoppingDisk(ImportDisk):
    """Ends before the n-th change; `count` changes were asked for."""

    def __init__(self, at: int, end: Callable[[], None] = stop) -> None:
        self.count = 0
        self._at = at
        self._end = end

    def __getattribute__(self, name: str) -> object:
        if name in CHANGES:
            self.count += 1
            if self.count == self._at:
                self._end()
        return super().__getattribute__(name)


def iggys_own(directory: Path) -> dict[str, bytes]:
    """What Iggy would see: without what only this server reads."""
    return {name: data for name, data in tree(directory).items() if not set(name.split("/")) & set(OURS)}


def small(parent: Path) -> Path:
    """Two partitions: one with offsets of consumers and of groups whose ids and new numbers overlap, one without."""
    groups = [iggy.group(0, 0, number, f"g{number}") for number in range(7)]
    changes = [iggy.ROOT, iggy.stream(0, "s"), iggy.topic(0, 0, "t", 2), *groups, iggy.token("ci_token")]
    data = iggy.directory(parent / "data", changes, [(0, 0, 0), (0, 0, 1)])
    offsets = data / "streams/0/topics/0/partitions/0/offsets"
    for name in ("consumers/7", "groups/0", "groups/6"):
        path = offsets / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(len(name).to_bytes(8, "little"))
    return data


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files after an import that nothing disturbed."""
    data = small(tmp_path_factory.mktemp("whole"))
    import_directory(data, first=FIRST)
    return tree(data)


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> int:
    return changes_of(small(tmp_path_factory.mktemp("counted")))


def changes_of(data: Path) -> int:
    disk = StoppingDisk(-1)
    import_directory(data, disk, FIRST)
    return disk.count


def test_a_stop_at_every_change_leaves_iggys_directory_or_is_finished(
    tmp_path: Path, whole: dict[str, bytes], changes: int
) -> None:
    original = tree(small(tmp_path / "original"))
    seen_before = seen_behind = 0
    for at in range(1, changes + 1):
        data = small(tmp_path / str(at))
        with pytest.raises(Stopped):
            import_directory(data, StoppingDisk(at), FIRST)
        if (data / FILE_NAME).exists():
            seen_behind += 1
        else:
            seen_before += 1
            assert iggys_own(data) == original, f"change {at}"
        if (data / "state" / "log").exists():
            import_directory(data, first=FIRST)
        assert tree(data) == whole, f"change {at}"
    assert seen_before > 20
    assert seen_behind > 3


def test_stops_one_after_the_other(tmp_path: Path, whole: dict[str, bytes], changes: int) -> None:
    for first in range(1, changes + 1, 5):
        data = small(tmp_path / str(first))
        for at in (first, 4, first, changes // 2):
            if (data / "state" / "log").exists():
                with contextlib.suppress(Stopped):
                    import_directory(data, StoppingDisk(at), FIRST)
        if (data / "state" / "log").exists():
            import_directory(data, first=FIRST)
        assert tree(data) == whole, f"change {first}"


def test_a_failing_disk_is_told_and_leaves_the_same(tmp_path: Path, whole: dict[str, bytes], changes: int) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    for at in range(1, changes + 1):
        data = small(tmp_path / str(at))
        with pytest.raises(OSError, match="No space left"):
            import_directory(data, StoppingDisk(at, fail), FIRST)
        if (data / "state" / "log").exists():
            import_directory(data, first=FIRST)
        assert tree(data) == whole, f"change {at}"


def kill_at(data: Path, change: int) -> None:
    killed = subprocess.run([sys.executable, "-c", KILL_IN_PROCESS, str(data), str(change)], timeout=60, check=False)
    assert killed.returncode == -9
    assert (data / "state" / "log").exists()


def test_a_killed_process_before_the_rename(tmp_path: Path, whole: dict[str, bytes], changes: int) -> None:
    data = small(tmp_path)
    kill_at(data, changes // 2)
    assert not (data / FILE_NAME).exists()
    import_directory(data, first=FIRST)
    assert tree(data) == whole


def test_a_killed_process_behind_the_rename_and_a_server_that_finishes(tmp_path: Path) -> None:
    data = data_fixture.unpack(tmp_path)
    kill_at(data, changes_of(data_fixture.unpack(tmp_path / "counted")) - 5)
    assert (data / FILE_NAME).exists()
    with Server(data, {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"}) as server:
        found = FixtureCheck(server.address)
        found.run()
        assert found.differences == []


def test_a_log_that_went_on_behind_an_interrupted_import_is_not_lost(tmp_path: Path, changes: int) -> None:
    data = small(tmp_path)
    with pytest.raises(Stopped):
        import_directory(data, StoppingDisk(changes - 1), FIRST)
    assert (data / FILE_NAME).exists()
    with (data / "state" / "log").open("ab") as log:
        log.write(iggy.entry(11, iggy.stream(1, "later")))
    before = tree(data)
    with pytest.raises(MigrationError, match="was not made from it"):
        import_directory(data, first=FIRST)
    assert tree(data) == before
