"""`shardd drain`: no new clients, those that are here are served until they go, then the server stops in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.server import Server

TIMEOUT_S = 60.0
TWO_SHARDS = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}


def drain(server: Server, timeout_s: float) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_"))}
    words = ["drain", "--data", str(server.data_dir), "--timeout", str(timeout_s)]
    command = [sys.executable, "-P", "-m", "shardd", *words]
    return subprocess.Popen(command, env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until_refused(address: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            wire.Wire(address).close()
        except (OSError, wire.StatusError):
            return
        assert time.monotonic() < deadline, "new clients are still taken"
        time.sleep(0.05)


def test_a_server_that_drains_serves_those_who_are_here_and_stops_when_they_have_gone(tmp_path: Path) -> None:
    with Server(tmp_path / "data", TWO_SHARDS) as server:
        client = wire.connect(server.address)
        client.create_stream("kept")
        command = drain(server, TIMEOUT_S)
        until_refused(server.address)
        client.create_topic("kept", "after the drain began", partitions_count=4)
        other = 1 if "shard-0 user 0" in server.log() else 0  # the shard that the client is not connected to
        os.kill(server.worker_pids()[other], signal.SIGKILL)
        deadline = time.monotonic() + TIMEOUT_S
        while f"shard {other} is back" not in server.log():  # it serves its partitions, and takes nobody
            assert time.monotonic() < deadline
            client.ping()
            time.sleep(0.05)
        assert not client.poll("kept", "after the drain began", 1).messages
        until_refused(server.address)
        assert command.poll() is None
        client.close()
        out, err = command.communicate(timeout=TIMEOUT_S)
        assert command.returncode == 0 and "all clients have gone" in out, err
        assert "no more clients are taken" in server.log() and "all clients have gone: stopping" in server.log()


def test_clients_that_stay_are_cut_off_at_the_timeout_and_the_command_says_so(tmp_path: Path) -> None:
    with Server(tmp_path / "data", TWO_SHARDS) as server, wire.connect(server.address) as client:
        client.ping()
        command = drain(server, 2.0)
        _out, err = command.communicate(timeout=TIMEOUT_S)
        assert command.returncode == 1 and "clients were left after 2 s: it has stopped" in err
        with pytest.raises((wire.StatusError, OSError)):
            for _ in range(3):
                client.ping()


def test_an_idle_server_that_drains_stops_at_once(tmp_path: Path) -> None:
    with Server(tmp_path / "data", TWO_SHARDS) as server:
        command = drain(server, TIMEOUT_S)
        _out, err = command.communicate(timeout=TIMEOUT_S)
        assert command.returncode == 0, err
        gone = drain(server, 1.0)
        _out, err = gone.communicate(timeout=TIMEOUT_S)
        assert gone.returncode == 1 and "no server runs" in err
