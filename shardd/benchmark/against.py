"""Servers beside each other in one run: interleaved rounds, the first server twice in each, and a verdict for each
figure of each other server that knows how much the first one differs from itself."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shardd.benchmark.compare import LATENCIES, load_report
from shardd.benchmark.disturb import check_disturbance
from shardd.benchmark.measure import measure
from shardd.benchmark.options import BenchError, Options, Output, check
from shardd.benchmark.servers import is_report, named, server_of
from shardd.benchmark.servers.base import Server

AGREEING: Final = 0.8
"""Share of the rounds that say the same as the median."""
HIGHER_IS_BETTER: Final = ("MB/s", "messages/s")
Figures = dict[tuple[str, str], float]
"""By group and name."""


@dataclass
class Contender:
    """One server, or one report. `rounds`: its figures; `reports`: what they are from."""

    label: str
    options: Options
    server: Server | None = None
    saved: dict[str, Any] | None = None
    rounds: list[Figures] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def told(self) -> dict[str, Any]:
        """Name, version and durability of the last report."""
        return dict((self.reports[-1].get("shardd") or {}).get("server") or {}) if self.reports else {}


@dataclass(frozen=True)
class Ratio:
    """Of one figure, by rounds: the median, and all."""

    median: float
    every: list[float]

    def __str__(self) -> str:
        return f"{self.median:.2f} [{min(self.every):.2f}..{max(self.every):.2f}]"


@dataclass(frozen=True)
class Verdict:
    """Of one figure of one server against the first. `noise`: of the first against itself."""

    group: str
    name: str
    first: float
    other: float
    ratio: Ratio
    noise: Ratio
    word: str


def figures_of(report: dict[str, Any]) -> Figures:
    """Bytes and messages by time of each group, its percentiles; CPU of the server."""
    found: Figures = {}
    for group in report["group_metrics"]:
        summary = group["summary"]
        kind = str(summary["kind"]).replace("_", " ")
        if kind == "producers and consumers":
            continue
        members = [each["summary"] for each in report["individual_metrics"]]
        members = [each for each in members if f"{each['actor_kind'].replace('_', ' ')}s" == kind]
        seconds = max((float(each["total_time_secs"]) for each in members), default=0.0)
        for name, key, unit in (("MB/s", "total_user_data_bytes", 1e6), ("messages/s", "total_messages", 1.0)):
            amount = sum(float(each[key]) for each in members) / unit
            found[kind, name] = amount / seconds if seconds > 0 else 0.0
        for name, shown in LATENCIES.items():
            found[kind, f"{shown} ms"] = float(summary[f"average_{name}_latency_ms"])
    server = (report.get("shardd") or {}).get("server") or {}
    if server.get("cpu_us_per_message"):
        found["server", "CPU us/message"] = float(server["cpu_us_per_message"])
    return found


def ratio_of(ours: Sequence[Figures], theirs: Sequence[Figures], key: tuple[str, str]) -> Ratio | None:
    """Rounds are paired: both met the same machine. None: there is nothing to divide by."""
    pairs = zip(ours, theirs, strict=False)
    found = [one[key] / two[key] for one, two in pairs if one.get(key, 0) > 0 and two.get(key, 0) > 0]
    return Ratio(statistics.median(found), found) if found else None


def word_of(name: str, ratio: Ratio, noise: Ratio) -> str:
    """A difference counts when the median of its rounds is further from 1 than any round of the same server against
    itself, and most rounds agree."""
    widest = max(abs(math.log(each)) for each in noise.every)
    if len(ratio.every) < 3:
        return "too few rounds"
    if abs(math.log(ratio.median)) <= widest:
        return f"within the noise ({math.exp(widest) - 1:.0%})"
    agreeing = sum((each > 1) == (ratio.median > 1) for each in ratio.every)
    if agreeing < AGREEING * len(ratio.every):
        return "rounds disagree"
    return "better" if (ratio.median > 1) == (name in HIGHER_IS_BETTER) else "worse"


def verdicts(first: Contender, again: Contender, other: Contender) -> list[Verdict]:
    found = []
    for key in first.rounds[0] if first.rounds else ():
        ratio, noise = ratio_of(other.rounds, first.rounds, key), ratio_of(again.rounds, first.rounds, key)
        if ratio is None or noise is None:
            continue
        ours, theirs = (statistics.median(each[key] for each in side.rounds) for side in (first, other))
        found.append(Verdict(key[0], key[1], ours, theirs, ratio, noise, word_of(key[1], ratio, noise)))
    return found


@dataclass
class Duel:
    """All of a run. `contenders`: the first server, the others, the first again."""

    contenders: list[Contender]
    seconds: float = 0.0

    @property
    def first(self) -> Contender:
        return self.contenders[0]

    @property
    def again(self) -> Contender:
        return self.contenders[-1]

    @property
    def others(self) -> list[Contender]:
        return self.contenders[1:-1]


def contenders_of(options: Options, names: Sequence[str]) -> list[Contender]:
    """BenchError before anything is measured."""
    check(options)
    first = server_of(options)
    label = first.name if options.own else options.address
    found = [Contender(label, options, first)]
    for name in names:
        if is_report(name):
            saved = load_report(Path(name))
            if "individual_metrics" not in saved:
                raise BenchError(f"{name} is no report")
            found.append(Contender(name, options, saved=saved))
        else:
            server, reached = named(name, options)
            found.append(Contender(name, reached, server))
    found.append(Contender(f"{label} again", options, server_of(options)))
    for each in found:
        if each.server is not None:
            check_disturbance(each.options, each.server)
    return found


def run(options: Options, output: Output, names: Sequence[str], rounds: int, say: Callable[[str], None]) -> Duel:
    """Each round measures all, in alternating order. BenchError."""
    duel, begun = Duel(contenders_of(options, names)), time.monotonic()
    for number in range(rounds):
        order = duel.contenders if number % 2 == 0 else duel.contenders[::-1]
        for each in order:
            report = each.saved or measure(each.options, output, each.server)
            each.reports = [report]  # the last one: it has all series
            each.rounds.append(figures_of(report))
            if each.server is not None:
                shown = next(iter(each.rounds[-1].values()), 0.0)
                say(f"round {number + 1} of {rounds}, {each.label}: {shown:,.1f} MB/s")
    duel.seconds = time.monotonic() - begun
    return duel


def lines_of(duel: Duel) -> list[str]:
    """A table for each other server."""
    lines = []
    for each in duel.contenders[:-1]:
        told = each.told
        limit = (each.reports[-1].get("shardd") or {}).get("client", {}).get("limit")
        lines.append(f"{each.label}: {told.get('version', 'a report')}; {told.get('durability', 'not known')}")
        lines += [f"  note: {limit}"] if limit else []
    for other in duel.others:
        rows = [("", "", duel.first.label, other.label, "ratio [range]", "A/A pair [range]", f"{other.label} is")]
        for found in verdicts(duel.first, duel.again, other):
            cells = (_number(found.first), _number(found.other), str(found.ratio), str(found.noise), found.word)
            rows.append((found.group, found.name, *cells))
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        lines.append("")
        lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return lines


def as_json(duel: Duel) -> dict[str, Any]:
    """Of all rounds; and the last report of each server."""

    def shown(figures: Figures) -> dict[str, float]:
        return {f"{group}: {name}": round(value, 4) for (group, name), value in figures.items()}

    return {
        "rounds": len(duel.first.rounds),
        "seconds": round(duel.seconds, 1),
        "servers": [
            {"label": each.label, **each.told, "rounds": [shown(figures) for figures in each.rounds]}
            for each in duel.contenders
        ],
        "verdicts": [
            {
                "server": other.label,
                "figure": f"{found.group}: {found.name}",
                "first": round(found.first, 4),
                "other": round(found.other, 4),
                "ratio": round(found.ratio.median, 4),
                "ratios": [round(value, 4) for value in found.ratio.every],
                "noise": [round(value, 4) for value in found.noise.every],
                "verdict": found.word,
            }
            for other in duel.others
            for found in verdicts(duel.first, duel.again, other)
        ],
        "reports": [each.reports[-1] for each in duel.contenders if each.reports],
    }


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10_000 else f"{value:,.1f}" if value >= 100 else f"{value:.3f}"
