"""The short form of `make soak`: everything runs, is measured and verified; whether it is flat needs more time."""

from __future__ import annotations

import random
from pathlib import Path

from tests.crash.faults import wait_until
from tests.soak.run import LEVELS, Soak

DURATION_S = 6.0


def test_a_short_soak_loses_nothing_and_measures_everything(tmp_path: Path) -> None:
    soak = Soak(tmp_path, 10, 6, warm_up_s=1.0)
    try:
        soak.run(DURATION_S, 2.5, 0.5, random.Random(6))
        wait_until(lambda: all(load.changes.rounds > 1 for load in soak.loads.values()), "changes of both servers")
        result = soak.finish()
    finally:
        soak.stop()
    print("\n".join([*result.table(), result.figures]))
    assert not result.problems, "\n".join(result.problems)
    assert soak.kills >= 2
    for level in LEVELS:
        load = soak.loads[level]
        assert load.acknowledged > 200
        assert load.contents.messages > 200
        assert all(truth.remembered <= 4 for truth in load.truths), "the checker's own memory is bounded"
        assert {(level, "fds"), (level, "data"), (f"{level} supervisor", "rss")} <= set(soak.sampler.series)
    soak.sampler.write_csv(tmp_path / "soak.csv")
    lines = (tmp_path / "soak.csv").read_text().splitlines()
    assert len(lines) > 100
    assert lines[0] == "seconds,who,quantity,process,value"
