"""The short form of `make crash-archive`, and proof that what judges it finds what is planted."""

from __future__ import annotations

import shutil
from pathlib import Path

from shardd.log import spool
from tests.crash import faults
from tests.crash.archive_kills import ENTRIES, KINDS, ArchiveLane
from tests.crash.clean_kills import run
from tests.support import wire


def test_a_kill_at_a_step_of_archiving_deletes_nothing_that_is_not_archived(tmp_path: Path) -> None:
    figures = run(tmp_path, 9, seed=4, lanes=3, kinds=KINDS, lane_of=ArchiveLane)
    print(figures)
    assert not figures.findings, figures.findings
    assert figures.killed.total() >= 7 and figures.killed.keys() & {step.about for step in ENTRIES}
    assert figures.counts["archived"] >= figures.counts["acknowledged"] > 0


def test_an_entry_that_goes_or_comes_twice_is_found(tmp_path: Path) -> None:
    [kind] = [each for each in KINDS if each.name == "archive by acks"]
    lane = ArchiveLane(tmp_path / "lane", kind, seed=1)
    lane.start()
    try:
        lane.make_topic()
        waiting = spool.spool_directory(lane.server.data_dir)
        with wire.connect(lane.server.address) as connection:
            lane.send(connection, 30)
            faults.wait_until(lambda: len(list(spool.entries(waiting))) > 3, "entries")
        lane.server.stop()
        first, second = list(spool.entries(waiting))[:2]
        shutil.rmtree(first)
        shutil.copytree(second, tmp_path / "copy")
        lane.server.start()
        lane.expire_all()
        [lost] = [each for each in lane.figures.findings if each.startswith("deleted without an archive")]
        assert not lost.startswith("deleted without an archive: 0")
        assert not any("twice" in each for each in lane.figures.findings)
        shutil.copytree(tmp_path / "copy", second)
        (second / spool.ACK).unlink(missing_ok=True)
        lane._archive()
        assert any("comes to the archive twice" in each for each in lane.figures.findings)
    finally:
        lane.server.stop()
