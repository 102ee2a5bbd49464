"""The short form of `make fuzz-doors`, and what it must find."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz import door_lanes
from tests.fuzz.door_journal import DoorJournal
from tests.fuzz.doors import DOORS, DoorRun, fuzz
from tests.fuzz.http_door import read_answer
from tests.fuzz.lanes import FindingError
from tests.fuzz.metrics_door import MetricsDoor
from tests.fuzz.nats_requests import Conversation
from tests.hostile.matrix.lines import DOORS as ATTACKED
from tests.support.wide import wide_but

INPUTS: Final = 800
SHORT: Final = ("http", "metrics", "grpc", "nats", "quic")  # the others are the same parsers over TLS
EXPECTED: Final = {
    "http": {"200", "400", "404", "422", "ended"},
    "https": {"200", "400", "404", "422"},
    "metrics": {"200", "400", "401", "404", "405"},
    "grpc": {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "wire"},
    "grpc-tls": {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "wire"},
    "nats": {"+OK", "PONG", "MSG", "-ERR 'Parser Error'", "-ERR 'Unknown Protocol Operation'", "cut"},
    "quic": {"0", "3", "1009"},
}
# by door: a module that is patched when another one is looked for, and the function that fails there
FAULTS: Final = {
    "http": ("shardd.doors.http.system_routes", "shardd.doors.http.sizes", "size_text"),
    "https": ("shardd.doors.http.system_routes", "shardd.doors.http.sizes", "size_text"),
    "metrics": ("shardd.doors.metrics.app", "shardd.doors.metrics.families", "write_all"),
    "grpc": ("shardd.doors.liftbridge.stream_rpcs", "shardd.doors.liftbridge.status", "invalid"),
    "grpc-tls": ("shardd.doors.liftbridge.stream_rpcs", "shardd.doors.liftbridge.status", "invalid"),
    "nats": ("shardd.doors.liftbridge.nats.connection", "shardd.protocol.nats", "is_subscribable"),
    "quic": ("shardd.doors.quic.connection", "shardd.doors.quic.classic", "read_request"),
}
SITE: Final = """\
import importlib.abc, importlib, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {user!r}:
            setattr(importlib.import_module({module!r}), {function!r}, lambda *_, **__: 1 // 0)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("door", wide_but(SHORT, DOORS))
def test_mutated_inputs_at_a_door_are_answered(door: str, tmp_path: Path) -> None:
    counts = asyncio.run(fuzz(door, tmp_path / "data", INPUTS, "7"))
    assert counts["inputs"] >= INPUTS
    assert counts.keys() >= EXPECTED[door]
    assert counts[door_lanes.SERVED] >= 1


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", "status 500"),
        (b"garbage\r\n\r\n", "no answer of HTTP"),
        (b"HTTP/1.1 200", "half an answer"),
    ],
)
def test_answers_that_must_not_be_are_found(said: bytes, told: str) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(said)
        reader.feed_eof()
        await read_answer(reader)

    with pytest.raises(FindingError, match=told):
        asyncio.run(read())


@pytest.mark.parametrize("door", wide_but(SHORT, DOORS))
def test_a_fault_in_a_door_is_found(door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user, module, function = FAULTS[door]
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE.format(user=user, module=module, function=function))
    monkeypatch.setenv("PYTHONPATH", str(site))
    with pytest.raises(FindingError):
        asyncio.run(fuzz(door, tmp_path / "data", INPUTS, "7"))


def test_nats_answer_that_the_parser_does_not_tell_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the door forgot the answer to a subscription."""
    follow = Conversation._follow

    def forgetful(self: Conversation, request: object) -> bytes:
        error = follow(self, request)  # type: ignore[arg-type]
        self._answers += [b"PONG"] if type(request).__name__ == "Sub" and not error else []
        return error

    monkeypatch.setattr(Conversation, "_follow", forgetful)
    monkeypatch.setattr("tests.fuzz.nats_door.ANSWER_TIMEOUT_S", 5.0)
    with pytest.raises(FindingError, match="instead of"):
        asyncio.run(fuzz("nats", tmp_path / "data", INPUTS, "7"))


def test_door_that_is_replaced_during_the_inputs_is_found(tmp_path: Path) -> None:
    killed = threading.Event()

    class Killed(MetricsDoor):
        async def ask(self) -> None:
            if not killed.is_set():
                killed.set()
                os.kill(self.process().pid, signal.SIGKILL)

    async def run() -> None:
        with Killed(tmp_path / "data") as door:
            await door_lanes.Work(10**9, door.watch(), lambda done: None).run(door, "7")

    with pytest.raises(FindingError):
        asyncio.run(run())


def test_client_that_is_not_served_beside_the_inputs_is_found(tmp_path: Path) -> None:
    class Refusing(MetricsDoor):
        async def ask(self) -> None:
            raise ConnectionResetError

    async def run() -> None:
        with Refusing(tmp_path / "data") as door:
            await door_lanes.Work(10**9, door.watch(), lambda done: None).run(door, "7")

    with pytest.raises(FindingError, match="a well-behaved client is not served"):
        asyncio.run(run())


@pytest.mark.parametrize("bound", ["growth_max_bytes", "workers_growth_max_bytes"])
def test_growth_beyond_the_bound_is_found(bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetricsDoor, bound, -(1 << 40))
    with pytest.raises(FindingError, match="grew by"):
        asyncio.run(fuzz("metrics", tmp_path / "data", INPUTS, "7"))


def test_run_that_was_ended_goes_on_behind_its_last_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.doors.ROUND_INPUTS", 100)
    path, told = tmp_path / "journal.jsonl", list[str]()

    def run(inputs: int) -> DoorJournal:
        journal = DoorJournal(path)
        seed = journal.seed_of("metrics", inputs)
        asyncio.run(DoorRun("metrics", inputs, seed, journal, told.append).run(tmp_path))
        return journal

    first = run(150)
    with path.open("ab") as file:
        file.write(b'\n{"door": "metrics", "se')  # as a kill leaves it
    seed = first.seed_of("metrics", 10**9)
    second = run(300)
    rounds = second.rounds("metrics", seed)
    assert [each.number for each in rounds] == [0, 1, 2, 3][: len(rounds)]
    assert second.inputs("metrics", seed) >= 300 > first.inputs("metrics", seed) >= 150
    assert second.counts("metrics", seed)["inputs"] == second.inputs("metrics", seed)
    assert "0 findings" in told[-1] and "a second" in told[-1]


def test_finding_is_told_with_its_round_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.doors.ROUND_INPUTS", 100)
    asked = 0

    async def once(self: MetricsDoor) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ConnectionResetError

    monkeypatch.setattr(MetricsDoor, "ask", once)
    journal, told = DoorJournal(tmp_path / "journal.jsonl"), list[str]()
    run = DoorRun("metrics", 200, 7, journal, told.append)
    asyncio.run(run.run(tmp_path))
    assert len(run.findings) == 1 and "FINDING in round 0 of seed 7" in told[0]
    assert journal.inputs("metrics", 7) >= 200


def test_all_ports_of_doors_are_fuzzed() -> None:
    """A door that is added is fuzzed, too."""
    engine = {"tcp", "tls", "websocket", "wss", "iggy09", "unix"}  # `make fuzz`, `make fuzz-ways`
    assert {*ATTACKED} - engine <= {*DOORS}
