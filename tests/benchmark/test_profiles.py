"""Named shapes of load do what they are named for; the live view and HdrHistogram say what was measured."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Final

import pytest
from hdrh.histogram import HdrHistogram
from rich.console import Console
from typer.testing import CliRunner

from shardd.benchmark import hdr
from shardd.benchmark.live import LiveView, sparkline
from shardd.benchmark.metrics import percentile
from shardd.benchmark.options import Progress
from shardd.benchmark.profiles import PROFILES
from shardd.cli.bench import bench_app
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

SHORT = {
    "reference": ("-b", "4", "-r", "4GB"),
    "tail-polls": (
        "-b",
        "20",
    ),
    "catch-up-polls": ("-b", "5"),
    "mixed-sizes": ("-b", "20"),
    "many-partitions": ("-b", "5"),
    "many-connections": ("-b", "1"),
    "hot-partition": ("-b", "50"),
    "slow-consumer": ("-b", "100"),
    "retention": ("-b", "2000"),
    "rebalance": ("-b", "1000"),
    "kill": ("-b", "25"),
}


OWN = ("--own-server", "--set", "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION=1")
SERVER: Final = Serving(env=ONE_SHARD)


def run(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(bench_app, ["--json", *words])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_profile_is_tried() -> None:
    assert set(SHORT) == {each.name for each in PROFILES}


@pytest.mark.parametrize("name", SHORT)
def test_each_profile_runs_and_says_so(name: str, server: Server) -> None:
    extra = ("-p", "100") if name == "many-connections" else ("-a", "50") if name == "many-partitions" else ()
    if name in ("retention", "catch-up-polls", "kill"):  # other settings, nothing in it, or gone now and then
        report = run(*OWN, *SHORT[name], name, *extra)
    else:
        report = run(*SHORT[name], name, *extra, "tcp", "--server-address", server.address)
    own, params = report["shardd"], report["params"]
    assert own["profile"] == name and own["messages_per_second"] > 0
    if name == "reference":
        assert (params["producers"], params["consumers"]) == (20, 20)
        assert (params["messages_per_batch"], params["message_size"]) == (250, 1000)
        assert params["rate_limit"] == "4GB"  # what is given goes before the profile
    if name in ("slow-consumer", "rebalance", "kill"):
        assert own["beside"]["what"] == name and own["beside"]["times"] > 0
    if name == "retention":
        assert report["server_stats"]["messages_count"] < 4 * 2000 * 100
    if name == "tail-polls":
        assert own["loop"] == "open"


def test_histograms_are_those_of_the_latencies() -> None:
    latencies = [0.0001 * at for at in range(1, 20_001)]
    text = hdr.encoded(latencies)
    assert text is not None
    found = HdrHistogram.decode(text.encode())
    assert found.get_total_count() == len(latencies)
    for percent in (50.0, 99.0, 99.9):
        assert found.get_value_at_percentile(percent) / 1e6 == pytest.approx(percentile(latencies, percent), rel=2e-3)
    table = hdr.percentiles_of(text).splitlines()
    assert table[0].split() == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"] and "#[Mean" in table[-3]
    assert hdr.log_of(text, 2.0).splitlines()[-1] == f"0.000,2.000,2.001,{text}"  # three digits


def test_without_requests_there_is_no_histogram() -> None:
    assert hdr.encoded([]) is None


def test_a_report_has_the_histogram_and_its_files(tmp_path: Path, server: Server) -> None:
    words = ["-b", "20", "-P", "10", "pp", "-p", "2", "tcp", "--server-address", server.address]
    done = CliRunner().invoke(bench_app, [*words, "output", "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (directory,) = tmp_path.iterdir()
    report = json.loads((directory / "report.json").read_text())
    found = HdrHistogram.decode(report["shardd"]["hdr_histogram"].encode())
    assert found.get_total_count() == 40
    assert "TotalCount" in (directory / "latency.hgrm").read_text()
    assert report["shardd"]["hdr_histogram"] in (directory / "latency.hlog").read_text()


def test_a_live_view_shows_what_was_done_since_the_last_look() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with LiveView(console) as view:
        view(Progress(1.0, 1000, 1_000_000, 2.5, 0.25))
        table = view.shown(Progress(2.0, 4000, 5_000_000, 7.25, 0.5))
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "50%" in text and "3,000 messages/s" in text and "4.0" in text and "7.25" in text


def test_a_live_view_is_silent_where_there_is_no_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with LiveView(console) as view:
        view(Progress(1.0, 1000, 1_000_000, 2.5, 0.25))
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


def test_a_sparkline_has_its_peak_at_the_top() -> None:
    assert sparkline([0.0, 1.0, 8.0]) == " ▁█" and sparkline([]) == "" and sparkline([0.0]) == " "
