"""When a worker is taken for one that hangs, and how long a route waits for its owner (docs/limits.md)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shardd.protocol.errors import ShardError, Status
from shardd.runtime.control_messages import HEARTBEAT_TIMEOUT_MS, STARTUP_TIMEOUT_MS
from shardd.security import Rule
from shardd.server.child_process import ProcessState
from shardd.server.worker_process import WorkerProcess
from shardd.service.identity import Identity
from shardd.service.routes import RouteService


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    """One with a process that says nothing."""
    made = WorkerProcess(0)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    made._process = process
    made._last_seen = time.monotonic()
    try:
        yield made
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_a_start_may_be_silent_for_longer_than_a_service(worker: WorkerProcess) -> None:
    seen = worker._last_seen
    for state, timeout_ms in ((ProcessState.STARTING, STARTUP_TIMEOUT_MS), (ProcessState.READY, HEARTBEAT_TIMEOUT_MS)):
        worker.state = state
        assert not worker.hangs(seen + timeout_ms / 1000 - 0.01)
        assert worker.hangs(seen + timeout_ms / 1000 + 0.01)


def test_a_start_whose_control_channel_ended_gets_no_longer_than_a_service(worker: WorkerProcess) -> None:
    worker.state = ProcessState.STARTING
    worker.control_ended = True
    assert worker.hangs(worker._last_seen + HEARTBEAT_TIMEOUT_MS / 1000 + 0.01)


def test_a_route_gives_up_an_owner_that_does_not_know_the_partition() -> None:
    """The 29th attempt is the first behind 2 s of waiting; it needs nothing of the shard any more."""
    nothing: Any = object()
    routes = RouteService(nothing, nothing)
    with pytest.raises(ShardError) as caught:
        asyncio.run(routes.enter(Identity(0), Rule.SEND_MESSAGES, (0, 0), (b"", b""), 29))
    assert caught.value.status == Status.SHARD_COMMUNICATION_ERROR
