"""How soon retention looks again at topics that are larger than they may be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from shardd.maintenance.job import Turn
from shardd.maintenance.retention import PENDING_INTERVAL_S, Retention
from shardd.protocol import requests
from shardd.service.identity import Identity
from tests.support import wire
from tests.unit.services_harness import Workers

WAIT_S: Final = 60.0
HOURS_10_S: Final = 36_000.0


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[Turn]:
    """Those in which retention has run."""
    seen, plain = list[Turn](), Retention._work

    async def work(retention: Retention, turn: Turn) -> float:
        seen.append(turn)
        return await plain(retention, turn)

    monkeypatch.setattr(Retention, "_work", work)
    return seen


@pytest.fixture
def workers(tmp_path: Path, interval: str, turns: list[Turn]) -> Iterator[Workers]:
    settings = {
        "data_maintenance.messages.cleaner_enabled": "true",
        "data_maintenance.messages.interval": interval,
    }
    with Workers(tmp_path / "data", segment_size="512 B", settings=settings) as running:
        yield running


@pytest.mark.parametrize(
    ("interval", "above_s", "below_s"),
    [("100 ms", 0.1, 0.1), ("10 h", PENDING_INTERVAL_S, HOURS_10_S)],
)
def test_topic_above_its_size_is_looked_at_after_the_interval_or_sooner(
    workers: Workers, turns: list[Turn], above_s: float, below_s: float
) -> None:
    root = workers.connect()
    root.create_stream("st")
    root.create_topic("st", "t", 1)
    worker: Any = workers._threads[0]._worker
    retention: Retention = worker._retention

    def run() -> float:
        return workers.call(retention._work(turns[0]))

    deadline_s = time.monotonic() + WAIT_S
    while not turns:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert run() == below_s
    root.send("st", "t", wire.to_partition(0), [wire.message(bytes(1000))])
    identity = Identity(0, workers.root_ref().incarnation)
    smaller = requests.UpdateTopicRequest("st", "t", 1, 0, 512, 1, "t")
    workers.call(workers.context().services.topics.update_topic(identity, smaller))
    assert run() == above_s
