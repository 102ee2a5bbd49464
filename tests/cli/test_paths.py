"""Commands that work on files of this machine, with paths that no file has: one sentence and a documented status."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_processes import SHARDD, TIMEOUT_S
from tests.property.test_command_line import STATUSES
from tests.support.wide import crossed

LINES = (
    "backup create --full-speed %", "backup verify --full-speed %", "backup list %", "backup restore missing %",
    "backup restore % new", "doctor log %", "doctor state --path %", "doctor root-password --path %",
    "import liftbridge % --path new", "upgrade check %",
)  # fmt: skip
PATHS = {
    "long": b"x" * 300,
    "not UTF-8": b"\xff",
    "a device": b"/dev/null",
    "with an escape": b"\x1b[2J" + b"x" * 300,
}


@pytest.mark.parametrize(("line", "path"), crossed(LINES, PATHS, times=2))
def test_hostile_path_is_one_sentence(tmp_path: Path, line: str, path: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    words = [PATHS[path] if word == "%" else os.fsencode(word) for word in line.split()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "XDG_"))}
    own = {"HOME": str(tmp_path), "SHARDD_SYSTEM_PATH": str(tmp_path / "data")}
    ended = subprocess.run(
        [*map(os.fsencode, SHARDD), *words],
        env=environment | own, cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert ended.returncode in STATUSES
    assert b"Traceback" not in ended.stderr and b"\x1b" not in ended.stderr, ended.stderr.decode(errors="replace")
