"""A server for the tests of programs that use one: `with server() as s: SyncClient(s.url)`, and a fixture for pytest.

    pytest_plugins = ["shardd.testing"]

    def test_mine(shardd_server): ...      # one for each process of the test run

Each server has a port from the kernel and a directory of its own, so tests run side by side.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_READY = re.compile(r" tcp ([^\s,]+),(?: .*,)? ready\n")  # doors stand between
_POLL_S = 0.02


class RunningServer(NamedTuple):
    """`url`: for `shardd.client`, with the first user."""

    address: str
    url: str
    data: Path
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def server(
    settings: Mapping[str, str] | None = None, *, data: Path | None = None, timeout_s: float = 60.0
) -> Iterator[RunningServer]:
    """`settings`: variables of the server (docs/configuration.md); one shard unless they say otherwise. `data`: a
    directory that stays; else one that goes with the server. RuntimeError with its log when it does not start."""
    with tempfile.TemporaryDirectory(prefix="shardd-") as temporary:
        directory, log = data or Path(temporary) / "data", Path(temporary) / "log"
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "IGGY_"))}
        variables |= {"SHARDD_TCP_ADDRESS": "127.0.0.1:0", "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"}
        variables |= dict(settings or {})
        command = [sys.executable, "-P", "-m", "shardd", "serve", "--with-default-root-credentials"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--data", str(directory)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
            )
        try:
            address = _address(process, log, timeout_s)
            yield RunningServer(address, f"shardd://iggy:iggy@{address}", directory, process, log)
        finally:
            process.terminate()
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while not (found := _READY.search(log.read_text(errors="replace"))):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')}")
        time.sleep(_POLL_S)
    return found[1]


try:
    import pytest
except ImportError:  # only the fixture needs it
    pass
else:

    @pytest.fixture(scope="session")
    def shardd_server() -> Iterator[RunningServer]:
        """A server for all tests of a process."""
        with server() as made:
            yield made
