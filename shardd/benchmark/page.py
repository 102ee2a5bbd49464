"""One HTML page of a report, which needs nothing else."""

from __future__ import annotations

import html
import math
from typing import Any, Final

from shardd.benchmark.charts import Bar, Line, bars, chart, facts, page, thinned
from shardd.benchmark.table import facts_of, lines_of

PERCENT_MARKS: Final = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0)


def page_of(report: dict[str, Any]) -> str:
    own = report["shardd"]
    groups = {group["summary"]["kind"].replace("_", " "): group for group in report["group_metrics"]}
    charts = [
        chart("Throughput, MB/s", "seconds", series_of(groups, "avg_throughput_mb_ts")),
        chart("Messages per second", "seconds", series_of(groups, "avg_throughput_msg_ts")),
        chart("Latency over time, ms", "seconds", series_of(groups, "avg_latency_ts")),
        percentile_chart(_curves(own)),
        distribution_chart(_distributions(groups)),
        bars("CPU, seconds", _cpu(own)),
    ]
    above = (
        facts(facts_of(report))
        + f"<pre>{html.escape(chr(10).join(lines_of(report, header=False)))}</pre>\n"
        + f'<p class="k">{html.escape(report["params"]["bench_command"])}</p>\n'
    )
    return page(report["params"]["pretty_name"], above, charts)


def series_of(groups: dict[str, Any], name: str) -> list[Line]:
    return [
        Line(kind, thinned([(point["time_s"], point["value"]) for point in group[name]["points"]]))
        for kind, group in groups.items()
    ]


def curve_of(own: dict[str, Any], key: str = "latency_ms_by_percentile") -> list[tuple[float, float]]:
    return [(float(at), value) for at, value in own[key].items()]


def percentile_chart(lines: list[Line]) -> str:
    marks = [(nines(each), f"{each:g}") for each in PERCENT_MARKS]
    return chart("Latency by percentile, ms", "percent of requests", lines, nines, marks)


def distribution_chart(lines: list[Line]) -> str:
    """Over a logarithmic axis: most of it is near the least."""
    edges = [x for line in lines for x, _ in line.points if x > 0]
    if not edges:
        return ""
    marks = [(float(at), f"{10.0**at:g}") for at in range(math.floor(math.log10(min(edges))), 6)]
    marks = [mark for mark in marks if math.log10(min(edges)) <= mark[0] <= math.log10(max(edges))]
    lines = [Line(line.name, [(x, y) for x, y in line.points if x > 0]) for line in lines]
    return chart("Distribution of latencies, share per ms", "ms, logarithmic", lines, math.log10, marks)


def _curves(own: dict[str, Any]) -> list[Line]:
    if own["loop"] != "open":
        return [Line("latency", curve_of(own))]
    return [
        Line("since it was due", curve_of(own)),
        Line("since it was sent", curve_of(own, "service_ms_by_percentile")),
    ]


def nines(percent: float) -> float:
    """Each nine has the same width: 90, 99, 99.9."""
    return -math.log10(max(1e-4, 1 - percent / 100) if percent < 100 else 1e-5)


def _distributions(groups: dict[str, Any]) -> list[Line]:
    found = []
    for kind, group in groups.items():
        bins = group.get("latency_distribution", {}).get("bins", [])
        found.append(Line(kind, [(each["edge_ms"], each["density"]) for each in bins]))
    return found


def _cpu(own: dict[str, Any]) -> list[Bar]:
    used = [("client", own["client"]["cpu_seconds"]), ("server", own["server"]["cpu_seconds"])]
    found = [(name, float(value)) for name, value in used if value is not None]
    return [Bar(name, value, value, value, at) for at, (name, value) in enumerate(found)]
