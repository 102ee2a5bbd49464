"""A page needs nothing else, and a comparison knows noise."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from shardd.benchmark.charts import POINTS_MAX
from shardd.benchmark.compare import compare, load_report
from shardd.benchmark.options import BenchError
from shardd.benchmark.page import page_of


def series(values: list[float]) -> dict[str, Any]:
    return {"points": [{"time_s": at / 100, "value": value} for at, value in enumerate(values)]}


def report(throughput: list[float], latency: list[float], **params: Any) -> dict[str, Any]:
    mean, delay = sum(throughput) / len(throughput), sum(latency) / len(latency)
    tails = {f"average_{name}_latency_ms": delay for name in ("p50", "p95", "p99", "p999")}
    own = {
        "loop": "open",
        "depth": 1,
        "seconds": 1.0,
        "megabytes_per_second": mean,
        "latency_ms_by_percentile": {"0": 0.1, "50": 1.0, "99": 2.0, "99.9": 4.0, "100": 9.0},
        "service_ms_by_percentile": {"0": 0.1, "50": 0.5, "99": 1.0, "99.9": 2.0, "100": 3.0},
        "client": {"processes": 2, "busiest_cpu": 0.9, "cpu_seconds": 1.0, "empty_polls": 3, "limit": "it is small"},
        "server": {"cpu_seconds": 2.0, "cpu_us_per_message": 1.5},
    }
    shown = {"pretty_name": "<b>", "server_address": "x", "rate_limit": None, "bench_command": "a && b", "gitref": "g"}
    return {
        "timestamp": "now",
        "params": {"benchmark_kind": "pinned_producer", **shown, **params},
        "hardware": {"cpu_name": "C", "cpu_cores": 2, "os_name": "Linux", "os_version": "6"},
        "server_stats": {"iggy_server_version": "0.8.0"},
        "shardd": own,
        "group_metrics": [
            {
                "summary": {
                    "kind": "producers",
                    "total_throughput_megabytes_per_second": mean,
                    "total_throughput_messages_per_second": mean * 1000,
                    "average_latency_ms": delay,
                    **tails,
                },
                "avg_throughput_mb_ts": series(throughput),
                "avg_throughput_msg_ts": series(throughput),
                "avg_latency_ts": series(latency),
                "latency_distribution": {"bins": [{"edge_ms": 0.1, "density": 2.0}, {"edge_ms": 0.3, "density": 1.0}]},
            }
        ],
    }


STEADY = report([100.0, 101.0, 99.0, 100.0] * 25, [1.0, 1.1, 0.9, 1.0] * 25)


def verdicts(first: dict[str, Any], second: dict[str, Any]) -> dict[str, str]:
    rows = [re.split(r"\s{2,}", line) for line in compare(first, second)]
    return {row[1]: row[-1] for row in rows if row[0] == "producers"}


def test_a_page_shows_all_charts_and_loads_nothing() -> None:
    page = page_of(STEADY)
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 6
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert "nan" not in drawing and "inf" not in drawing
    found: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend([tag, *(name for name, _ in attrs)])

    Tags().feed(page)
    assert not {"script", "link", "img", "src", "href", "b"} & set(found)
    assert "a &amp;&amp; b" in page and "http" not in page


def test_a_long_run_keeps_its_peaks_and_a_page_that_can_be_opened() -> None:
    values = [1.0] * 100_000
    values[54_321] = 777.0
    page = page_of(report(values, values))
    assert page.count(",") < 8 * POINTS_MAX and "777" in page


def test_runs_that_measured_next_to_nothing_have_pages() -> None:
    assert "<svg" in page_of(report([0.0], [0.0]))


def test_a_run_is_as_good_as_itself() -> None:
    found = verdicts(STEADY, copy.deepcopy(STEADY))
    assert set(found) == {"MB/s", "messages/s", "avg ms", "p50 ms", "p99 ms", "p99.9 ms"}
    assert all("within the noise" in verdict for verdict in found.values())


def test_more_than_the_noise_is_better_or_worse() -> None:
    faster = report([110.0, 111.0, 109.0, 110.0] * 25, [0.5, 0.6, 0.4, 0.5] * 25)
    assert set(verdicts(STEADY, faster).values()) == {"better"}
    assert set(verdicts(faster, STEADY).values()) == {"worse"}


def test_the_same_difference_in_a_restless_run_is_noise() -> None:
    restless = report([20.0] * 50 + [200.0] * 50, [0.2] * 50 + [1.8] * 50)
    assert all("within the noise" in verdict for verdict in verdicts(STEADY, restless).values())


def test_a_run_that_is_too_short_says_so() -> None:
    assert set(verdicts(report([1.0] * 5, [1.0] * 5), report([2.0] * 5, [2.0] * 5)).values()) == {"noise unknown"}


def test_what_was_not_the_same_is_told() -> None:
    other = report([100.0] * 100, [1.0] * 100, message_size=10)
    text = "\n".join(compare(STEADY, other))
    assert "Not the same in both: message size: None and 10." in text and "In B it is small." in text


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "{", "[" * 100_000, '{"group_metrics": [3]}', '{"group_metrics": []}']
)
def test_what_is_no_report_is_refused_with_a_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(BenchError, match="no report"):
        load_report(path)
    with pytest.raises(BenchError):
        load_report(tmp_path / "nothing")


def test_a_directory_of_a_run_is_read(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(STEADY))
    assert load_report(tmp_path) == STEADY


def test_a_report_of_iggy_bench_has_no_part_of_ours(tmp_path: Path) -> None:
    theirs = {name: value for name, value in STEADY.items() if name != "shardd"}
    (tmp_path / "report.json").write_text(json.dumps(theirs))
    assert any("within the noise" in line for line in compare(load_report(tmp_path), STEADY))
