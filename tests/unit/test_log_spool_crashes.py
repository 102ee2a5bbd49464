"""What a crash or a power loss has left between a partition and the spool is put right, or refused with a sentence.
Each of these was found by the simulator (tests/sim/log_archive.py)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shardd.log import layout, spool
from shardd.log.manifest import Checkpoint, Manifest, write_manifest
from shardd.log.spool import Segment, UnfitError
from shardd.runtime.throttle import Throttle
from tests.unit.log_files import INCARNATION, segment, write

IDS = (1, 2, 3)
STORED = segment(0, [3, 2], timestamp=1000)
SEGMENT = Segment(IDS, INCARNATION, 0)


def leave(data: Path, *suffixes: str) -> Path:
    """A partition with a segment, of which these files have left. Returns its directory."""
    home = layout.partition_directory(data, *IDS)
    write(home, STORED, segment(5, [2], timestamp=2000))
    write_manifest(home, Manifest(INCARNATION, 0, 1, 0, Checkpoint(len(STORED.log), 5, 1000, 1001)))
    prefix = spool.incoming_prefix(data, IDS, INCARNATION)
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    for suffix in suffixes:
        layout.segment_file(home, 0, suffix).rename(f"{prefix}-{0:020}.{suffix}")
    return home


def make(data: Path) -> Path | None:
    made = spool.make_entry(data, SEGMENT, ("s", "t"), "required", Throttle())
    return None if made is None else made[0]


def whole(entry: Path | None) -> None:
    assert entry is not None
    manifest = spool.read_entry(entry)
    assert (manifest.start, manifest.end, manifest.records) == (0, 5, 5)
    assert (entry / manifest.file).read_bytes() == STORED.log
    spool.verify(entry, manifest)


def incoming(data: Path) -> list[Path]:
    return list(layout.incoming_directory(data).iterdir())


def test_a_damaged_manifest_is_made_again(tmp_path: Path) -> None:
    leave(tmp_path, "log", "index", "manifest")
    manifest = Path(f"{spool.incoming_prefix(tmp_path, IDS, INCARNATION)}-{0:020}.manifest")
    manifest.write_bytes(b"torn" + manifest.read_bytes()[4:])
    whole(make(tmp_path))


@pytest.mark.parametrize("manifest", ["whole", "damaged", "lost"])
def test_a_lost_index_is_made_again(manifest: str, tmp_path: Path) -> None:
    home = leave(tmp_path, "log")
    layout.segment_index(home, 0).unlink()
    if manifest == "damaged":
        layout.segment_manifest(home, 0).write_bytes(b"torn")
    elif manifest == "lost":
        layout.segment_manifest(home, 0).unlink()
    whole(make(tmp_path))


@pytest.mark.parametrize("building", [False, True])
def test_a_log_that_is_at_home_again_is_not_waited_for(building: bool, tmp_path: Path) -> None:
    """The rename of the log was lost, those of other files were not."""
    home = leave(tmp_path, "index", "manifest")
    if building:
        directory = Path(f"{spool.incoming_prefix(tmp_path, IDS, INCARNATION)}-{0:020}.log.building")
        directory.mkdir()
        for path in incoming(tmp_path):
            if path.is_file():
                path.rename(directory / path.name.split("-", 1)[1])
    assert make(tmp_path) is None
    assert incoming(tmp_path) == [] and spool.incoming(tmp_path) == []
    assert layout.segment_log(home, 0).read_bytes() == STORED.log


def test_blocks_that_left_before_their_log_do_not_stand_for_it(tmp_path: Path) -> None:
    home = leave(tmp_path)
    Path(f"{spool.incoming_prefix(tmp_path, IDS, INCARNATION)}-{0:020}.blocks").write_bytes(b"left over")
    assert make(tmp_path) is None
    assert incoming(tmp_path) == [] and layout.segment_log(home, 0).exists()


def test_what_a_power_loss_brings_back_is_no_second_entry(tmp_path: Path) -> None:
    home = leave(tmp_path)
    shutil.copytree(home, tmp_path / "kept")
    leave(tmp_path, "log", "index", "manifest")
    first = make(tmp_path)
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "kept", home)
    leave(tmp_path, "log", "index", "manifest")
    assert make(tmp_path) == first
    whole(first)
    assert incoming(tmp_path) == []


def test_a_damaged_log_is_refused_with_a_sentence(tmp_path: Path) -> None:
    leave(tmp_path, "log", "index", "manifest")
    log = Path(f"{spool.incoming_prefix(tmp_path, IDS, INCARNATION)}-{0:020}.log")
    content = bytearray(log.read_bytes())
    content[90] ^= 1
    log.write_bytes(content)
    with pytest.raises(UnfitError, match="BAD_CHECKSUM"):
        make(tmp_path)
