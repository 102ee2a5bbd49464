"""Index, manifest and temporary files of a segment whose log was removed: the next start removes them, too, and nothing
that may be all that is left of lost messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.engine import _native
from shardd.log import layout, spool
from shardd.log.manifest import Checkpoint, Manifest, write_manifest
from shardd.log.recovery import open_partition
from shardd.runtime.boot import boot_id
from tests.unit.log_files import INCARNATION, Stored, segment, write

IDS = (3, 2, 1)
REMOVED = segment(0, [2, 1], timestamp=1000)
KEPT = segment(3, [2, 2], timestamp=2000)
LEFT = {
    "the log has left": ("index", "manifest"),
    "the index has left, too": ("manifest",),
    "the manifest has left before the index": ("index",),
    "a change of the layout was under way": ("index", "manifest", "blocks.tmp", "manifest.tmp"),
    "only that is left": ("blocks.tmp",),
}


def born(directory: Path, stored: Stored, log_start: int) -> None:
    end = int.from_bytes(stored.index[-8:], "little")
    point = Checkpoint(len(stored.log), stored.count, int.from_bytes(stored.index[8:16], "little"), end)
    write_manifest(directory, Manifest(INCARNATION, stored.start, 1, 0, point, log_start=log_start))


def left(data: Path, suffixes: tuple[str, ...], log_start: int) -> tuple[Path, list[Path]]:
    """A partition whose first segment was removed as far as these files."""
    directory = layout.partition_directory(data, *IDS)
    write(directory, REMOVED, KEPT)
    born(directory, REMOVED, 0)
    born(directory, KEPT, log_start)
    for suffix in ("blocks.tmp", "manifest.tmp"):
        layout.segment_file(directory, 0, suffix).write_bytes(b"half")
    for suffix in {"log", "index", "manifest", "blocks.tmp", "manifest.tmp"} - set(suffixes):
        layout.segment_file(directory, 0, suffix).unlink()
    return directory, [layout.segment_file(directory, 0, suffix) for suffix in suffixes]


def doctor(data: Path) -> str:
    result = CliRunner().invoke(app, ["doctor", "log", str(data)])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("about", LEFT)
def test_what_a_removal_that_was_cut_short_has_left_is_removed_by_the_next_start(about: str, tmp_path: Path) -> None:
    directory, paths = left(tmp_path, LEFT[about], log_start=3)
    told = doctor(tmp_path)
    assert all(f"{path.name} is left of a segment that was removed" in told for path in paths)
    found = open_partition(directory, INCARNATION)
    assert [each[0] for each in found.segments] == [3] and not found.damaged and found.state == 0
    assert [f"{path}: left of a segment that was removed, moved to the trash" for path in sorted(paths)] == found.notes
    assert not any(path.exists() for path in paths)
    assert len(list(layout.trash_directory(tmp_path).iterdir())) == len(paths)
    assert "is left of" not in doctor(tmp_path)
    assert _native.recover_partition(str(directory), INCARNATION, boot_id()) is not None, (
        "the next start has nothing to decide"
    )


def test_without_a_log_start_that_explains_it_they_stay(tmp_path: Path) -> None:
    directory, paths = left(tmp_path, ("index", "manifest"), log_start=0)
    assert "is left of" not in doctor(tmp_path)
    notes = open_partition(directory, INCARNATION).notes
    assert all(path.exists() for path in paths)
    assert sum("without a log, ignored" in note for note in notes) == 2


def test_those_of_a_lost_log_in_the_middle_stay(tmp_path: Path) -> None:
    directory, _ = left(tmp_path, ("index", "manifest"), log_start=3)
    later = segment(7, [3], timestamp=3000)
    write(directory, later)
    born(directory, later, 3)
    layout.segment_log(directory, 3).unlink()
    open_partition(directory, INCARNATION)
    # nothing tells that offsets 3 to 6 were removed
    assert layout.segment_index(directory, 3).exists() and layout.segment_manifest(directory, 3).exists()


@pytest.mark.parametrize("where", ["log", "log.building"])
def test_those_of_a_segment_on_its_way_to_its_archive_stay_for_it(where: str, tmp_path: Path) -> None:
    directory, paths = left(tmp_path, ("index", "manifest"), log_start=3)
    prefix = spool.incoming_prefix(tmp_path, IDS, INCARNATION)
    moved = Path(f"{prefix}-{0:020}.{where}")
    moved.parent.mkdir(parents=True)
    if where == "log":
        moved.write_bytes(REMOVED.log)
    else:
        moved.mkdir()
        (moved / f"{0:020}.log").write_bytes(REMOVED.log)
    assert "is left of" not in doctor(tmp_path)
    open_partition(directory, INCARNATION)
    assert all(path.exists() for path in paths)


def test_those_of_another_incarnation_are_not_looked_at(tmp_path: Path) -> None:
    directory, paths = left(tmp_path, ("index", "manifest"), log_start=3)
    with pytest.raises(Exception, match="the metadata is older than the log"):
        open_partition(directory, INCARNATION - 1)
    assert all(path.exists() for path in paths)
