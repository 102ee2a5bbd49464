"""What a worker imports is CPU time of every start and of every restart after a crash."""

from __future__ import annotations

import subprocess
import sys

# what only rare requests need, and what only the supervisor needs
RARE = {"difflib", "psutil", "shutil", "tempfile", "tomllib", "zipfile", "zstandard"}
SUPERVISOR = {"shardd.config.keys", "shardd.config.loader", "shardd.server", "typer"}
WORKER = "shardd.cli.worker, shardd.worker.worker, shardd.transport.classic.dispatch, shardd.transport.door.endpoint"


def imported(modules: str) -> set[str]:
    code = f"import {modules}, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


def test_a_worker_imports_nothing_that_only_rare_requests_or_the_supervisor_need() -> None:
    assert not imported(WORKER) & (RARE | SUPERVISOR)


def test_what_is_looked_for_can_be_found() -> None:
    others = "shardd.cli.serve, shardd.cli.main, shardd.service.snapshot_members, shardd.service.snapshot_archive"
    assert imported(others) >= RARE | SUPERVISOR
