"""The short form of `make crash`: random processes of a server under load are killed; nothing acknowledged is lost."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.crash import kills

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
