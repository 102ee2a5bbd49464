"""`shardd config set`: one key of the file, and of the server that runs with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.server import Server

TIMEOUT_S = 60.0
FILE = """# what the operators of this host agreed on
[server]
idle_timeout = "0 s"  # nobody is sent away

[system.logging]
level = "info"
"""


def set_key(
    file: Path, key: str, value: str, *more: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_"))}
    command = [sys.executable, "-P", "-m", "shardd", "config", "set", key, value, "--config", str(file), *more]
    return subprocess.run(command, env=kept | (environment or {}), capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "server.toml"
    made.write_text(FILE)
    made.chmod(0o640)
    return made


@pytest.fixture
def server(file: Path, tmp_path: Path) -> Iterator[Server]:
    arguments = ("--with-default-root-credentials", "--config", str(file))
    with Server(tmp_path / "data", {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}, arguments) as made:
        yield made


def test_a_limit_counts_at_once_for_connections_that_are_open(server: Server, file: Path) -> None:
    data = ("--data", str(server.data_dir))
    with wire.connect(server.address) as idle:
        idle.ping()
        done = set_key(file, "server.idle_timeout", "1 s", *data)
        assert done.returncode == 0 and f"process {server.pid} has taken it" in done.stdout, done.stderr
        deadline = time.monotonic() + TIMEOUT_S
        with pytest.raises((wire.StatusError, OSError)):
            while time.monotonic() < deadline:
                time.sleep(2.5)
                idle.ping()
    assert set_key(file, "server.idle_timeout", "0 s", *data).returncode == 0
    done = set_key(file, "server.connections_per_address_max", "1", *data)
    assert done.returncode == 0, done.stderr
    with wire.connect(server.address), wire.Wire(server.address) as second, pytest.raises((wire.StatusError, OSError)):
        second.login()
    assert "limits of connections are as they were read" in server.log()


def test_comments_order_and_mode_of_the_file_stay(server: Server, file: Path) -> None:
    done = set_key(file, "system.logging.level", "debug", "--data", str(server.data_dir))
    assert done.returncode == 0, done.stderr
    assert file.read_text() == FILE.replace('"info"', '"debug"') and file.stat().st_mode & 0o777 == 0o640
    done = set_key(file, "system.disk.reserve", "1 GiB", "--data", str(server.data_dir))
    assert done.returncode == 0 and f"process {server.pid} needs a restart" in done.stdout, done.stderr
    assert tomllib.loads(file.read_text())["system"]["disk"] == {"reserve": "1 GiB"}
    assert "# what the operators of this host agreed on" in file.read_text()


def test_without_a_server_the_file_alone_changes(file: Path, tmp_path: Path) -> None:
    done = set_key(file, "tcp.address", "127.0.0.1:9000", "--data", str(tmp_path))
    assert done.returncode == 0 and "the next start takes it" in done.stdout, done.stderr
    assert tomllib.loads(file.read_text())["tcp"]["address"] == "127.0.0.1:9000"
    tried = set_key(file, "tcp.socket_migration", "false", "--dry-run")
    assert tried.returncode == 0 and "tcp.socket_migration is true, it would be false" in tried.stdout
    assert "socket_migration" not in file.read_text()


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (
            "system.logging.levle",
            "info",
            "there is no key system.logging.levle; the closest one is system.logging.level",
        ),
        ("system.logging.level", "loud", "loud"),
        ("server.idle_timeout", "9 days and more", "server.idle_timeout"),
        ("tcp.connections_max", "7", "there is no key tcp.connections_max"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(file: Path, key: str, value: str, sentence: str) -> None:
    wrong = set_key(file, key, value)
    assert wrong.returncode == 2 and sentence in wrong.stderr and "Traceback" not in wrong.stderr
    assert file.read_text() == FILE


def test_a_key_that_a_variable_sets_is_not_changed(file: Path) -> None:
    overruled = set_key(file, "system.logging.level", "debug", environment={"SHARDD_SYSTEM_LOGGING_LEVEL": "warn"})
    assert overruled.returncode == 1 and "SHARDD_SYSTEM_LOGGING_LEVEL" in overruled.stderr
    assert file.read_text() == FILE


def test_a_file_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    missing = set_key(tmp_path / "none.toml", "system.logging.level", "debug")
    assert missing.returncode in (1, 2) and "none.toml" in missing.stderr and "Traceback" not in missing.stderr
