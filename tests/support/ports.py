"""Ports for tests that must name one before anybody listens on it. Everything else binds port 0."""

from __future__ import annotations

import socket
from typing import Final

# Below what Linux hands out for port 0: nobody gets one of these by chance.
_PORTS: Final = range(20_000, 30_000)
_kept: list[socket.socket] = []


def free_port() -> int:
    """Nobody listens on it, and no other test is given it while this process runs. OSError: none is left."""
    for port in _PORTS:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0shardd-test-port-{port}")  # one process can: the kernel releases it at its end
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            claim.close()
            continue
        _kept.append(claim)
        return port
    raise OSError("no port is free for a test")
