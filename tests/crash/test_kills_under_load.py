"""The short form of `make crash`: random processes of a server under load are killed; nothing acknowledged is lost."""

from __future__ import annotations

import itertools
import os
import secrets
from pathlib import Path

import pytest

from tests.crash import faults, kills

KILLS = {"written": 4, "durable": 3}


@pytest.mark.parametrize("level", ["written", "durable"])
def test_acked_messages_and_offsets_survive_kills_of_random_processes(tmp_path: Path, level: str) -> None:
    seed = int(os.environ.get("CRASH_SEED", secrets.randbelow(2**32)))
    print(f"CRASH_SEED={seed}")
    figures = kills.campaign(tmp_path, KILLS[level], [level], seed)
    shown = "\n".join(map(str, figures.findings[: kills.SHOWN_MAX]))
    assert not figures.findings, f"{figures}\n{shown}"
    assert figures.kills.total() == KILLS[level]
    assert figures.errors >= KILLS[level], "the kills did not hit the load"
    assert figures.current["acknowledged"] + figures.settled["acknowledged"] > 100 * KILLS[level]
    assert figures.current["offsets"] + figures.settled["offsets"] > 5 * KILLS[level]


def test_who_is_served_slowly_is_waited_for() -> None:
    seconds, left = itertools.count(), iter([5, 5, 5, 4, 4, 4, 2, 1, 1, 0])
    assert faults.wait_until_none_is_left(lambda: range(next(left)), 3.0, lambda: float(next(seconds))) > 3.0


def test_canary_who_is_not_served_is_not_waited_for_without_end() -> None:
    seconds, left = itertools.count(), itertools.chain([5, 4], itertools.repeat(3))
    with pytest.raises(TimeoutError, match="nobody of 3"):
        faults.wait_until_none_is_left(lambda: range(next(left)), 3.0, lambda: float(next(seconds)))
