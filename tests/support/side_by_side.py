"""How `pytest -n` divides the tests among its processes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

ONE_JVM: Final = "tests with a Spark session"
# Files whose tests, one behind the other, take half a minute or more, and which would begin late by their names: with
# these a run begins, so that none of them is what all other processes wait for at its end.
LONGEST: Final = (
    "tests/models/test_consumer.py", "tests/sim/test_sim.py", "tests/soak/", "tests/vopr/", "tests/power/",
    "tests/spark/test_driver_kills.py", "tests/spark/test_model.py", "tests/spark/test_model_lives.py",
    "tests/unit/test_backup_host.py", "tests/unit/test_backup_side_files.py", "tests/unit/test_upgrade_check.py",
)  # fmt: skip
_ROOT: Final = Path(__file__).parents[2]


@cache
def unit_of(file: str) -> str:
    """What runs in one process, in its order: the tests of a file, and all that use the one Spark session."""
    spark = file.startswith("tests/spark/") and "SparkSession" in (_ROOT / file).read_text()
    return ONE_JVM if spark else file


def begins_late(file: str) -> int:
    """0: with the run, 1: next, 2: when there is room."""
    return 0 if unit_of(file) == ONE_JVM else 1 if file.startswith(LONGEST) else 2


class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]
    """Fixtures of a module are made once, and a file that measures or freezes something has no company of its kind."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid.partition("::")[0])

    def remove_node(self, node: Any) -> str | None:
        """A test with which its process has ended has failed, and does not end the next process, too."""
        units = self.assigned_work[node]
        running = next((test for unit in units.values() for test, is_done in unit.items() if not is_done), "")
        for unit in units.values():
            if running in unit:
                unit[running] = True
        # xdist gives all of them out again, and a process with two units without a test would wait for ever
        self.assigned_work[node] = {name: unit for name, unit in units.items() if not all(unit.values())}
        super().remove_node(node)
        return running or None
