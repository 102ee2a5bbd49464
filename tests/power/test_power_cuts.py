"""Power cuts of a real server, the short form of `make crash-power`. Without FUSE the cuts of the log layer alone are
made (native: test_partition_power.c, which `make test` runs anyway)."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.power import cuts
from tests.power.disk import why_not

REASON = why_not()
pytestmark = pytest.mark.skipif(
    REASON is not None,
    reason=f"{REASON}. Not run: power cuts of a whole server (metadata, stored offsets, purge, deleted segments, both "
    "I/O engines). The log layer alone: native/tests/test_partition_power.c",
)


@pytest.mark.timeout(240)
def test_what_a_level_promises_survives_power_cuts(tmp_path: Path) -> None:
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}")
    figures = cuts.run(tmp_path, 4, seed, ("durable", "written"), cuts.ENGINES, jobs=2, chain_cuts=2)
    assert not figures.findings, "\n".join(figures.findings)
    assert sum(figures.cuts.values()) >= 4


@pytest.mark.timeout(240)
def test_a_disk_whose_syncs_do_nothing_is_found_out(tmp_path: Path) -> None:
    found = cuts.canary(tmp_path, 1, "io_uring")
    assert found is not None
