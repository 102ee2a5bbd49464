"""Benchmarks of a real server: what is reported is what it has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import pytest

from shardd.benchmark.kinds import BY_NAME
from shardd.benchmark.measure import measure
from shardd.benchmark.options import BenchError, Options, Output, Span
from shardd.benchmark.run import benchmark
from shardd.benchmark.servers.wire import Wire
from shardd.client.settings import parse
from shardd.client.sync import SyncClient
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

KINDS = {
    "pinned-producer": (2, 1, 200, 0),
    "pinned-consumer": (2, 1, 0, 200),
    "pinned-producer-and-consumer": (2, 1, 400, 400),
    "balanced-producer": (1, 4, 200, 0),
    "balanced-consumer-group": (1, 4, 0, 200),
    "balanced-producer-and-consumer-group": (1, 4, 200, 200),
    "end-to-end-producing-consumer": (2, 1, 200, 200),
    "end-to-end-producing-consumer-group": (1, 4, 200, 200),
}
"""Streams, partitions, sent and read messages of two producers and two consumers with 10 batches of 10."""


SERVER: Final = Serving(lambda data: Server(data, ONE_SHARD | {"SHARDD_UNIX_PATH": str(data.with_name("s"))}))


def options(server: Server, name: str, **values: object) -> Options:
    streams, partitions, _, _ = KINDS[name]
    kind = BY_NAME[name]
    given: dict[str, object] = {
        "streams": streams,
        "partitions": partitions,
        "producers": 2 if kind.sends else 0,
        "consumers": 2 if kind.polls else 0,
        "groups": 1,
        "batches": 10,
        "batch": Span(10, 10),
        "message_size": Span(100, 100),
        "server_address": server.address,
    }
    return Options(kind=kind, **(given | values))  # type: ignore[arg-type]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def messages_at(server: Server, streams: int) -> int:
    with SyncClient(settings=parse(f"shardd://iggy:iggy@{server.address}")) as client:
        topics = [client.topic(f"bench-stream-{number}", "topic-1") for number in range(1, streams + 1)]
    return sum(topic.messages_count for topic in topics if topic is not None)


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_moves_what_it_is_asked_for(server: Server, name: str) -> None:
    streams, _, sent, read = KINDS[name]
    kind = BY_NAME[name]
    if kind.needs_data:
        measure(options(server, "pinned-producer" if streams == 2 else "balanced-producer"), Output())
    report = measure(options(server, name), Output())
    by_role: dict[str, int] = {}
    for each in report["individual_metrics"]:
        summary = each["summary"]
        by_role[summary["actor_kind"]] = by_role.get(summary["actor_kind"], 0) + summary["total_messages"]
        if summary["total_messages"]:  # another may have read all of what they share
            assert summary["p99_latency_ms"] >= summary["p50_latency_ms"] > 0
    if "consumer" in by_role and kind.sends:  # a poll may have found less than a whole batch
        assert 0 < by_role.pop("consumer") <= read
        assert by_role == {"producer": sent}
    elif "producing_consumer" in by_role:
        assert sent < by_role["producing_consumer"] <= sent + read
    else:
        assert sum(by_role.values()) == sent + read
    if sent:
        assert messages_at(server, streams) == sent
    assert report["params"]["benchmark_kind"] == kind.report_name
    assert report["shardd"]["server"]["cpu_seconds"] is not None


def test_ranges_of_sizes_and_batches_are_used_as_a_whole(server: Server) -> None:
    chosen = options(server, "pinned-producer", message_size=Span(1, 300), batch=Span(1, 20), batches=200)
    report = measure(chosen, Output())
    sent = sum(each["summary"]["total_messages"] for each in report["individual_metrics"])
    size = sum(each["summary"]["total_user_data_bytes"] for each in report["individual_metrics"])
    assert messages_at(server, 2) == sent and 400 < sent < 8000 and sent < size < 300 * sent
    assert report["params"]["message_size"] == "1..300"


def test_several_requests_in_flight_lose_nothing(server: Server) -> None:
    measure(options(server, "pinned-producer", depth=16, batches=500), Output())
    assert messages_at(server, 2) == 10_000


def test_total_data_is_the_data_of_all_actors(server: Server) -> None:
    measure(options(server, "pinned-producer", total_data_bytes=100_000), Output())
    assert messages_at(server, 2) == 1000


def test_a_warm_up_is_written_but_not_measured(server: Server) -> None:
    report = measure(options(server, "pinned-producer", warmup_us=200_000), Output())
    assert sum(each["summary"]["total_messages"] for each in report["individual_metrics"]) == 200
    assert messages_at(server, 2) > 200


def test_what_the_server_needed_for_the_warm_up_is_in_no_figure(server: Server) -> None:
    watched = Wire()
    chosen = options(server, "pinned-producer", warmup_us=1_000_000)
    watched.start(chosen)
    cpu_s, written = watched.cpu_s(), watched.written_bytes()
    told = measure(chosen, Output())["shardd"]["server"]
    all_cpu_s, all_written = watched.cpu_s(), watched.written_bytes()
    assert cpu_s is not None and written is not None and all_cpu_s is not None and all_written is not None
    assert 0 <= told["cpu_seconds"] < (all_cpu_s - cpu_s) / 2
    assert 0 <= told["written_bytes"] <= (all_written - written) / 2


def test_a_server_that_runs_already_is_all_of_its_processes(server: Server) -> None:
    """A worker says its own process id."""
    supervisor = psutil.Process(server.pid)
    known_s = sum(sum(each.cpu_times()[:2]) for each in (supervisor, *supervisor.children()))
    asked = Wire()
    asked.start(options(server, "pinned-producer"))
    found_s = asked.cpu_s()
    assert found_s is not None and found_s >= known_s


def test_what_was_not_done_to_the_server_is_not_told(server: Server) -> None:
    chosen = options(server, "pinned-producer", server_settings=("SHARDD_SYSTEM_PARTITION_ACK=durable",))
    own = measure(replace(chosen, server_cpus="0"), Output())["shardd"]
    assert own["configuration"] == [] and own["pinning"] == {"client": "none", "server": "its own"}


def test_a_unix_socket_is_a_way_to_the_server(server: Server) -> None:
    path = server.data_dir.with_name("s")
    report = measure(options(server, "pinned-producer", unix_path=str(path)), Output())
    assert report["params"]["transport"] == "unix" and messages_at(server, 2) == 200


def test_fewer_messages_than_are_to_be_read_end_with_a_sentence(server: Server) -> None:
    measure(options(server, "pinned-producer"), Output())
    with pytest.raises(BenchError, match="fewer messages"):
        measure(options(server, "pinned-consumer", batches=11), Output())


def test_a_wrong_password_and_no_server_end_with_a_sentence(server: Server) -> None:
    with pytest.raises(BenchError):
        measure(options(server, "pinned-producer", password="wrong"), Output())
    with pytest.raises(BenchError):
        measure(replace(options(server, "pinned-producer"), server_address="127.0.0.1:1"), Output())


def test_a_rate_is_kept(server: Server) -> None:
    chosen = options(server, "pinned-producer", batches=20, rate_limit_bytes=100_000, rate_limit_text="100KB")
    report = measure(chosen, Output())
    # 40 batches of 1000 bytes: 38 of them wait
    assert report["shardd"]["seconds"] >= 0.37
    assert report["params"]["rate_limit"] == "100KB"


def test_an_open_loop_sees_a_server_that_stands_still_in_each_request(server: Server) -> None:
    """Half a second of standing still: a closed view has two slow requests, one of each producer."""
    chosen = options(
        server, "pinned-producer", batches=200, rate_limit_bytes=200_000, rate_limit_text="200KB", open_loop=True
    )

    def stand_still() -> None:
        wait_until(lambda: messages_at(server, 2) > 1000)  # more than an earlier run: this one is on its way
        for pid in server.worker_pids():
            os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        for pid in server.worker_pids():
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stand_still)
    thread.start()
    try:
        report = measure(chosen, Output())
    finally:
        thread.join()
    own = report["shardd"]
    assert own["loop"] == "open"
    assert own["latency_ms_by_percentile"]["90"] > 100 > own["service_ms_by_percentile"]["90"]
    assert own["service_ms_by_percentile"]["100"] > 100


def test_a_report_and_what_belongs_to_it_are_written(server: Server, tmp_path: Path) -> None:
    lines: list[str] = []
    benchmark(options(server, "pinned-producer"), Output(str(tmp_path), "here", "a remark"), lines.append)
    (directory,) = tmp_path.iterdir()
    assert directory.name.startswith("pinned_producer_2_100_10_10_tcp_a remark_here_")
    report = json.loads((directory / "report.json").read_text())
    assert report["hardware"]["identifier"] == "here" and report["params"]["message_batches"] == 20
    assert (directory / "report.html").read_text().startswith("<!doctype html>")
    assert (directory / "server_logs.zip").read_bytes().startswith(b"PK")
    assert any("producers" in line for line in lines) and (directory / "bench.log").stat().st_size > 0


def test_an_interrupted_run_leaves_no_process_and_no_directory(server: Server, tmp_path: Path) -> None:
    words = ["-r", "1KB", "pinned-producer", "-p", "2", "tcp", "--server-address", server.address, "output", "-o"]
    with subprocess.Popen([sys.executable, "-m", "shardd", "bench", *words, str(tmp_path)]) as process:
        try:
            wait_until(lambda: bool(list(tmp_path.iterdir())) and bool(psutil.Process(process.pid).children()))
            process.send_signal(signal.SIGINT)
            assert process.wait(30) != 0
        finally:
            process.kill()
    assert not list(tmp_path.iterdir())
