"""Processes of doors of a server."""

from __future__ import annotations

import contextlib
import time

import psutil

from tests.support.server import Server


def serving_door(server: Server, name: str, other_than: int = 0, timeout_s: float = 60.0) -> psutil.Process:
    """The process of a door when it serves, but for one that has died; TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for child in psutil.Process(server.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                titled = f"shardd: door {name}" in " ".join(child.cmdline())
                serves = f"door {name} serves (process {child.pid})" in server.log()
                if child.pid != other_than and titled and serves:
                    return child
        time.sleep(0.02)
    raise TimeoutError(server.log())
