"""Fixtures for all tests."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.server import CHEAP_HASHES, OF_TESTS, SERVERS, Server
from tests.support.side_by_side import FilesTogether, begins_late

pytest_plugins = ["tests.support.serving"]

MakeServer = Callable[..., Server]
LOG_CHARACTERS: Final = 4000

# No limit that depends on the speed of the machine.
settings.register_profile("shardd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shardd")

# A shell starts what runs in the background with SIGINT ignored, and servers would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


OF_TESTS.update(CHEAP_HASHES)  # hashing is a tenth of the CPU of all tests, and the subject of few


@pytest.fixture(scope="module")
def hashes_as_served() -> Iterator[None]:
    """For files whose tests are about lines of logins: servers compute passwords as dear as they are."""
    OF_TESTS.clear()
    yield
    OF_TESTS.update(CHEAP_HASHES)


gc.disable()  # nothing that is collected is garbage, and looking for it takes a fifth of the time


def pytest_collection_finish() -> None:
    """What is collected stays: no test has to wait for a look at it."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first: at the end of a run side by side nobody waits for one process."""
    items.sort(key=lambda item: begins_late(item.nodeid.partition("::")[0]))


@pytest.hookimpl(optionalhook=True)  # unknown without pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # not by the number of tests
    return FilesTogether(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure comes with the end of the logs of its servers."""
    report = yield
    directory = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and directory is not None:
        for server in sorted(SERVERS, key=lambda server: server.log_path):
            if server.log_path.is_relative_to(directory):
                report.sections.append((f"log {server.log_path.name}", server.log()[-LOG_CHARACTERS:]))
    return report


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
