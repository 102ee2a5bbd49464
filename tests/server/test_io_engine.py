"""Which I/O engine a server takes: by itself, when it is told, and where io_uring is really refused (seccomp)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MakeServer
from tests.support import clients, no_io_uring
from tests.support.descriptors import links
from tests.support.server import IO_ENGINE_VARIABLE, ONE_SHARD, Server
from tests.support.venvs import CLIENT_VERSIONS

CLIENT_SCRIPT = Path(__file__).parents[1] / "compat" / "client_session.py"
FORBIDDEN = "io_uring is forbidden here (kernel.io_uring_disabled or a seccomp profile)"


def without_io_uring(*calls: str) -> tuple[str, ...]:
    return (sys.executable, str(no_io_uring.__file__), *calls, "--")


def start_line(server: Server) -> str:
    return next(line for line in server.log().splitlines() if line.endswith(", ready"))


@pytest.mark.parametrize(
    ("setting", "engine"),
    [("auto", "io_uring (it works here)"), ("io_uring", "io_uring (system.io_engine)"),
     ("epoll", "epoll (system.io_engine)")],
)  # fmt: skip
def test_the_start_up_line_names_engine_and_reason(make_server: MakeServer, setting: str, engine: str) -> None:
    server = make_server(env=ONE_SHARD | {IO_ENGINE_VARIABLE: setting})
    assert f", engine {engine}, " in start_line(server)
    rings = [links(pid) for pid in server.worker_pids()]
    assert all(("anon_inode:[io_uring]" in each) == (setting != "epoll") for each in rings)


def test_a_refused_io_uring_leads_to_epoll_which_serves_the_released_client(tmp_path: Path) -> None:
    launcher = without_io_uring("setup", "enter", "register")
    with Server(tmp_path / "data", ONE_SHARD | {IO_ENGINE_VARIABLE: "auto"}, launcher=launcher) as server:
        assert f", engine epoll ({FORBIDDEN}), " in start_line(server)
        arguments = [server.address, clients.connection_string(server.address)]
        (seen,) = clients.run(CLIENT_VERSIONS[-1], CLIENT_SCRIPT, arguments)
        assert seen["stream"] == [0, "orders", 1, 12]
        assert seen["polls"]
        assert all("anon_inode:[io_uring]" not in links(pid) for pid in server.worker_pids())


def test_a_ring_that_can_be_made_but_not_entered_counts_as_refused(tmp_path: Path) -> None:
    launcher = without_io_uring("enter")
    with Server(tmp_path / "data", ONE_SHARD | {IO_ENGINE_VARIABLE: "auto"}, launcher=launcher) as server:
        assert f", engine epoll ({FORBIDDEN}), " in start_line(server)


def test_a_forced_io_uring_that_is_refused_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", {IO_ENGINE_VARIABLE: "io_uring"}, launcher=without_io_uring("setup"))
    process: subprocess.Popen[bytes] = server.spawn()
    assert process.wait(60) == 1
    assert f"io_uring cannot be used: {FORBIDDEN}" in server.log()
    assert not (tmp_path / "data").exists()
