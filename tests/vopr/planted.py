"""Faults that are planted into the programs of a run, to show that the run finds them. `planted_site/sitecustomize.py`
puts them into every Python process that has its directory on the path and its name in VOPR_PLANTED."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DIRECTORY: Final = Path(__file__).with_name("planted_site")
STALE_DELETIONS: Final = "deletions by place"  # DELETE_SEGMENTS goes on with what is there after a purge
STALE_SETTINGS: Final = "settings of before"  # retention goes by settings that are two seconds old
FOOLED_CLOCK: Final = "a fooled clock"  # every clock jumps with that of the wall
LINKED_TWICE: Final = "links by name"  # a backup asks twice which file a segment has, and proves nothing
ALL: Final = (STALE_DELETIONS, STALE_SETTINGS, FOOLED_CLOCK, LINKED_TWICE)


def environment(plant: str) -> dict[str, str]:
    return {"VOPR_PLANTED": plant, "PYTHONPATH": str(DIRECTORY)} if plant and plant != FOOLED_CLOCK else {}


def clocks(plant: str) -> tuple[str, ...]:
    return ("boottime", "monotonic") if plant == FOOLED_CLOCK else ()
