"""Two reports beside each other, and whether the difference is more than the noise inside each of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from shardd.benchmark.metrics import deviation, mean
from shardd.benchmark.options import BenchError

REPORT_BYTES_MAX: Final = 1 << 30
_PARTS: Final = 10
_ERRORS: Final = 2.0
"""Standard errors that a difference has to exceed."""
LATENCIES: Final = {"p50": "p50", "p99": "p99", "p999": "p99.9"}
_ALIKE: Final = (
    *("benchmark_kind", "transport", "messages_per_batch", "message_size", "message_batches", "producers"),
    *("consumers", "streams", "partitions", "consumer_groups", "rate_limit"),
)


def load_report(path: Path) -> dict[str, Any]:
    """Of a file, or of the directory of a run; also one of iggy-bench. BenchError."""
    file = path / "report.json" if path.is_dir() else path
    try:
        if file.stat().st_size > REPORT_BYTES_MAX:
            raise BenchError(f"{file} is too large for a report")
        report = json.loads(file.read_bytes())
        if not isinstance(report, dict):
            raise BenchError(f"{file} is no report")
        _rows(report)  # all that is read of it is there
        [report["hardware"][name] for name in ("cpu_name", "cpu_cores")]
        report["params"]["benchmark_kind"]
    except OSError as error:
        raise BenchError(f"{file}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BenchError(f"{file} is no report") from error
    return report


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """What was not the same in both runs."""
    found = []
    for name in _ALIKE:
        one, two = first["params"].get(name), second["params"].get(name)
        if one != two:
            found.append(f"{name.replace('_', ' ')}: {one} and {two}")
    for name in ("cpu_name", "cpu_cores", "os_version"):
        one, two = first["hardware"].get(name), second["hardware"].get(name)
        if one != two:
            found.append(f"{name.replace('_', ' ')}: {one} and {two}")
    for name in ("loop", "depth", "tls", "partitioning", "pinning", "profile", "configuration", "durability"):
        one, two = (_own(report).get(name) for report in (first, second))
        if one is not None and two is not None and one != two:
            found.append(f"{name}: {one} and {two}")
    return found


def _own(report: dict[str, Any]) -> dict[str, Any]:
    """What only this tool writes, with what the server said of its durability; {}: a report of iggy-bench."""
    own = dict(report.get("shardd") or {})
    return own | {"durability": (own.get("server") or {}).get("durability")}


def compare(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Lines of a table: B as a multiple of A."""
    rows = [("", "", "A", "B", "B / A", "")]
    before, after = _rows(first), _rows(second)
    for key, (one, noise_one) in before.items():
        if key not in after:
            continue
        two, noise_two = after[key]
        ratio = f"{two / one:.2f}" if one else "-"
        group, name = key
        rows.append((group, name, _number(one), _number(two), ratio, verdict(name, one, noise_one, two, noise_two)))
    widths = [max(len(row[at]) for row in rows) for at in range(6)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    apart = differences(first, second)
    if apart:
        lines += ["", "Not the same in both: " + "; ".join(apart) + "."]
    for name, report in (("A", first), ("B", second)):
        limit = (report.get("shardd") or {}).get("client", {}).get("limit")
        if limit:
            lines.append(f"In {name} {limit}.")
    return lines


def verdict(name: str, one: float, noise_one: float | None, two: float, noise_two: float | None) -> str:
    """Of a figure with its relative standard errors."""
    if not one or not two:
        return ""
    if noise_one is None or noise_two is None:
        return "noise unknown"
    noise = _ERRORS * (noise_one**2 + noise_two**2) ** 0.5
    change = two / one - 1
    if abs(change) <= noise:
        return f"within the noise ({noise:.0%})"
    better = change > 0 if name in ("MB/s", "messages/s") else change < 0
    return "better" if better else "worse"


def _rows(report: dict[str, Any]) -> dict[tuple[str, str], tuple[float, float | None]]:
    """By group and name: the figure, and its relative standard error within the run. None: too short to say."""
    found: dict[tuple[str, str], tuple[float, float | None]] = {}
    for group in report["group_metrics"]:
        summary = group["summary"]
        kind = str(summary["kind"]).replace("_", " ")
        speed, delay = _noise(group["avg_throughput_mb_ts"]["points"]), _noise(group["avg_latency_ts"]["points"])
        found[kind, "MB/s"] = (float(summary["total_throughput_megabytes_per_second"]), speed)
        found[kind, "messages/s"] = (float(summary["total_throughput_messages_per_second"]), speed)
        found[kind, "avg ms"] = (float(summary["average_latency_ms"]), delay)
        for name, shown in LATENCIES.items():
            found[kind, f"{shown} ms"] = (float(summary[f"average_{name}_latency_ms"]), delay)
    for name, key in (("CPU us/message", "cpu_us_per_message"), ("memory bytes", "memory_bytes")):
        value = (_own(report).get("server") or {}).get(key)
        if value:
            found["server", name] = (float(value), None)
    return found


def _noise(points: list[dict[str, float]]) -> float | None:
    """Of the mean: from the means of ten parts, one behind the other, since neighbours resemble each other."""
    values = [float(point["value"]) for point in points]
    if len(values) < 2 * _PARTS:
        return None
    size = len(values) / _PARTS
    parts = [mean(values[int(at * size) : int((at + 1) * size)]) for at in range(_PARTS)]
    middle = mean(parts)
    return deviation(parts) / (_PARTS - 1) ** 0.5 / middle if middle > 0 else None


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10_000 else f"{value:,.1f}" if value >= 100 else f"{value:.3f}"
