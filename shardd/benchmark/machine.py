"""What a run was made on, and who was at its limit."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from shardd.benchmark.engine import Share

CLIENT_BUSY: Final = 0.85
"""Of a CPU: a client process that uses more has no room to ask faster."""
CLIENT_WAITED: Final = 0.15
"""Of its time a client process waits for a CPU: others on this machine have it."""


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine() or "unknown"


def hardware(identifier: str | None) -> dict[str, object]:
    return {
        "identifier": identifier,
        "cpu_name": cpu_name(),
        "cpu_cores": os.cpu_count() or 1,
        "total_memory_mb": psutil.virtual_memory().total // (1 << 20),
        "os_name": platform.system(),
        "os_version": platform.release(),
    }


def client_figures(shares: Sequence[Share]) -> dict[str, object]:
    """How busy the client was, and whether it was the limit."""
    measured = [share for share in shares if share.wall_ns > 0]
    busy = [share.cpu_ns / share.wall_ns for share in measured]
    waited = [share.waited_ns / share.wall_ns for share in measured]
    return {
        "processes": len(shares),
        "cpu_seconds": round(sum(share.cpu_ns for share in shares) / 1e9, 3),
        "busiest_cpu": round(max(busy, default=0.0), 3),
        "longest_wait_for_cpu": round(max(waited, default=0.0), 3),
        "empty_polls": sum(share.empty_polls for share in shares),
        "sent_bytes": sum(share.sent_bytes for share in shares),
        "received_bytes": sum(share.received_bytes for share in shares),
        "limit": limit_of(max(busy, default=0.0), max(waited, default=0.0)),
    }


def interruptions_of(shares: Sequence[Share]) -> dict[str, object]:
    """Of a run whose connections are opened again."""
    return {
        "broken_connections": sum(share.broken for share in shares),
        "refused_requests": sum(share.refused for share in shares),
        "requests_sent_again": sum(share.sent_again for share in shares),
        "longest_interruption_ms": round(max((share.interrupted_ns for share in shares), default=0) / 1e6, 3),
    }


def limit_of(busy: float, waited: float) -> str | None:
    """A sentence when the figures say more about the client than about the server."""
    if busy >= CLIENT_BUSY:
        return f"the client is the limit: one of its processes used {busy:.0%} of a CPU"
    if busy + waited >= CLIENT_BUSY or waited >= CLIENT_WAITED:
        return f"client and server share CPUs: a client process waited for one {waited:.0%} of its time"
    return None
