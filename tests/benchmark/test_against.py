"""Servers beside each other: the verdict knows noise, and a whole run measures what it says."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from shardd.benchmark import against
from shardd.benchmark.against import Contender, Figures, Ratio, ratio_of, verdicts, word_of
from shardd.benchmark.kinds import BY_NAME
from shardd.benchmark.options import BenchError, Options, Output, Span
from shardd.benchmark.run import benchmark_against

SPEED, DELAY = ("producers", "MB/s"), ("producers", "p99 ms")


def options(**values: object) -> Options:
    given: dict[str, object] = {"batches": 20, "batch": Span(10, 10), "message_size": Span(100, 100), "own": True}
    given["server_settings"] = ("SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION=1",)
    return Options(BY_NAME["pinned-producer"], 2, 1, 2, 0, 1, **(given | values))  # type: ignore[arg-type]


def contender(rounds: list[float], key: tuple[str, str] = SPEED) -> Contender:
    return Contender("x", options(), rounds=[{key: value} for value in rounds])


def words(first: list[float], again: list[float], other: list[float], key: tuple[str, str] = SPEED) -> str:
    (found,) = verdicts(contender(first, key), contender(again, key), contender(other, key))
    return found.word


def test_more_than_the_pair_differs_is_better_or_worse() -> None:
    first, again = [100.0, 104.0, 98.0, 101.0, 99.0], [101.0, 99.0, 99.0, 103.0, 98.0]
    faster = [value * 1.2 for value in first]
    assert words(first, again, faster) == "better"
    assert words(first, again, faster, DELAY) == "worse"
    assert words(faster, [value * 1.2 for value in again], first) == "worse"


def test_a_difference_as_large_as_the_pair_has_is_noise() -> None:
    first = [100.0, 104.0, 98.0, 101.0, 99.0]
    restless = [100.0, 140.0, 98.0, 101.0, 99.0]
    assert words(first, restless, [value * 1.2 for value in first]).startswith("within the noise (35%)")


def test_the_machine_may_change_from_round_to_round() -> None:
    """Rounds are paired: what all have in common is in no ratio."""
    machine = [1.0, 0.4, 2.0, 0.7, 1.3]
    first = [100.0 * each for each in machine]
    assert words(first, [101.0 * each for each in machine], [90.0 * each for each in machine]) == "worse"


def test_rounds_that_disagree_say_nothing() -> None:
    ratio = Ratio(1.3, [0.7, 0.6, 1.3, 1.4, 1.5])
    assert word_of("MB/s", ratio, Ratio(1.0, [1.0, 1.01, 0.99])) == "rounds disagree"
    assert word_of("MB/s", Ratio(2.0, [2.0, 2.0]), Ratio(1.0, [1.0, 1.0])) == "too few rounds"


def test_the_same_server_is_seldom_called_another() -> None:
    """The canary of the verdict: 500 runs of one server against itself, with the spread of a busy machine."""
    source = random.Random(7)
    found = 0
    for _ in range(500):
        one, again, other = ([source.lognormvariate(0, 0.2) for _ in range(5)] for _ in range(3))
        found += words(one, again, other) in ("better", "worse")
    assert found < 25


def test_a_figure_that_one_side_lacks_is_not_compared() -> None:
    assert ratio_of([{SPEED: 1.0}], [{DELAY: 1.0}], SPEED) is None
    assert ratio_of([{SPEED: 1.0}], [{SPEED: 0.0}], SPEED) is None


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, list[str]]:
    directory = tmp_path_factory.mktemp("against")
    lines: list[str] = []
    output = Output(str(directory / "first"), "here")
    found = benchmark_against(options(), output, ["floor"], 2, lines.append)
    (run,) = (directory / "first").iterdir()
    return found, run, lines


def test_a_run_measures_all_in_turns_and_the_first_twice(written: tuple[dict[str, Any], Path, list[str]]) -> None:
    found, _, lines = written
    assert [each["label"] for each in found["servers"]] == ["shardd", "floor", "shardd again"]
    assert all(len(each["rounds"]) == 2 for each in found["servers"])
    order = [line.split(", ")[1].partition(":")[0] for line in lines if line.startswith("round ")]
    assert order == ["shardd", "floor", "shardd again", "shardd again", "floor", "shardd"]
    assert {each["figure"] for each in found["verdicts"]} >= {"producers: MB/s", "server: CPU us/message"}
    assert all(each["verdict"] == "too few rounds" for each in found["verdicts"])
    assert all(len(each["noise"]) == 2 for each in found["verdicts"])


def test_what_is_written_can_be_read_again(written: tuple[dict[str, Any], Path, list[str]]) -> None:
    found, run, _ = written
    assert json.loads((run / "against.json").read_text())["rounds"] == 2
    page = (run / "against.html").read_text()
    assert page.count("<svg") >= 7 and "<script" not in page and "http" not in page
    again = benchmark_against(options(), Output(), [str(run)], 1, lambda line: None)
    assert again["servers"][1]["label"] == str(run) and again["servers"][1]["version"]
    assert again["servers"][1]["rounds"][0] == found["servers"][0]["rounds"][-1]


def test_a_kill_is_for_servers_of_this_tool_alone() -> None:
    for name in ("floor", "127.0.0.1:1"):
        with pytest.raises(BenchError, match="--own-server alone"):
            against.contenders_of(options(disturbance="kill"), [name])


def test_nothing_is_measured_when_one_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    for name in (str(tmp_path), "???"):
        with pytest.raises(BenchError):
            against.contenders_of(options(), [name])


def test_figures_are_by_time_and_not_smoothed() -> None:
    summary = {"actor_kind": "producer", "total_user_data_bytes": 6_000_000, "total_messages": 600}
    latencies = {f"average_{name}_latency_ms": 2.0 for name in ("p50", "p99", "p999")}
    report = {
        "group_metrics": [{"summary": {"kind": "producers", **latencies}}],
        "individual_metrics": [{"summary": {**summary, "total_time_secs": each}} for each in (2.0, 4.0)],
    }
    found: Figures = against.figures_of(report)
    assert found[SPEED] == 3.0 and found["producers", "messages/s"] == 300.0 and found[DELAY] == 2.0
