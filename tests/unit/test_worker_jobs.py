"""The jobs of a real worker: each is stopped in the middle of its work, and goes on after the next start."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from shardd.log import layout
from shardd.log.manifest import read_manifest
from shardd.maintenance import scheduler
from shardd.maintenance.job import Job, Turn
from shardd.protocol.namespaces import namespace
from tests.support import wire
from tests.unit.services_harness import Workers

SETTINGS: Final = {"system.scrubber.enabled": "true", "system.scrubber.pause": "10 ms"}
# each with its own thread, but for the one that looks at the free room
THREADS: Final = {"sealing": "sealing-0", "scrubber": "scrub-0", "survey": "survey-0", "trash": "trash-0"}
WAIT_S: Final = 60.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def jobs_of(workers: Workers) -> Any:
    return workers._threads[0]._worker._jobs


def is_running(workers: Workers, name: str) -> bool:
    async def read() -> int:
        return int(jobs_of(workers).gauges()[f"{name}.running"])

    return bool(workers.call(read()))


def send(connection: wire.Wire, messages: int) -> None:
    for number in range(messages):
        connection.send("s", "t", wire.to_partition(0), [wire.message(b"message %d " % number * 20)])


def is_sealed(directory: Path) -> bool:
    manifests = [read_manifest(directory, int(path.stem)) for path in sorted(directory.glob("*.log"))[:-1]]
    return bool(manifests) and all(each is not None and each.sealed is not None for each in manifests)


def test_every_job_ends_with_its_worker_in_the_middle_of_its_work_and_goes_on_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LOOK_INTERVAL_S", 1000.0)  # what is held here stays so
    caplog.set_level(logging.WARNING)
    directory, trash = layout.partition_directory(tmp_path, 0, 0, 0), layout.trash_directory(tmp_path)
    with Workers(tmp_path, segment_size="512 B", settings=SETTINGS) as workers:
        connection = workers.connect()
        connection.create_topic(connection.create_stream("s"), "t", 1)
        connection.create_topic(connection.create_stream("gone"), "t", 1)
        connection.send("gone", "t", wire.to_partition(0), [wire.message(b"x")])
        throttles = {name: jobs_of(workers)._entries[name].turn.throttle for name in THREADS}
        for throttle in throttles.values():
            throttle.hold()
        send(connection, 20)
        connection.request(wire.DELETE_STREAM, wire.identifier("gone"))

        async def ask() -> asyncio.Future[None]:
            surveys: Any = workers._threads[0]._worker._surveys
            return surveys.ask(namespace(0, 0, 0), 0)  # type: ignore[no-any-return]

        workers.call(ask())
        for name in THREADS:
            wait_until(lambda name=name: is_running(workers, name), f"{name} does not run")  # type: ignore[misc]
        wait_until(lambda: {*THREADS.values()} <= {each.name for each in threading.enumerate()}, "a thread is missing")
        assert not is_sealed(directory) and list(trash.iterdir())
    assert not {*THREADS.values()} & {each.name for each in threading.enumerate()}, "a thread was left behind"
    assert not [each for each in caplog.messages if "job" in each or "survey" in each]
    assert not is_sealed(directory) and list(trash.iterdir())
    with Workers(tmp_path, segment_size="512 B", settings=SETTINGS) as workers:
        wait_until(lambda: is_sealed(directory), "the segments are not sealed")
        wait_until(lambda: not list(trash.iterdir()), "the trash is not emptied")
        assert len(workers.connect().read_all("s", "t", 0)) == 20


def test_a_job_that_raises_ends_no_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Workers(tmp_path) as workers:
        connection = workers.connect()
        connection.create_topic(connection.create_stream("s"), "t", 1)

        async def work(_turn: Turn) -> None:
            raise KeyError("a fault")

        async def add() -> None:
            jobs_of(workers).add(Job("faulty", work))

        workers.call(add())
        wait_until(lambda: "the job faulty has failed" in caplog.text, "it does not run")
        send(connection, 3)
        assert len(connection.read_all("s", "t", 0)) == 3
        assert not is_running(workers, "faulty")
