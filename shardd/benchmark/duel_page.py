"""One HTML page of servers that were measured beside each other."""

from __future__ import annotations

import html
import statistics
from typing import Any

from shardd.benchmark.against import Contender, Duel, lines_of
from shardd.benchmark.charts import Bar, Line, bars, chart, facts, page, thinned
from shardd.benchmark.page import curve_of, percentile_chart
from shardd.benchmark.table import facts_of


def duel_page_of(duel: Duel) -> str:
    shown = duel.contenders
    names = " against ".join([duel.first.label, ", ".join(each.label for each in duel.others)])
    charts = [bars(f"{group}: {name}", _bars(shown, (group, name))) for group, name in duel.first.rounds[0]]
    last = [each for each in shown[:-1] if each.reports and "shardd" in each.reports[-1]]
    charts.append(percentile_chart([Line(each.label, curve_of(each.reports[-1]["shardd"])) for each in last]))
    charts.append(chart("Latency over time in the last round, ms", "seconds", [_latency(each) for each in last]))
    pairs = facts_of(duel.first.reports[-1])
    pairs.append(("rounds", f"{len(duel.first.rounds)}, in turns; {duel.first.label} twice in each"))
    above = facts(pairs) + f"<pre>{html.escape(chr(10).join(lines_of(duel)))}</pre>\n"
    above += '<p class="k">Bars are medians of the rounds, with their range.</p>\n'
    return page(names, above, charts)


def _bars(contenders: list[Contender], key: tuple[str, str]) -> list[Bar]:
    found = []
    for at, each in enumerate(contenders):
        values = [figures[key] for figures in each.rounds if key in figures]
        if values:
            color = 0 if each is contenders[-1] else at
            found.append(Bar(each.label, statistics.median(values), min(values), max(values), color))
    return found


def _latency(contender: Contender) -> Line:
    group: dict[str, Any] = contender.reports[-1]["group_metrics"][-1]
    return Line(
        contender.label, thinned([(each["time_s"], each["value"]) for each in group["avg_latency_ts"]["points"]])
    )
