"""What a worker imports is CPU time of every start and of every restart after a crash."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# what only rare requests need, and what only the supervisor needs
RARE = {"difflib", "http.client", "psutil", "shutil", "tempfile", "tomllib", "zipfile", "zstandard"}
SUPERVISOR = {"shardd.config.keys", "shardd.config.loader", "shardd.server", "typer"}
OPTIONAL = {"google.protobuf", "grpc", "nats"}  # packages of `shardd[liftbridge]`, which a server may lack
WORKER = "shardd.cli.worker, shardd.worker.worker, shardd.dispatch.classic.dispatch, shardd.dispatch.door.endpoint"

# a supervisor, which makes the metadata of a new directory, too
START = "shardd.cli.start, shardd.cli.serve_command, shardd.cli.serve, shardd.metadata.births"
NOT_AT_START = {"asyncio", "difflib", "tomllib", "shardd.metadata.replica", "shardd.metadata.writer"}

PACKAGE = Path(__file__).parents[2] / "shardd"


def imported(modules: str) -> set[str]:
    code = f"import {modules}, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


def test_a_worker_imports_nothing_that_only_rare_requests_or_the_supervisor_need() -> None:
    assert not imported(WORKER) & (RARE | SUPERVISOR | OPTIONAL)


def test_a_supervisor_imports_nothing_that_only_workers_or_wrong_settings_need() -> None:
    assert not imported(START) & NOT_AT_START


def test_a_door_imports_without_collections() -> None:
    code = (
        "import gc, sys\nimport shardd.doors.process as process, shardd.doors.start as start\n"
        "looks = []\ngc.callbacks.append(lambda *look: looks.append(look))\n"
        "process.run_door = lambda serve: print(serve.__name__, gc.isenabled(), len(looks))\n"
        "sys.argv[1:] = ['shardd.doors.http.main', '0']\nlooks.clear()\nstart.main()"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["serve", "False", "0"]


def test_a_door_for_liftbridge_imports_no_nats_client_without_a_link() -> None:
    assert "nats" not in imported("shardd.doors.liftbridge.main, shardd.doors.liftbridge.serving")
    assert "nats" in imported("shardd.doors.liftbridge.nats.link")


def test_the_values_of_a_server_are_no_dataclasses() -> None:
    found = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if re.search(r"@dataclass\b", path.read_text())
    }
    elsewhere = {
        name for name in found if name.startswith(("spark/", "client/", "benchmark/"))
    }  # processes of Spark and users
    assert elsewhere
    assert found - elsewhere == {"log/recovered.py"}  # has fields out of `==`


def test_collections_do_not_look_at_modules() -> None:
    look = "print(gc.isenabled(), gc.get_freeze_count())"
    code = f"import gc, shardd.cli.worker as c, shardd.worker.worker as w; w.run = lambda *_: {look}; c.serve(None)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    enabled, frozen = run.stdout.split()
    assert enabled == "True" and int(frozen) > 10_000


def test_what_is_looked_for_can_be_found() -> None:
    others = "shardd.cli.serve, shardd.cli.main, shardd.service.snapshot_members, shardd.service.snapshot_archive"
    others += ", http.client, difflib, tomllib, shardd.worker.worker"
    assert imported(others) >= RARE | SUPERVISOR | NOT_AT_START
