"""The servers that a benchmark starts: the floor, Redis, NATS and shardd are driven by the same engine and keep what
they acknowledge."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardd.benchmark.kinds import BY_NAME, KINDS
from shardd.benchmark.measure import measure
from shardd.benchmark.options import BenchError, Options, Output, Span
from shardd.benchmark.plan import Actor
from shardd.benchmark.servers import STARTED, named, nats, redis
from shardd.benchmark.servers.base import Places, Started, processes_cpu_s
from tests.support.wide import crossed

INSTALLED = {
    "floor": True,
    "shardd": True,
    "redis": shutil.which("redis-server") is not None,
    "nats": nats.program() is not None,
}
PAYLOAD_BYTES = 64
SERVERS = [name for name, there in INSTALLED.items() if there]
servers = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(not there, reason=f"there is no {name} here"))
        for name, there in INSTALLED.items()
    ],
)


def options(name: str, directory: Path, **values: object) -> Options:
    kind = BY_NAME[name]
    grouped = kind.groups is not None
    given: dict[str, object] = {
        "streams": 1 if grouped else 2,
        "partitions": 4 if grouped or name == "balanced-producer" else 1,
        "producers": 2 if kind.sends else 0,
        "consumers": 2 if kind.polls else 0,
        "groups": 1,
        "batches": 20,
        "batch": Span(10, 10),
        "message_size": Span(PAYLOAD_BYTES, PAYLOAD_BYTES),
        "own": True,
        "directory": str(directory),
        "server_settings": ("SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION=1",),
    }
    return Options(kind=kind, **(given | values))  # type: ignore[arg-type]


def moved(report: dict[str, object], role: str) -> int:
    found = report["individual_metrics"]
    assert isinstance(found, list)
    return sum(each["summary"]["total_messages"] for each in found if each["summary"]["actor_kind"] == role)


@pytest.mark.parametrize(
    ("name", "kind"),
    crossed(INSTALLED, ["pinned-consumer", "pinned-producer-and-consumer", "end-to-end-producing-consumer"]),
)
def test_each_server_gives_back_what_it_was_sent(name: str, kind: str, tmp_path: Path) -> None:
    if not INSTALLED[name]:
        pytest.skip(f"there is no {name} here")
    server = STARTED[name]()
    report = measure(options(kind, tmp_path), Output(), server)
    if kind == "pinned-consumer":
        assert moved(report, "consumer") == 400
    elif kind == "end-to-end-producing-consumer":
        assert moved(report, "producing_consumer") == 800
    else:
        assert moved(report, "producer") == 800 and 0 < moved(report, "consumer") <= 800
    told = report["shardd"]["server"]
    assert told["name"] == name and told["version"] and told["cpu_seconds"] > 0 and told["memory_bytes"] > 1 << 20
    assert told["written_bytes"] >= 0 and report["shardd"]["client"]["bytes_per_message"] > PAYLOAD_BYTES
    assert not list(tmp_path.iterdir()), "a server left something behind"
    assert not isinstance(server, Started) or not server.is_running()


@pytest.mark.parametrize(
    ("name", "kind"),
    crossed(
        [each for each in SERVERS if each != "floor"],
        ["balanced-consumer-group", "balanced-producer-and-consumer-group"],
    ),
)
def test_groups_share_messages_and_nothing_is_read_twice(name: str, kind: str, tmp_path: Path) -> None:
    report = measure(options(kind, tmp_path), Output(), STARTED[name]())
    if kind == "balanced-consumer-group":
        assert moved(report, "consumer") == 400
    else:
        assert moved(report, "producer") == 400 and 0 < moved(report, "consumer") <= 400


class Watched:
    """Looks into a server between the measurement and its end."""

    def __init__(self, name: str) -> None:
        base = STARTED[name]
        watched = self

        class Looking(base):  # type: ignore[misc, valid-type]
            def stop(self) -> None:
                if self.port and not watched.found:
                    watched.found = watched.look(self)
                super().stop()

        self.server = Looking()
        self.found: list[int] = []

    @staticmethod
    def look(server: Started) -> list[int]:
        """Messages of both streams, and whether the payload is there, by ways that the engine does not use."""
        if server.name == "redis":
            with server.connect() as connection:
                return [int(redis.ask(connection, "XLEN", f"bench-stream-{number}")) for number in (1, 2)]
        if server.name == "nats":
            assert isinstance(server, nats.Nats)
            return [_stream_info(server, f"bench-stream-{number}") for number in (1, 2)]
        return [path.stat().st_size // (64 + PAYLOAD_BYTES) for path in sorted(server.directory.glob("*.log"))][:2]


def _stream_info(server: nats.Nats, name: str) -> int:
    with server.open(options("pinned-producer", Path()), Actor("producer", 1, 1, index=7)) as connection:
        connection.sendall(f"PUB $JS.API.STREAM.INFO.{name} _I.7 0\r\n\r\n".encode())
        with connection.makefile("rb") as answers:
            size = int(answers.readline().split()[-1])
            return int(json.loads(answers.read(size))["state"]["messages"])


@pytest.mark.parametrize(
    ("name", "durability"),
    crossed([each for each in SERVERS if each != "shardd"], ["memory", "written", "durable"], times=2),
)
def test_each_level_stores_each_message_once(name: str, durability: str, tmp_path: Path) -> None:
    watched = Watched(name)
    chosen = options("pinned-producer", tmp_path, durability=durability, depth=4)
    report = measure(chosen, Output(), watched.server)
    assert moved(report, "producer") == 400 and report["shardd"]["server"]["durability"]
    assert watched.found[:2] == [200, 200] or name == "floor"
    if name == "floor":
        assert 200 in watched.found


@servers
def test_sizes_and_batches_may_be_ranges(name: str, tmp_path: Path) -> None:
    chosen = options("pinned-producer", tmp_path, message_size=Span(0, 300), batch=Span(1, 30))
    report = measure(chosen, Output(), STARTED[name]())
    sent = sum(each["summary"]["total_user_data_bytes"] for each in report["individual_metrics"])
    assert 40 < moved(report, "producer") < 1200 and sent > 1000


def test_the_floor_says_what_it_cannot_do() -> None:
    for kind in KINDS:
        chosen = options(kind.name, Path(), message_size=Span(1, 9))
        if kind.polls:
            with pytest.raises(BenchError, match="floor"):
                named("floor", chosen)
        else:
            named("floor", chosen)


def test_what_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BenchError, match="apt-get install redis-server"):
        named("redis", options("pinned-producer", Path()))
    with pytest.raises(BenchError, match="saved report"):
        named("???", options("pinned-producer", Path()))


def test_a_server_that_refuses_a_message_ends_the_run(tmp_path: Path) -> None:
    """A stream that there is not: the message is refused, not counted."""

    class Forgetful(nats.Nats):
        def prepare(self, options: Options) -> Places:
            return Places({1: 8, 2: 9}, {1: 0, 2: 0}, {})

    if not INSTALLED["nats"]:
        pytest.skip("there is no nats-server here")
    with pytest.raises(BenchError, match="no such stream"):
        measure(options("pinned-producer", tmp_path), Output(), Forgetful())


def test_cpu_of_processes_that_have_ended_is_counted() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    script = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print('x', flush=True); input()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.read(1) == b"x"
        assert (processes_cpu_s(process.pid) or 0.0) >= 0.29
        process.communicate(b"\n", timeout=30)


def test_pinning_is_done_and_told(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    chosen = options("pinned-producer", tmp_path, server_cpus=str(cpu), client_cpus=str(cpu), producers=2)
    report = measure(chosen, Output(), STARTED["floor"]())
    assert report["shardd"]["pinning"] == {"client": str(cpu), "server": str(cpu)}
    assert report["shardd"]["client"]["processes"] == 1
