"""A second server on the same directory or the same address is refused, and the first one does not notice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wire
from tests.support.server import Server

REFUSAL_TIMEOUT_S = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("first"))
    running.start()
    yield running
    running.stop()


def refused(data: Path, address: str) -> str:
    """Starts another server, which must end by itself with an error; returns what it said."""
    command = [sys.executable, "-m", "shardd", "serve", "--data", str(data), "--with-default-root-credentials"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_"))}
    environment["SHARDD_TCP_ADDRESS"] = address
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        output, _ = process.communicate(timeout=REFUSAL_TIMEOUT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode not in (0, None), output
    assert "Traceback" not in output
    return output


def test_second_server_on_the_directory_is_refused(server: Server) -> None:
    assert str(server.data_dir) in refused(server.data_dir, "127.0.0.1:0")
    with wire.connect(server.address) as connection:
        connection.ping()


def test_second_server_on_the_address_is_refused(server: Server, tmp_path: Path) -> None:
    assert server.address in refused(tmp_path, server.address)
    for _ in range(8):
        with wire.connect(server.address) as connection:
            connection.ping()
