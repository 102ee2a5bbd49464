"""One HTML page with charts, which needs nothing else: no script, nothing from elsewhere."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from shardd.benchmark.table import lines_of

POINTS_MAX: Final = 3000
_WIDTH: Final = 860
_HEIGHT: Final = 260
_LEFT: Final = 70
_BOTTOM: Final = 34
_TOP: Final = 12
_TICKS: Final = 5
_COLORS: Final = ("#1f6feb", "#d1592b", "#2a8f4f", "#8250df")
_STYLE: Final = """body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#1c2128}
pre{background:#f5f6f8;padding:1em;overflow-x:auto}svg{width:100%;height:auto}text{font:12px system-ui,sans-serif;
fill:#57606a}h2{margin:1.5em 0 .3em;font-size:1.1em}.k{font-size:13px;color:#57606a}
@media(prefers-color-scheme:dark){body{background:#15181d;color:#e6e8eb}pre{background:#20242b}text{fill:#a0a8b4}}"""

Points = list[tuple[float, float]]


class Line(NamedTuple):
    name: str
    points: Points


def page_of(report: dict[str, Any]) -> str:
    params, own = report["params"], report["shardd"]
    groups = {group["summary"]["kind"].replace("_", " "): group for group in report["group_metrics"]}
    charts = [
        _chart("Throughput, MB/s", "seconds", _series(groups, "avg_throughput_mb_ts")),
        _chart("Messages per second", "seconds", _series(groups, "avg_throughput_msg_ts")),
        _chart("Latency over time, ms", "seconds", _series(groups, "avg_latency_ts")),
        _chart("Latency by percentile, ms", "percent of requests", _curves(own), _nines, _percent),
        _chart("Distribution of latencies, share per ms", "ms", _distributions(groups)),
        _chart("CPU, seconds", "", [], bars=_cpu(own)),
    ]
    title = html.escape(params["pretty_name"])
    command = html.escape(params["bench_command"])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n'
        f'<p class="k">{html.escape(report["timestamp"])} &middot; {html.escape(params["gitref"])}</p>\n'
        f"<pre>{html.escape(chr(10).join(lines_of(report)))}</pre>\n<pre>{command}</pre>\n"
        + "".join(charts)
        + "</body></html>\n"
    )


def _series(groups: dict[str, Any], name: str) -> list[Line]:
    return [
        Line(kind, _thinned([(point["time_s"], point["value"]) for point in group[name]["points"]]))
        for kind, group in groups.items()
    ]


def _thinned(points: Points) -> Points:
    """At most POINTS_MAX: of neighbours the highest, so that no peak is lost."""
    size = math.ceil(len(points) / POINTS_MAX)
    if size <= 1:
        return points
    return [max(points[at : at + size], key=lambda point: point[1]) for at in range(0, len(points), size)]


def _curves(own: dict[str, Any]) -> list[Line]:
    name = "since it was due" if own["loop"] == "open" else "latency"
    curves = [Line(name, [(float(at), value) for at, value in own["latency_ms_by_percentile"].items()])]
    if own["loop"] == "open":
        curves.append(Line("since it was sent", [(float(at), v) for at, v in own["service_ms_by_percentile"].items()]))
    return curves


def _nines(percent: float) -> float:
    """Each nine has the same width: 90, 99, 99.9."""
    return -math.log10(max(1e-4, 1 - percent / 100) if percent < 100 else 1e-5)


def _percent(nines: float) -> str:
    return f"{100 * (1 - 10**-nines):.6g}" if nines < 5 else "100"


def _distributions(groups: dict[str, Any]) -> list[Line]:
    found = []
    for kind, group in groups.items():
        bins = group.get("latency_distribution", {}).get("bins", [])
        found.append(Line(kind, [(each["edge_ms"], each["density"]) for each in bins]))
    return found


def _cpu(own: dict[str, Any]) -> list[tuple[str, float]]:
    bars = [("client", float(own["client"]["cpu_seconds"]))]
    if own["server"]["cpu_seconds"] is not None:
        bars.append(("server", float(own["server"]["cpu_seconds"])))
    return bars


def _chart(
    title: str,
    under: str,
    lines: Sequence[Line],
    place: Callable[[float], float] = float,
    label: Callable[[float], str] = lambda value: f"{value:.4g}",
    bars: Sequence[tuple[str, float]] = (),
) -> str:
    """`place`: where a value of x is; `label`: what stands there."""
    lines = [Line(line.name, [(place(x), y) for x, y in line.points]) for line in lines if line.points]
    if not lines and not bars:
        return ""
    inside = _bars(bars) if bars else _lines(lines, label)
    names = "".join(
        f' <span style="color:{_COLORS[at % len(_COLORS)]}">&#9632;</span> {html.escape(line.name)}'
        for at, line in enumerate(lines)
    )
    return (
        f'<h2>{html.escape(title)}</h2><div class="k">{names}</div><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}">{inside}'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 2}" text-anchor="end">{html.escape(under)}</text></svg>\n'
    )


def _lines(lines: Sequence[Line], label: Callable[[float], str]) -> str:
    every = [point for line in lines for point in line.points]
    least, most = min(x for x, _ in every), max(x for x, _ in every)
    top = max(y for _, y in every) or 1.0
    width, height = _WIDTH - _LEFT - 10, _HEIGHT - _TOP - _BOTTOM

    def at(x: float, y: float) -> str:
        share = (x - least) / (most - least) if most > least else 0.5
        return f"{_LEFT + share * width:.1f},{_TOP + (1 - y / top) * height:.1f}"

    parts = []
    for tick in range(_TICKS + 1):
        y = _TOP + (1 - tick / _TICKS) * height
        x = _LEFT + tick / _TICKS * width
        parts.append(f'<path d="M{_LEFT} {y:.1f}h{width}" stroke="#8886" stroke-width=".5"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * tick / _TICKS:,.4g}</text>')
        shown = label(least + (most - least) * tick / _TICKS)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{shown}</text>')
    for number, line in enumerate(lines):
        color = _COLORS[number % len(_COLORS)]
        drawn = " ".join(at(x, y) for x, y in line.points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{color}" stroke-width="1.5"/>')
    return "".join(parts)


def _bars(bars: Sequence[tuple[str, float]]) -> str:
    top = max(value for _, value in bars) or 1.0
    parts = []
    for at, (name, value) in enumerate(bars):
        y, width = 20 + at * 50, value / top * (_WIDTH - _LEFT - 100)
        parts.append(f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="32" fill="{_COLORS[at]}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 20}" text-anchor="end">{html.escape(name)}</text>')
        parts.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y + 20}">{value:.2f}</text>')
    return "".join(parts)
