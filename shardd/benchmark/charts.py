"""Charts as inline SVG: no script, nothing from elsewhere, readable in light and dark."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

POINTS_MAX: Final = 3000
COLORS: Final = ("#1f6feb", "#d1592b", "#2a8f4f", "#8250df", "#b08800", "#0e8a9c")
STYLE: Final = """body{font:15px/1.5 system-ui,sans-serif;max-width:920px;margin:2em auto;padding:0 1em;color:#1c2128}
pre{background:#f5f6f8;padding:1em;overflow-x:auto;font-size:13px;line-height:1.4}svg{width:100%;height:auto}
text{font:12px system-ui,sans-serif;fill:#57606a}h1{font-size:1.35em}h2{margin:1.6em 0 .3em;font-size:1.05em}
.k{font-size:13px;color:#57606a}.k i{font-style:normal;font-weight:600;padding-right:1em}
dl{display:grid;grid-template-columns:8em 1fr;gap:.1em 1em;font-size:13px}dt{color:#57606a}dd{margin:0}
@media(prefers-color-scheme:dark){body{background:#15181d;color:#e6e8eb}pre{background:#20242b}text{fill:#a0a8b4}
.k,dt{color:#a0a8b4}}"""
_WIDTH: Final = 880
_HEIGHT: Final = 270
_LEFT: Final = 72
_RIGHT: Final = 24
_BOTTOM: Final = 40
_TOP: Final = 12
_BAR_HEIGHT: Final = 20
_NAMES_WIDTH: Final = 230

Points = list[tuple[float, float]]


class Line(NamedTuple):
    name: str
    points: Points


class Bar(NamedTuple):
    """A value with the range that it was in."""

    name: str
    value: float
    least: float
    most: float
    color: int = 0


def thinned(points: Points) -> Points:
    """At most POINTS_MAX: of neighbours the highest, so that no peak is lost."""
    size = math.ceil(len(points) / POINTS_MAX)
    if size <= 1:
        return points
    return [max(points[at : at + size], key=lambda point: point[1]) for at in range(0, len(points), size)]


def ticks(top: float, wanted: int = 5) -> list[float]:
    """From 0 in steps of 1, 2 or 5 times a power of ten; the last one is `top` or more."""
    if top <= 0:
        return [0.0, 1.0]
    rough = top / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * 0.999)
    return [step * at for at in range(math.ceil(top / step - 1e-9) + 1)]


def number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def page(title: str, above: str, charts: Sequence[str]) -> str:
    """`above`: HTML before the charts."""
    name = html.escape(title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>\n<h1>{name}</h1>\n'
        + above
        + "".join(charts)
        + "</body></html>\n"
    )


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    inside = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in pairs if value)
    return f"<dl>{inside}</dl>\n"


def chart(
    title: str,
    under: str,
    lines: Sequence[Line],
    place: Callable[[float], float] = float,
    marks: Sequence[tuple[float, str]] | None = None,
) -> str:
    """Lines over an axis from 0. `place`: where a value of x is; `marks`: what stands below the axis, and where."""
    lines = [Line(line.name, [(place(x), y) for x, y in line.points]) for line in lines if line.points]
    if not lines:
        return ""
    names = "".join(
        f'<i><span style="color:{COLORS[at % len(COLORS)]}">&#9632;</span> {html.escape(line.name)}</i>'
        for at, line in enumerate(lines)
    )
    below = f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{html.escape(under)}</text>'
    return (
        f'<h2>{html.escape(title)}</h2><div class="k">{names}</div>'
        + _svg(title, _HEIGHT, _inside(lines, marks) + below)
        + "\n"
    )


def bars(title: str, rows: Sequence[Bar]) -> str:
    """One bar for each value, with its range."""
    if not rows:
        return ""
    return f"<h2>{html.escape(title)}</h2>" + bars_svg(title, rows) + "\n"


def bars_svg(title: str, rows: Sequence[Bar], width: int = _WIDTH) -> str:
    top = max(row.most for row in rows) or 1.0
    space = width - _NAMES_WIDTH - 90
    parts = []
    for at, row in enumerate(rows):
        y, middle = 6 + at * (_BAR_HEIGHT + 8), 6 + at * (_BAR_HEIGHT + 8) + _BAR_HEIGHT / 2
        color = COLORS[row.color % len(COLORS)]
        ends = [_NAMES_WIDTH + each / top * space for each in (row.least, row.value, row.most)]
        parts.append(
            f'<text x="{_NAMES_WIDTH - 8}" y="{middle + 4:.0f}" text-anchor="end">{html.escape(row.name)}</text>'
            f'<rect x="{_NAMES_WIDTH}" y="{y}" width="{max(1, ends[1] - _NAMES_WIDTH):.1f}" height="{_BAR_HEIGHT}" '
            f'fill="{color}" rx="2"/>'
        )
        if row.most > row.least:
            parts.append(
                f'<path d="M{ends[0]:.1f} {middle}H{ends[2]:.1f}M{ends[0]:.1f} {middle - 4}v8M{ends[2]:.1f} '
                f'{middle - 4}v8" stroke="#888" stroke-width="1.5"/>'
            )
        parts.append(f'<text x="{max(ends[1], ends[2]) + 8:.1f}" y="{middle + 4:.0f}">{number(row.value)}</text>')
    return _svg(title, 6 + len(rows) * (_BAR_HEIGHT + 8), "".join(parts), width)


def _svg(title: str, height: float, inside: str, width: int = _WIDTH) -> str:
    name = html.escape(title)
    return f'<svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{name}">{inside}</svg>'


def _inside(lines: Sequence[Line], marks: Sequence[tuple[float, str]] | None) -> str:
    every = [point for line in lines for point in line.points]
    least, most = min(x for x, _ in every), max(x for x, _ in every)
    if marks is None:
        least = 0.0
        marks = [(each, number(each)) for each in ticks(most) if each <= most * 1.001]
    most = max(most, *(at for at, _ in marks)) if marks else most
    heights = ticks(max(y for _, y in every))
    top, width, height = heights[-1], _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(x: float) -> float:
        return _LEFT + ((x - least) / (most - least) if most > least else 0.5) * width

    parts = []
    for each in heights:
        y = _TOP + (1 - each / top) * height
        parts.append(f'<path d="M{_LEFT} {y:.1f}h{width}" stroke="#8886" stroke-width=".5"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(each)}</text>')
    for at, shown in marks:
        parts.append(f'<path d="M{across(at):.1f} {_TOP + height}v4" stroke="#888"/>')
        parts.append(f'<text x="{across(at):.1f}" y="{_TOP + height + 17}" text-anchor="middle">{shown}</text>')
    for order, line in enumerate(lines):
        drawn = " ".join(f"{across(x):.1f},{_TOP + (1 - y / top) * height:.1f}" for x, y in line.points)
        color = COLORS[order % len(COLORS)]
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{color}" stroke-width="1.6"/>')
    return "".join(parts)
