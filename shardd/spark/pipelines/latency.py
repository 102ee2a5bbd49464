"""latency: percentiles, throughput over time and outliers as one HTML page with plots and as JSON; from a topic
(append time minus the producer's time of each message), from files with one figure a line (JSON lines or numbers,
microseconds), or from the raw figures of `python -m bench` (bench/results/*.json)."""

from __future__ import annotations

import base64
import html
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shardd.spark.pipelines.common import Meter, PipelineError, Source, summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)
_OF_BENCH: Final = {50.0: "p50_us", 99.0: "p99_us", 99.9: "p999_us"}
OUTLIERS: Final = 10
_SECOND_US: Final = 1_000_000
Numbers = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Run:
    """One set of measurements. `seconds[i]`: count and p99 in second i since the first; empty when no times are
    known. `percentiles` and `mean_us` hold what is known: a benchmark tells three percentiles and no mean."""

    name: str
    count: int
    percentiles: dict[float, float]
    mean_us: float | None
    max_us: float
    seconds: list[tuple[int, int, float]]
    outliers: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "count": self.count,
            "mean_us": None if self.mean_us is None else round(self.mean_us, 1),
            "max_us": round(self.max_us, 1),
            **{f"p{p:g}_us": round(value, 1) for p, value in self.percentiles.items()},
            "outliers": self.outliers,
        }


def from_topic(spark: SparkSession, source: Source) -> list[Run]:
    """One run for each partition. Messages without a producer's time are left out."""
    from pyspark.sql import functions as f

    options = {"subscribe": source.topic, **source.options, "columns": "partition,offset,timestamp,originTimestamp"}
    rows = spark.read.format("shardd").options(**options).load()
    rows = rows.select(
        "partition",
        "offset",
        f.unix_micros("timestamp").alias("at"),
        (f.unix_micros("timestamp") - f.unix_micros("originTimestamp")).alias("us"),
        (f.unix_micros("originTimestamp") > 0).alias("known"),
    ).where("known")
    levels = [each / 100 for each in PERCENTILES]
    whole = rows.groupBy("partition").agg(
        f.count("*"), f.percentile("us", f.array(*map(f.lit, levels))), f.avg("us"), f.max("us"), f.min("at")
    )
    runs = []
    for partition, count, found, mean, most, first in sorted(whole.collect()):
        mine = rows.where(f.col("partition") == partition)
        second = f.floor((f.col("at") - first) / _SECOND_US).cast("int")
        over_time = mine.groupBy(second).agg(f.count("*"), f.percentile("us", 0.99)).collect()
        worst = mine.orderBy(f.desc("us")).select("offset", "us").limit(OUTLIERS).collect()
        outliers = [{"offset": row["offset"], "us": row["us"]} for row in worst]
        percentiles = dict(zip(PERCENTILES, map(float, found), strict=True))
        seconds = sorted((int(a), int(b), float(c)) for a, b, c in over_time)
        runs.append(Run(f"partition {partition}", count, percentiles, float(mean), float(most), seconds, outliers))
    if not runs:
        raise PipelineError(f"'{source.topic}' has no message with a producer's time; the clients must set it")
    return runs


def from_files(paths: list[Path]) -> list[Run]:
    """One run for each file; of a benchmark's report one for each line and server. A line of other files is a number,
    or JSON with "us" (and "at_us"); microseconds."""
    return [run for path in paths for run in _of_file(path)]


def _of_file(path: Path) -> list[Run]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path} cannot be read: {error}") from error
    report = _as_report(text)
    return [_of_lines(path, text.splitlines())] if report is None else _of_report(path, report)


def _as_report(text: str) -> dict[str, Any] | None:
    """The whole file as one JSON object with `lines`, as bench/__main__.py writes it; None for anything else."""
    if not text.startswith("{"):
        return None
    try:
        whole = json.loads(text)
    except ValueError:
        return None
    return whole if isinstance(whole, dict) and isinstance(whole.get("lines"), dict) else None


def _of_report(path: Path, report: dict[str, Any]) -> list[Run]:
    """The median over the rounds of each percentile, the greatest maximum, the sum of requests."""
    runs = []
    try:
        for line, targets in report["lines"].items():
            for target, cell in targets.items():
                rounds = cell["rounds"]
                if not rounds:
                    continue  # that server failed the line
                known = {p: float(np.median([each[key] for each in rounds])) for p, key in _OF_BENCH.items()}
                most = max(float(each["max_us"]) for each in rounds)
                count = int(sum(each["requests"] for each in rounds))
                runs.append(Run(f"{line} {target}", count, known, None, most, [], []))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PipelineError(f"{path} has `lines`, but is no report of the benchmark: {error!r}") from error
    if not runs:
        raise PipelineError(f"{path} has no figures")
    return runs


def _of_lines(path: Path, lines: list[str]) -> Run:
    values, times = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            values.append(float(entry["us"] if isinstance(entry, dict) else entry))
            if isinstance(entry, dict) and "at_us" in entry:
                times.append(float(entry["at_us"]))
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(f'{path}, line {number} is neither a number nor JSON with "us": {line[:60]}') from error
    if not values:
        raise PipelineError(f"{path} has no figures")
    if times and len(times) != len(values):
        raise PipelineError(f'{path}: some lines have "at_us" and some do not')
    return summarise(path.stem, np.array(values), np.array(times) if times else None)


def exact_percentile(values: Numbers, percent: float) -> float:
    """The smallest value that `percent` of all do not exceed. In whole numbers: 99.9 / 100 * 1000 is not 999."""
    rank = -(-round(percent * 100) * len(values) // 10_000)
    return float(np.sort(values)[max(rank, 1) - 1])


def summarise(name: str, values: Numbers, times_us: Numbers | None) -> Run:
    """What the page shows of one file with single figures."""
    percentiles = {p: exact_percentile(values, p) for p in PERCENTILES}
    seconds = []
    if times_us is not None:
        second = ((times_us - times_us.min()) // _SECOND_US).astype(int)
        for each in np.unique(second):
            part = values[second == each]
            seconds.append((int(each), len(part), exact_percentile(part, 99.0)))
    worst = np.argsort(values)[::-1][:OUTLIERS]
    outliers = [{"line": int(i) + 1, "us": float(values[i])} for i in worst]
    return Run(name, len(values), percentiles, float(values.mean()), float(values.max()), seconds, outliers)


def report(runs: list[Run], target: Path, title: str) -> None:
    """Writes the HTML page; the first run is what others are compared with."""
    head = "".join(f"<th>p{p:g}</th>" for p in PERCENTILES)
    lines = []
    for run in runs:
        cells = "".join(f"<td>{_us(run.percentiles.get(p))}{_ratio(run, runs[0], p)}</td>" for p in PERCENTILES)
        name = html.escape(run.name)
        lines.append(
            f"<tr><th>{name}</th><td>{run.count:,}</td><td>{_us(run.mean_us)}</td>{cells}<td>{_us(run.max_us)}</td></tr>"
        )
    pictures = "".join(
        f'<h2>{caption}</h2><img alt="{caption}" src="data:image/png;base64,{data}">'
        for caption, data in (
            ("Latency by percentile", _plot_percentiles(runs)),
            ("p99 and messages in each second", _plot_seconds(runs)),
        )
        if data
    )
    outliers = "".join(
        f"<h3>{html.escape(run.name)}</h3><pre>{html.escape(json.dumps(run.outliers, indent=1))}</pre>" for run in runs
    )
    target.write_text(
        f"<!doctype html><html><head><meta charset='utf-8'><title>{html.escape(title)}</title><style>"
        "body{font-family:sans-serif;margin:2em}td,th{padding:.3em .8em;text-align:right;border-bottom:1px solid #ddd}"
        f"</style></head><body><h1>{html.escape(title)}</h1><table><tr><th></th><th>count</th><th>mean</th>{head}"
        f"<th>max</th></tr>{''.join(lines)}</table>{pictures}<h2>Slowest</h2>{outliers}</body></html>\n"
    )


def _us(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1000:,.2f} ms" if value >= 1000 else f"{value:,.0f} us"


def _ratio(run: Run, first: Run, percentile: float) -> str:
    base, value = first.percentiles.get(percentile, 0.0), run.percentiles.get(percentile)
    return "" if run is first or base <= 0 or value is None else f" ({value / base:.2f}x)"


def _plot_percentiles(runs: list[Run]) -> str:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    for run in runs:
        levels = sorted(run.percentiles)
        axes.plot(
            [PERCENTILES.index(p) for p in levels], [run.percentiles[p] for p in levels], marker="o", label=run.name
        )
    axes.set_xticks(range(len(PERCENTILES)), [f"p{p:g}" for p in PERCENTILES])
    axes.set_yscale("log" if min(run.percentiles[50.0] for run in runs) > 0 else "linear")
    axes.set_ylabel("microseconds")
    axes.legend()
    return _png(figure)


def _plot_seconds(runs: list[Run]) -> str:
    from matplotlib import pyplot

    timed = [run for run in runs if len(run.seconds) > 1]
    if not timed:
        return ""
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 5), sharex=True)
    for run in timed:
        seconds = [each[0] for each in run.seconds]
        above.plot(seconds, [each[2] for each in run.seconds], label=run.name)
        below.plot(seconds, [each[1] for each in run.seconds], label=run.name)
    above.set_ylabel("p99, microseconds")
    below.set_ylabel("messages/s")
    below.set_xlabel("second")
    above.legend()
    return _png(figure)


def _png(figure: Any) -> str:
    from matplotlib import pyplot

    target = io.BytesIO()
    figure.tight_layout()
    figure.savefig(target, format="png", dpi=100)
    pyplot.close(figure)
    return base64.b64encode(target.getvalue()).decode()


def latency(runs: list[Run], target: Path, title: str, meter: Meter) -> dict[str, Any]:
    """Writes the page and returns the summary."""
    report(runs, target, title)
    count = sum(run.count for run in runs)
    return summary("latency", meter, count, 0, report=str(target), runs=[run.to_json() for run in runs])
