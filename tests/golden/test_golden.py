"""The recorded answers of the released server 0.8.0, scenario by scenario, in order, on one fresh server per file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.support import golden
from tests.support.server import Server

DATA = Path(__file__).parent / "data"
CLASSIC = tuple(golden.load(DATA / "classic-0.8.0.jsonl.xz"))
SEGMENTS = tuple(golden.load(DATA / "segments-0.8.0.jsonl.xz"))
# Scenarios with bytes in pieces, closes, messages in files: the others speak values, whatever the engine.
OF_THE_ENGINE = (
    "framing-",
    "clients",
    "send-",
    "poll-",
    "offsets",
    "flush",
    "purge-",
    "delete-segments-",
    "group-disconnect",
)


# A login that ends behind the password is one of an earlier generation (docs/protocol/legacy.md), unless the listener
# speaks nothing but classic.
WITHOUT_VERSION = "[version and context are required]"


def replay(server: Server, scenario: golden.Scenario, *, classic_only: bool = False) -> None:
    outcome = golden.Replay(server.address).run(scenario)
    if scenario.name == "login" and not classic_only:
        told = [each for each in outcome.differences if WITHOUT_VERSION in each]
        assert len(told) == 1 and "status 0, recorded 3" in told[0]
        outcome.differences = [each for each in outcome.differences if each not in told]
    if outcome.differences:
        golden.delete_all(server.address)
    assert not outcome.copied, f"defects of the reference: {outcome.copied}"
    shown = "\n".join(outcome.differences[:20])
    assert not outcome.differences, f"{len(outcome.differences)} of {outcome.steps} steps differ:\n{shown}"


@pytest.fixture(scope="module")
def classic_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("classic"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def segments_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("segments"), env={"SHARDD_SYSTEM_SEGMENT_SIZE": "5 KiB"})
    server.start()
    yield server
    server.stop()


def marked(scenario: golden.Scenario) -> ParameterSet:
    marks = [pytest.mark.io_engine] if scenario.name.startswith(OF_THE_ENGINE) else []
    return pytest.param(scenario, id=scenario.name, marks=marks)


@pytest.mark.parametrize("scenario", [*map(marked, CLASSIC)])
def test_classic_answers_like_the_record(classic_server: Server, scenario: golden.Scenario) -> None:
    replay(classic_server, scenario)


@pytest.mark.io_engine
@pytest.mark.parametrize("scenario", SEGMENTS, ids=lambda scenario: scenario.name)
def test_small_segments_answer_like_the_record(segments_server: Server, scenario: golden.Scenario) -> None:
    replay(segments_server, scenario)


def test_a_classic_listener_knows_no_login_without_a_version(tmp_path: Path) -> None:
    [scenario] = [each for each in CLASSIC if each.name == "login"]
    with Server(tmp_path / "data", env={"SHARDD_TCP_DIALECT": "classic"}) as server:
        replay(server, scenario, classic_only=True)
