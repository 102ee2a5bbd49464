"""Whether a measured quantity stays where it is: its growth over the run against a named tolerance.

The growth is the median of the slopes between pairs of samples of the same process life, at least a quarter of that
life apart, times the whole span: single outliers and the lower start of the next process do not move it. Only lives of
at least a quarter of the span count, without their first third (at most ten minutes): a process that has just started
fills its pools and caches, which is no leak.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

POINTS_MAX = 150  # of a life; more are averaged
SPAN_MIN_S = 300.0  # below that nothing is said
LIFE_SHARE_MIN = 0.25  # of the span: what a short life does is no measure of hours
WARM_UP_SHARE, WARM_UP_MAX_S = 1 / 3, 600.0  # of a life


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a quantity may grow over the whole run, however long: so much, or this share of its median."""

    absolute: float
    share: float = 0.0


MEBIBYTE = float(1 << 20)
TOLERANCES = {
    "rss": Tolerance(8 * MEBIBYTE, 0.05),
    "anonymous": Tolerance(6 * MEBIBYTE, 0.05),
    "fds": Tolerance(6.0),
    "threads": Tolerance(1.0),
    "p99": Tolerance(0.005, 0.5),
    "p99 ratio": Tolerance(0.5, 0.5),
    "data": Tolerance(32 * MEBIBYTE, 0.1),
}


@dataclass
class Series:
    """`quantity` is a key of TOLERANCES; `who` names server and process. Times in seconds since the start."""

    quantity: str
    who: str
    lives: dict[int, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, life: int, at_s: float, value: float) -> None:
        self.lives[life].append((at_s, value))

    def values(self) -> list[float]:
        return [value for points in self.lives.values() for _, value in points]

    def with_leak(self, growth: float) -> Series:
        """The same measurements of something that grows by so much over the run: the trend that they have is taken
        out first, as what falls while a busy machine calms down would hide it. The median stays."""
        growth -= judge(self).growth
        times = [at for points in self.lives.values() for at, _ in points]
        first, span = min(times), max(times) - min(times)
        leaking = Series(self.quantity, self.who)
        for life, points in self.lives.items():
            for at, value in points:
                leaking.add(life, at, value + growth * ((at - first) / span - 0.5))
        return leaking


@dataclass(frozen=True, slots=True)
class Verdict:
    """`flat` is None when the series is too short to say."""

    series: Series
    median: float
    growth: float
    tolerance: float
    flat: bool | None

    def row(self) -> str:
        scale, unit = {"p99": (1e3, "ms"), "fds": (1.0, ""), "threads": (1.0, ""), "p99 ratio": (1.0, "x")}.get(
            self.series.quantity, (1 / MEBIBYTE, "MiB")
        )
        verdict = "too short" if self.flat is None else "flat" if self.flat else "GROWS"
        figures = [f"{value * scale:10.2f}" for value in (self.median, self.growth, self.tolerance)]
        return f"{self.series.who:20} {self.series.quantity:10} {' '.join(figures)} {unit:4} {verdict}"


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    size = -(-len(points) // POINTS_MAX)
    groups = [points[first : first + size] for first in range(0, len(points), size)]
    return [
        (statistics.fmean(at for at, _ in group), statistics.fmean(value for _, value in group)) for group in groups
    ]


def _warm(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    first, life_s = points[0][0], points[-1][0] - points[0][0]
    return [point for point in points if point[0] - first >= min(life_s * WARM_UP_SHARE, WARM_UP_MAX_S)]


def _slopes(points: list[tuple[float, float]]) -> Iterable[float]:
    thin = _thinned(points)
    far = (points[-1][0] - points[0][0]) / 4
    for number, (at, value) in enumerate(thin):
        for later_at, later_value in thin[number + 1 :]:
            if later_at - at >= far:
                yield (later_value - value) / (later_at - at)


def judge(series: Series) -> Verdict:
    values = series.values()
    median = statistics.median(values) if values else 0.0
    allowed = TOLERANCES[series.quantity]
    tolerance = max(allowed.absolute, allowed.share * median)
    times = [at for points in series.lives.values() for at, _ in points]
    span = max(times) - min(times) if times else 0.0
    lives = [points for points in series.lives.values() if points[-1][0] - points[0][0] >= LIFE_SHARE_MIN * span > 0]
    if not lives:
        return Verdict(series, median, 0.0, tolerance, None)
    growth = statistics.median(slope for points in lives for slope in _slopes(_warm(points))) * span
    return Verdict(series, median, growth, tolerance, growth <= tolerance if span >= SPAN_MIN_S else None)
