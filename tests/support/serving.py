"""The server of a test file, as fixtures.

A file says how its server is made: `SERVER: Final = Serving(HttpServer, {"SHARDD_...": "3 s"}, fill=fill)`. A file
without `SERVER` has a `Server` with default settings. A test that takes `server` shares one server with the other tests
of its file; a test that takes `own_server` has a server of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest

from tests.support.server import Server


class Serving(NamedTuple):
    """`kind` makes the server from a data directory, and from `env` where there are settings. `fill` gets the running
    server before any test does. The tests are skipped on a machine with fewer CPUs than `cpus_min`."""

    kind: Callable[..., Server] = Server
    env: Mapping[str, str] | None = None
    fill: Callable[[Any], object] | None = None
    cpus_min: int = 1


_DEFAULT: Final = Serving()


@contextmanager
def _serving(module: ModuleType, data: Path) -> Iterator[Server]:
    serving: Serving = getattr(module, "SERVER", _DEFAULT)
    if len(os.sched_getaffinity(0)) < serving.cpus_min:
        pytest.skip(f"needs {serving.cpus_min} CPUs")
    with serving.kind(data) if serving.env is None else serving.kind(data, serving.env) as running:
        if serving.fill is not None:
            serving.fill(running)
        yield running


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The running server of this file."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_")
    with _serving(request.module, tmp_path_factory.mktemp(name) / "data") as running:
        yield running


@pytest.fixture
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A running server for one test."""
    with _serving(request.module, tmp_path / "data") as running:
        yield running
