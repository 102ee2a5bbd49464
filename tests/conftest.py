"""Fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.server import Server

MakeServer = Callable[..., Server]

# A shell starts what runs in the background with SIGINT ignored, and servers would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """`make_server(env={...}, arguments=[...], name="data", start=True)`: a server in a directory of its own, stopped
    after the test."""
    servers: list[Server] = []

    def make(
        env: dict[str, str] | None = None,
        arguments: tuple[str, ...] = ("--with-default-root-credentials",),
        name: str = "data",
        start: bool = True,
    ) -> Server:
        server = Server(tmp_path / name, env, arguments)
        servers.append(server)
        if start:
            server.start()
        return server

    yield make
    for server in servers:
        if server.started:
            server.stop()


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """A running server with default settings."""
    return make_server()
