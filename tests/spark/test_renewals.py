"""When a task of semantics=idempotent tells the server that its producer is not idle: by the time that passes, whatever
is done to the clock of its machine, and however many machines the tasks of a query run on. No Spark."""

from __future__ import annotations

import time
from typing import Final

import pytest

from shardd.protocol.producers import InitProducer, ProducerEpoch
from shardd.spark.sinks.topic import once as topic_once
from shardd.spark.sinks.topic.server import SinkServer
from tests.spark.once_query import Query, rows_of, stored
from tests.support.server import Server

HOUR_NS: Final = 3600 * 10**9


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch, server: Server, request: pytest.FixtureRequest) -> Query:
    return Query(monkeypatch, server.address, stream_of(request))


def stream_of(request: pytest.FixtureRequest) -> str:
    return f"renewed{abs(hash(request.node.name))}"


@pytest.mark.parametrize("jump_h", [-30 * 24, 30 * 24])
def test_a_producer_is_renewed_by_the_time_that_passes_not_by_the_clock(
    monkeypatch: pytest.MonkeyPatch, query: Query, jump_h: int
) -> None:
    """A clock that goes back would let it be forgotten while it is used, one that jumps ahead costs a renewal."""
    renewals = renewals_of(monkeypatch)
    query.run("one", 0, tasks=1)
    wall, since_boot = time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(time, "time_ns", lambda: wall + jump_h * HOUR_NS)
    query.run("one", 1, tasks=1)
    assert not renewals
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: since_boot + 15 * 24 * HOUR_NS)
    query.run("one", 2, tasks=1)
    assert len(renewals) == 1
    query.run("one", 3, tasks=1)
    assert len(renewals) == 1


def test_a_task_on_another_machine_renews_its_producer(
    monkeypatch: pytest.MonkeyPatch, query: Query, server: Server, request: pytest.FixtureRequest
) -> None:
    """The time since the boot of another machine tells it nothing."""
    renewals = renewals_of(monkeypatch)
    query.run("one", 0, tasks=1)
    monkeypatch.setattr(topic_once, "boot_id", lambda: b"another machine ")
    query.run("one", 1, tasks=1)
    assert len(renewals) == 1
    monkeypatch.setattr(topic_once, "boot_id", lambda: b"")  # one that does not tell its boot
    query.run("one", 2, tasks=1)
    query.run("one", 3, tasks=1)
    assert len(renewals) == 3
    assert stored(server, stream_of(request)) == rows_of(4, 1)


def renewals_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The producers that are renewed from now on, by the requests to the server."""
    found: list[int] = []
    init = SinkServer.init_producer

    def note(self: SinkServer, request: InitProducer) -> ProducerEpoch:
        if request.renew:
            found.append(request.producer)
        return init(self, request)

    monkeypatch.setattr(SinkServer, "init_producer", note)
    return found
