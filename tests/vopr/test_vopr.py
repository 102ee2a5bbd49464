"""The short form of `make vopr`, and faults that it has to find."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.vopr import planted
from tests.vopr.plan import KINDS, Kind
from tests.vopr.run import Outcome, Run

SEED = 20261127
SECONDS = 15.0
CANARY_S = 120.0  # at most: it ends when it has found something


def kinds(*names: str) -> Sequence[Kind]:
    return [each for each in KINDS if each.name in names]


def test_everything_at_once_loses_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("VOPR_SEED", SEED))
    with (tmp_path / "vopr.log").open("w") as log:
        outcome = Run(tmp_path, seed, log).run(SECONDS)
    shown = (tmp_path / "vopr.log").read_text()
    assert not outcome.findings, f"seed {seed}: {outcome}\n{shown}"
    assert outcome.faults.total() >= 2
    assert outcome.counts["messages"] > 1000
    assert outcome.counts["looks"] > 50
    assert outcome.counts["backups restored"] >= 1


class Canary(NamedTuple):
    topics: tuple[str, ...]
    faults: tuple[str, ...]
    finds: tuple[str, ...]  # beginnings of what is found


CANARIES = {
    planted.STALE_DELETIONS: Canary(("overtaken",), (), ("removed: ", "lost: ")),
    planted.STALE_SETTINGS: Canary(("archive-changes",), (), ("archive: ",)),
    planted.FOOLED_CLOCK: Canary(("identified",), ("clock",), ("twice: ",)),
    planted.LINKED_TWICE: Canary(("packed",), (), ("made with status 0, and damaged", "lost ")),
}


SLOW = (planted.FOOLED_CLOCK, planted.LINKED_TWICE, planted.STALE_DELETIONS)  # `make vopr` looks for all of them


@pytest.mark.parametrize(
    "plant", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in planted.ALL]
)
def test_a_planted_fault_is_found(tmp_path: Path, plant: str) -> None:
    canary = CANARIES[plant]
    outcome = found_with(tmp_path, plant, canary)
    assert outcome.findings
    assert all(any(each in finding for each in canary.finds) for finding in outcome.findings), outcome.findings
    assert (tmp_path / "found" / "state.messages").exists()
    if any(each.startswith("topic ") for each in outcome.findings):
        assert "---- " in (tmp_path / "vopr.log").read_text()


def found_with(root: Path, plant: str, canary: Canary) -> Outcome:
    backs_up = plant == planted.LINKED_TWICE
    with (root / "vopr.log").open("w") as log:
        run = Run(
            root, SEED, log, kinds=kinds(*canary.topics), fault_names=canary.faults, backs_up=backs_up, plant=plant
        )
        return run.run(CANARY_S)
