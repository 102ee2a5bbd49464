"""Settings that are read again: the level of the log changes at once, in all processes and those that come later."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.server import Server

TIMEOUT_S = 60.0
REFUSED = "DEBUG shard-{} request 203 refused"


def reload(server: Server, config: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_"))}
    words = ["config", "reload", "--config", str(config), "--data", str(server.data_dir)]
    command = [sys.executable, "-P", "-m", "shardd", *words]
    return subprocess.run(command, env=kept, capture_output=True, text=True, timeout=TIMEOUT_S)


def until(server: Server, words: str, since: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while words not in server.log()[since:]:
        assert time.monotonic() < deadline, f"the log never says {words!r}:\n{server.log()[since:]}"
        time.sleep(0.02)


def refuse(server: Server) -> None:
    """A request that some worker refuses, which it tells at the level debug."""
    with wire.connect(server.address) as client, contextlib.suppress(wire.StatusError):
        client.delete_stream("missing")


def until_all_tell_of_refusals(server: Server, since: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not all(REFUSED.format(shard) in server.log()[since:] for shard in range(2)):
        assert time.monotonic() < deadline, server.log()[since:]
        refuse(server)


def written(config: Path, level: str, more: str = "") -> Path:
    config.write_text(f'[system.logging]\nlevel = "{level}"\n{more}')
    return config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path / "server.toml", "info")


@pytest.fixture
def server(config: Path, tmp_path: Path) -> Iterator[Server]:
    arguments = ("--with-default-root-credentials", "--config", str(config))
    with Server(tmp_path / "data", {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}, arguments) as made:
        yield made


def test_the_level_of_the_log_changes_in_all_processes_and_stays(server: Server, config: Path) -> None:
    refuse(server)
    assert "DEBUG" not in server.log()
    told = reload(server, written(config, "debug"))
    assert told.returncode == 0 and f"process {server.pid}" in told.stdout, told.stderr
    until(server, "the log level is debug, it was info", 0)
    until_all_tell_of_refusals(server, 0)
    assert 'level = "debug"' in server.runtime_config.read_text()

    begun = len(server.log())
    os.kill(server.worker_pids()[1], signal.SIGKILL)
    until(server, "shard 1", begun)
    server.worker_pids()
    until_all_tell_of_refusals(server, begun)  # also the process that came later

    assert reload(server, written(config, "error")).returncode == 0
    until(server, "the log level is error, it was debug", begun)
    deadline = time.monotonic() + TIMEOUT_S
    while True:  # workers hear of it a moment later
        begun = len(server.log())
        for _ in range(5):
            refuse(server)
        if "DEBUG" not in server.log()[begun:]:
            break
        assert time.monotonic() < deadline


def test_what_needs_a_restart_is_named_and_mistakes_change_nothing(server: Server, config: Path) -> None:
    assert reload(server, written(config, "info", "[server]\nconnections_max = 77\n")).returncode == 0
    until(server, "changed settings that need a restart of the server: server.connections_max", 0)
    assert "the log level is as it was" in server.log()
    wrong = reload(server, written(config, "loud"))
    assert wrong.returncode == 2 and "loud" in wrong.stderr
    os.kill(server.pid, signal.SIGHUP)  # whoever does not ask first
    until(server, "the settings stay as they were", 0)
    refuse(server)
    assert "DEBUG" not in server.log()


def test_without_a_server_it_says_so(server: Server, config: Path) -> None:
    server.stop()
    gone = reload(server, config)
    assert gone.returncode == 1 and "no server runs" in gone.stderr
