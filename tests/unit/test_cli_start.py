"""What the commands import: each its own, and `serve` only what a supervisor needs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from shardd.cli.main import app

GROUPS = [
    *("backup", "bench", "client", "context", "config", "debug", "doctor", "group", "import", "message", "offset"),
    *("partition", "pipeline", "retention", "segment", "spark", "stream", "tls", "token", "topic", "upgrade", "user"),
]
_IMPORT_WHAT_SERVE_IMPORTS = "import sys; import shardd.cli.main, shardd.cli.serve; print(*sorted(sys.modules))"


def test_a_start_imports_no_other_command_and_nothing_of_the_workers() -> None:
    run = subprocess.run([sys.executable, "-c", _IMPORT_WHAT_SERVE_IMPORTS], capture_output=True, text=True, check=True)
    imported = set(run.stdout.split())
    assert "shardd.server.supervisor" in imported
    needless = {"rich.live", "asyncio", "zmq", "shardd.metadata", "shardd.migration.iggy_directory", "shardd.cli.top"}
    assert not imported & (needless | {f"shardd.cli.{name}" for name in GROUPS})


def test_the_help_lists_the_commands_in_their_order() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    _, _, commands = shown.partition("Commands:")
    assert [line.split()[0] for line in commands.splitlines() if line.startswith("  ")] == [
        "serve",
        "ping",
        "login",
        "logout",
        "top",
        "drain",
        "completion",
        "produce",
        "consume",
        "lag",
        "stats",
        "snapshot",
        *GROUPS,
    ]


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_has_commands(group: str) -> None:
    shown = CliRunner().invoke(app, [group, "--help"])
    assert shown.exit_code == 0
    assert "Commands:" in shown.output


def test_a_mistyped_group_is_refused_with_what_was_meant() -> None:
    refused = CliRunner().invoke(app, ["bakcup"])
    assert refused.exit_code == 2
    assert "Did you mean 'backup'?" in refused.output
