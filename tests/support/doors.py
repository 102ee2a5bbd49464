"""Processes of doors of a server."""

from __future__ import annotations

import contextlib
import re
import time

import psutil

from tests.support.server import Server, children_of


def serving_door(server: Server, name: str, other_than: int = 0, timeout_s: float = 60.0) -> psutil.Process:
    """The process of a door when it serves, but for one that has died; TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        serving = {*map(int, re.findall(rf"door {name} serves \(process (\d+)\)", server.log()))} - {other_than}
        for child in children_of(server.pid) if serving else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.pid in serving and f"shardd: door {name}" in " ".join(child.cmdline()):
                    return child
        time.sleep(0.02)
    raise TimeoutError(server.log())
