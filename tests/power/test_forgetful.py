"""The file system that forgets (forgetful.c): what was synced is there after a cut, what was not may be lost, torn or
there, and the planted faults are seen."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power.disk import Disk, why_not

SEEDS = range(20)
REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


def write(path: Path, data: bytes, *, sync: bool = False, at: int = 0) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, data, at)
        if sync:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def survivors(base: Path, seed: int, names: str = "strict", *, lie: bool = False) -> Path:
    """A file `kept` synced with its directory, then changed; a file `new` in a directory `fresh`, none of it synced."""
    out = base / f"out-{names}-{seed}"
    with Disk(base / f"in-{names}-{seed}", base / "mount", names=names, seed=seed) as disk:
        if lie:
            disk.lie()
        mount = disk.mount
        write(mount / "kept", b"a" * 20_000, sync=True)
        sync_directory(mount)
        write(mount / "kept", b"b" * 12_000, at=14_000)
        (mount / "fresh").mkdir()
        write(mount / "fresh" / "new", b"c" * 9000)
        (mount / "kept").rename(mount / "moved")
        assert (mount / "moved").read_bytes() == b"a" * 14_000 + b"b" * 12_000  # programs see what they did
        disk.cut(seed, out)
        with pytest.raises(OSError, match="Input/output"):
            write(mount / "late", b"x")
    return out


def test_what_was_synced_survives_and_what_was_not_may_do_anything(base: Path) -> None:
    lengths, contents, names, torn = set(), set(), set(), 0
    for seed in SEEDS:
        out = survivors(base, seed)
        (kept,) = [path for path in out.iterdir() if path.name in ("kept", "moved")]
        data = kept.read_bytes()
        assert data[:14_000] == b"a" * 14_000
        assert 20_000 <= len(data) <= 26_000
        assert set(data[14_000:]) <= set(b"ab\0")
        sectors = {data[at : at + 512] for at in range(14_336, 20_000 - 512, 512)}
        torn += len(sectors) > 1
        lengths.add(len(data))
        contents.add(data)
        names.add((kept.name, (out / "fresh").exists(), (out / "fresh" / "new").exists()))
    assert len(lengths) > 2
    assert len(contents) > 5
    assert len(names) >= 4
    assert torn


def test_ext4_names_are_lost_from_the_end(base: Path) -> None:
    seen = set()
    for seed in SEEDS:
        out = survivors(base, seed, "ext4")
        seen.add(((out / "fresh").exists(), (out / "fresh" / "new").exists(), (out / "moved").exists()))
    assert seen <= {(False, False, False), (True, False, False), (True, True, False), (True, True, True)}
    assert len(seen) > 2


def test_a_lying_disk_loses_what_was_synced(base: Path) -> None:
    assert any(not (survivors(base, seed, lie=True) / "kept").exists() for seed in range(10))


def test_a_failed_sync_forgets_the_pages_for_good(base: Path) -> None:
    with Disk(base / "in", base / "mount", seed=5) as disk:
        path = disk.mount / "file"
        write(path, bytes(4096 * 50), sync=True)
        sync_directory(disk.mount)
        descriptor = os.open(path, os.O_RDWR)
        os.pwrite(descriptor, b"x" * 4096 * 50, 0)
        disk.fail_syncs(1)
        with pytest.raises(OSError) as failure:
            os.fdatasync(descriptor)
        assert failure.value.errno == errno.EIO
        os.fdatasync(descriptor)  # says that all is well
        assert os.pread(descriptor, 4096, 4096 * 20) == b"x" * 4096
        os.close(descriptor)
        disk.cut(1, base / "out")
    assert b"\0" in (base / "out" / "file").read_bytes()


def test_an_armed_cut_comes_before_its_operation(base: Path) -> None:
    with Disk(base / "in", base / "mount") as disk:
        disk.arm("n", 3, 1, base / "out")
        for number in range(2):
            write(disk.mount / f"{number}", b"x")
        assert disk.went(0) is None
        with pytest.raises(OSError, match="Input/output"):
            write(disk.mount / "2", b"x")
        counts = disk.went(5)
        assert counts is not None
        assert counts["names"] == 2


def test_truncated_bytes_do_not_come_back_behind_a_synced_truncation(base: Path) -> None:
    for seed in range(8):
        with Disk(base / f"in{seed}", base / "mount", seed=seed) as disk:
            path = disk.mount / "file"
            write(path, b"o" * 30_000, sync=True)
            sync_directory(disk.mount)
            os.truncate(path, 100)
            write(path, b"", sync=True)
            write(path, b"n" * 20_000, at=100)
            disk.cut(seed, base / f"out{seed}")
        data = (base / f"out{seed}" / "file").read_bytes()
        assert data[:100] == b"o" * 100
        assert set(data[100:]) <= set(b"n\0")


def test_what_survived_is_durable_on_the_next_disk(base: Path) -> None:
    out = survivors(base, 3)
    before = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with Disk(out, base / "mount") as disk:
        assert {path.name for path in disk.mount.iterdir()} == {path.name for path in out.iterdir()}
        disk.cut(9, base / "again")
    again = base / "again"
    assert {path.relative_to(again): path.read_bytes() for path in again.rglob("*") if path.is_file()} == before
