"""What `shardd doctor log` tells of a segment whose files are missing: the log is lost, or is there and cannot be read,
or nothing of it counts any more since its partition was purged."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.log import diagnosis, layout
from shardd.log.blocks import Codec
from shardd.log.compressing import Outcome, finish, prepare, put_in_place
from shardd.log.diagnosis import LOOKS_MAX, ReplacedError, diagnose_partition
from shardd.log.incarnation import read_incarnation
from shardd.log.manifest import write_manifest
from shardd.log.segment_reader import segment_starts
from shardd.runtime.throttle import Throttle
from tests.unit import log_files
from tests.unit.log_files import INCARNATION

FIRST = log_files.segment(0, [3, 2])
SECOND = log_files.segment(FIRST.count, [200] * 3, 2000, payload_bytes=200)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    return layout.partition_directory(tmp_path / "data", 1, 2, 0)


def fill(directory: Path, *segments: log_files.Stored) -> None:
    log_files.write(directory, *segments)
    for stored in segments:
        write_manifest(directory, log_files.manifest_of(stored))


def purge(directory: Path, start: int = 0) -> None:
    """As a server does it: the directory goes as a whole, and another one takes its name. Its segment has this
    start."""
    incarnation = (read_incarnation(directory) or 0) + 1
    directory.rename(directory.parents[6] / f"purged-{incarnation}")
    log_files.write(directory, log_files.segment(start, [1]), incarnation=incarnation)


def doctor(directory: Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", "log", str(directory.parents[5])])
    return result.exit_code, result.output


@pytest.mark.parametrize("before", [(), (FIRST,)], ids=["first", "behind another"])
def test_blocks_whose_length_is_unknown_are_told_as_unreadable(
    partition: Path, before: tuple[log_files.Stored, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(partition, *before, SECOND)
    prepared = prepare(partition, SECOND.start, INCARNATION, Codec("zstd", 3), Throttle())
    assert prepared.outcome is Outcome.READY and put_in_place(partition, SECOND.start)
    finish(partition, SECOND.start)
    blocks = layout.segment_file(partition, SECOND.start, "blocks")
    blocks.write_bytes(bytes(64) + blocks.read_bytes()[64:])
    for suffix in ("manifest", "index"):
        layout.segment_file(partition, SECOND.start, suffix).unlink()
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    status, said = doctor(partition)
    index = layout.segment_index(partition, SECOND.start)
    assert status == 1 and said.count("damage: ") == 1, said
    assert f"damage: {index} cannot be read (No such file or directory)" in said and "gone since" not in said, said
    assert f"segments {len(before) + 1}, " in said
    assert waits == []


def test_a_purge_before_the_segments_are_listed_again_is_not_told_as_a_loss(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is missed, the marker is still that of the listed partition, and the segments are those behind it."""
    fill(partition, FIRST, SECOND)
    looks = count()

    def listed(directory: Path) -> list[int]:
        match next(looks):
            case 0:
                found = segment_starts(directory)
                layout.segment_log(directory, SECOND.start).unlink()
                return found
            case 2:
                purge(directory)
        return segment_starts(directory)

    monkeypatch.setattr(diagnosis, "segment_starts", listed)
    with pytest.raises(ReplacedError):
        list(diagnose_partition(partition))


def test_a_purge_after_the_last_look_for_a_log_is_not_told_as_a_loss(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest of the missing log stays, so that the doctor waits for its end as long as it may."""
    fill(partition, FIRST, SECOND)
    waits = count(1)

    def listed(directory: Path) -> list[int]:
        found = segment_starts(directory)
        layout.segment_log(directory, FIRST.start).unlink(missing_ok=True)
        return found

    def wait(_: float) -> None:
        if next(waits) == LOOKS_MAX:
            purge(partition)

    monkeypatch.setattr(diagnosis, "segment_starts", listed)
    monkeypatch.setattr("time.sleep", wait)
    with pytest.raises(ReplacedError):
        next(diagnose_partition(partition))


def test_a_partition_that_every_look_finds_purged_is_a_failure(
    partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(partition, FIRST)

    def listed(directory: Path) -> list[int]:
        found = segment_starts(directory)
        purge(directory, start=found[-1] + 1)
        return found

    monkeypatch.setattr(diagnosis, "segment_starts", listed)
    status, said = doctor(partition)
    assert status == 1, said
    assert said.count("and is looked at again") == LOOKS_MAX - 1, said
    assert f"damage: partition 1/2/0 cannot be read: each of {LOOKS_MAX} looks met a purge" in said, said
