"""Some seeds find nothing, one seed is always the same run, and every planted fault is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.sim.planted import ALL, Planted
from tests.sim.run import run_seed
from tests.support.built import make

ROOT = Path(__file__).parents[2]
SEEDS = 6  # of `make test`; `make sim` runs 2,000
FIRST = 10_001  # others than those of `make sim`
CANARY_SEEDS_MAX = 150


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    """The partition as a library; nothing happens when it is new enough."""
    built = make(ROOT / "native", f"PYTHON={sys.executable}", "sim")
    assert built.returncode == 0, built.stderr


def test_some_seeds_find_nothing() -> None:
    for seed in range(FIRST, FIRST + SEEDS):
        result = run_seed(seed)
        assert not result.findings, f"python -m tests.sim --seed {seed} --trace: {result.findings}"


def test_seeds_that_once_found_something_find_nothing() -> None:
    for seed in (345, 885, 1019, 2454, 24474, 30036, 31586, 31773, 31902):
        assert not run_seed(seed).findings, f"python -m tests.sim --seed {seed} --trace"


def test_a_seed_is_always_the_same_run() -> None:
    for seed in (1, 2):
        first, second = run_seed(seed), run_seed(seed)
        assert (first.digest, first.steps, first.faults) == (second.digest, second.steps, second.faults)
    assert run_seed(1).digest != run_seed(2).digest


@pytest.mark.parametrize("planted", ALL, ids=lambda each: each.name)
def test_a_planted_fault_is_found(planted: type[Planted]) -> None:
    for seed in range(planted.first_seed, planted.first_seed + CANARY_SEEDS_MAX):
        if run_seed(seed, planted.name).findings:
            return
    pytest.fail(f"{CANARY_SEEDS_MAX} seeds did not find: {planted.name}")
