"""A worker of the server is killed while a load runs: that is seen, nothing that was acknowledged is lost, and only a
profile that says so goes on."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardd.benchmark import disturb, reopen
from shardd.benchmark.kinds import BY_NAME
from shardd.benchmark.measure import measure
from shardd.benchmark.options import BenchError, Options, Output, Progress, Span, Tls
from shardd.benchmark.page import page_of
from shardd.benchmark.servers.connection import Connection
from shardd.benchmark.servers.own import OwnShardd
from shardd.benchmark.servers.wire import Wire, control
from shardd.benchmark.table import lines_of
from shardd.client.values import Stats
from tests.support.server import ONE_SHARD, Server
from tests.support.wide import wide_but

WAYS: dict[str, dict[str, Any]] = {
    "tcp": {},
    "several in flight": {
        "depth": 4,
        "batch": Span(1, 20),
        "message_size": Span(0, 1000),
        "rate_limit_bytes": 2_600_000,
    },
    "0.9": {"dialect": "0.9", "depth": 4},
    "websocket with tls": {"websocket": True, "tls": Tls()},
}


def options(directory: Path, **values: object) -> Options:
    """Two producers and two consumers for 1.5 s or so."""
    given: dict[str, object] = {
        "batches": 100,
        "batch": Span(10, 10),
        "message_size": Span(1000, 1000),
        "rate_limit_bytes": 5_200_000,
        "open_loop": True,
        "own": True,
        "directory": str(directory),
        "disturbance": "kill",
        "server_settings": ("SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION=2",),
    }
    return Options(BY_NAME["pinned-producer-and-consumer"], 2, 1, 2, 2, 1, **(given | values))  # type: ignore[arg-type]


class Watched(OwnShardd):
    """Who its workers were at the beginning and at the end, and how many messages there are in the end."""

    def __init__(self, chosen: Options) -> None:
        super().__init__()
        self.chosen = chosen
        self.before: list[int] = []
        self.after: list[int] = []
        self.messages = 0
        self.without_one_stream = 0

    def start(self, options: Options) -> None:
        super().start(options)
        self.before = [each.pid for each in self.workers().values()]

    def stats(self, options: Options) -> Stats | None:
        self.after = [each.pid for each in self.workers().values()]
        with control(self._reached(self.chosen)) as client:
            topics = [client.topic(f"bench-stream-{number}", "topic-1") for number in (1, 2)]
        counts = [topic.messages_count for topic in topics if topic is not None]
        self.messages, self.without_one_stream = sum(counts), counts[0]
        return super().stats(options)


def acknowledged(report: dict[str, Any]) -> int:
    made = [each["summary"] for each in report["individual_metrics"]]
    return sum(each["total_messages"] for each in made if each["actor_kind"] == "producer")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturb, "KILL_INTERVAL_S", 0.3)
    monkeypatch.setattr(disturb, "KILL_SHARD_INTERVAL_S", 1.0)


@pytest.mark.parametrize("way", wide_but(["several in flight", "websocket with tls"], WAYS))
def test_acknowledged_batches_survive_kills_and_the_stall_is_seen(way: str, tmp_path: Path) -> None:
    chosen = options(tmp_path, **WAYS[way])
    server = Watched(chosen)
    report = measure(chosen, Output(), server)
    own, beside = report["shardd"], report["shardd"]["beside"]
    assert beside["what"] == "kill" and beside["times"] >= 2
    assert len(server.after) == len(server.before) == 2 and not set(server.after) & set(server.before)
    assert beside["broken_connections"] >= 1 and beside["requests_sent_again"] >= 1
    assert beside["longest_interruption_ms"] > 0
    assert own["latency_ms_by_percentile"]["100"] >= beside["longest_interruption_ms"] / 2
    sent = acknowledged(report)
    most = chosen.batch.most * beside["requests_sent_again"]
    assert sent <= server.messages <= sent + most, "what was sent again is there once or twice"
    assert server.without_one_stream < sent, "this count would not see a loss"
    text = "\n".join(lines_of(report))
    assert f"Killed: {beside['times']} workers" in page_of(report)
    assert f"Killed: {beside['times']} workers" in text and f"Sent again: {beside['requests_sent_again']}" in text
    assert own["server"]["cpu_seconds"] > 0


def test_a_kill_of_the_only_worker_breaks_every_connection(tmp_path: Path) -> None:
    chosen = options(tmp_path, server_settings=("SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION=1",))
    beside = measure(chosen, Output())["shardd"]["beside"]
    assert beside["broken_connections"] >= 4


def test_a_load_that_ends_before_a_kill_has_not_measured_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disturb, "KILL_INTERVAL_S", 30.0)
    chosen = options(tmp_path, batches=2, server_settings=("SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION=1",))
    with pytest.raises(BenchError, match="ended before a worker was killed"):
        measure(chosen, Output())


def test_a_broken_connection_ends_every_other_run(tmp_path: Path) -> None:
    with Server(tmp_path / "data", ONE_SHARD) as server:
        chosen = options(tmp_path, own=False, server_address=server.address, disturbance="", batches=10_000)
        killed: list[int] = []

        def kill(progress: Progress | None) -> None:
            if progress is not None and progress.messages > 0 and not killed:
                killed.append(server.worker_pids()[0])
                os.kill(killed[0], signal.SIGKILL)

        with pytest.raises(BenchError, match=r"closed a connection|reset|Broken pipe"):
            measure(chosen, Output(watch=kill), Wire())
        assert killed


@pytest.mark.parametrize(
    ("values", "sentence"), [({"own": False}, "--own-server alone"), ({"durability": "memory"}, "dies with its worker")]
)
def test_nobody_elses_server_is_killed(values: dict[str, object], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=sentence):
        measure(replace(options(tmp_path), **values), Output())  # type: ignore[arg-type]


# ---- reopen.py ----


def reopening(open_one: Callable[[int], Connection], sockets: list[socket.socket], stopped: list[bool]) -> Any:
    return reopen.Reopening(open_one, list(sockets), [None], lambda: stopped.append(True))


def test_a_server_that_never_comes_back_ends_the_run_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reopen, "REOPEN_TIMEOUT_S", 0.1)
    stopped: list[bool] = []
    attempts: list[int] = []

    def refuse(index: int) -> Connection:
        attempts.append(index)
        raise OSError("nobody listens")

    mine, theirs = socket.socketpair()
    with theirs, reopening(refuse, [mine], stopped) as found:
        os.write(found.broken_fd, b"\0\0\0\0")
        deadline = time.monotonic() + 30
        while not stopped and time.monotonic() < deadline:
            time.sleep(0.01)
        assert theirs.recv(1) == b""  # the old one is closed
    assert stopped == [True] and "nobody listens" in found.fault and len(attempts) > 1


def test_a_run_that_ended_waits_for_no_connection() -> None:
    stopped: list[bool] = []

    def refuse(index: int) -> Connection:
        raise OSError("nobody listens")

    mine, theirs = socket.socketpair()
    with theirs, reopening(refuse, [mine], stopped) as found:
        os.write(found.broken_fd, b"\0\0\0\0")
    assert not stopped and not found.fault
