"""`shardd ping` beside a server, without one, and at something else."""

from __future__ import annotations

import socket
from pathlib import Path

from typer.testing import CliRunner

from shardd.cli.main import app
from tests.support.server import ONE_SHARD, Server


def pinged(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["ping", *arguments])
    return result.exit_code, result.output


def test_a_server_answers_without_a_login_and_a_closed_one_does_not(tmp_path: Path) -> None:
    with Server(tmp_path, ONE_SHARD) as server:
        status, text = pinged("--address", server.address)
        assert (status, f"{server.address} answers" in text) == (0, True), text
    status, text = pinged("--address", server.address)
    assert (status, "cannot connect to" in text) == (1, True), text


def test_who_accepts_and_says_nothing_is_not_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        status, text = pinged("--address", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.2")
    assert (status, "timed out" in text) == (1, True), text
