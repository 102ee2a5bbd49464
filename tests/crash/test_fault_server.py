"""The short form of the server's part of `make fault`: a few of the calls, and the canary."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.crash.fault_server import SHOWN_MAX, Sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path, 6)


def test_errors_of_the_disk_under_a_running_server_make_no_false_acknowledgement(sweep: Sweep) -> None:
    sweep.run("durable", ("write", "sync", "mkdir", "open"), (errno.EIO, errno.ENOSPC), (), (), step=5)
    print(f"{sweep.pairs} pairs, calls {dict(sweep.calls)}, statuses {dict(sweep.statuses)}")
    assert not sweep.findings, "\n".join(sweep.findings[:SHOWN_MAX])
    assert sweep.pairs >= 30
    assert sweep.statuses[10006] > 0
    assert sweep.statuses[10009] > 0


def test_a_write_that_the_disk_only_claims_to_have_done_is_found(sweep: Sweep) -> None:
    sweep.run_lies("written")
    assert sweep.pairs == 3
    assert len(sweep.findings) >= 3
