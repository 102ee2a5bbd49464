"""What `shardd top` shows, from two answers of GET_METRICS."""

from __future__ import annotations

import re

import msgspec
from rich.console import Group
from rich.table import Table

from shardd.cli.top_jobs import Interval, JobRow, job_rows, jobs_table
from shardd.client.values import Metrics, ShardMetrics
from shardd.protocol.extensions import percentile_us


class ShardRow(msgspec.Struct, frozen=True):
    """One shard over an interval; rates for each second, times in microseconds, CPU in percent of one CPU.

    `restarted`: its worker was replaced in the interval, the rates count from its start. `figures`: all of them.
    """

    shard: int
    restarted: bool
    requests_per_s: float
    sends_per_s: float
    polls_per_s: float
    messages_in_per_s: float
    messages_out_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float
    p50_us: float
    p99_us: float
    cpu_percent: float
    pool_used_bytes: int
    pool_capacity_bytes: int
    queue_depth: int
    connections: int
    partitions_dirty: int
    figures: dict[str, int]


class View(msgspec.Struct, frozen=True):
    """`down`: shards that did not answer."""

    interval_s: float
    uptime_s: float
    shards: list[ShardRow]
    jobs: list[JobRow]
    down: list[int]


_LONGEST = re.compile(r"loop\.(.+)\.longest_us")
# what waits for its turn: descriptors between shards, requests without memory, calls for the helper threads
_QUEUES = (
    "engine.links_out", "engine.links_in", "engine.waiters", "engine.throttled_connections",
    "helpers.jobs_waiting", "passwords.jobs_waiting",
)  # fmt: skip


def compare(before: Metrics, after: Metrics) -> View:
    """The figures of `after` and the rates since `before`."""
    known = {each.shard: each for each in before.shards}
    intervals = [_interval(after, each, before, known.get(each.shard)) for each in after.shards]
    rows = [_row(each, known.get(each.shard), interval) for each, interval in zip(after.shards, intervals, strict=True)]
    answered = {each.shard for each in after.shards}
    return View(
        interval_s=(after.time_us - before.time_us) / 1e6,
        uptime_s=(after.time_us - after.started_at_us) / 1e6,
        shards=sorted(rows, key=lambda row: row.shard),
        jobs=job_rows(intervals),
        down=[shard for shard in range(after.shards_count) if shard not in answered],
    )


def _interval(after: Metrics, now: ShardMetrics, before: Metrics, then: ShardMetrics | None) -> Interval:
    if then is not None and then.generation == now.generation:
        return Interval((now.clock_us - then.clock_us) / 1e6, now.values, then.values)
    return Interval((after.time_us - before.time_us) / 1e6, now.values, {})


def _row(now: ShardMetrics, then: ShardMetrics | None, interval: Interval) -> ShardRow:
    same = then is not None and then.generation == now.generation
    earlier = then.latency if then is not None and same else ()
    latency = [count - (earlier[i] if i < len(earlier) else 0) for i, count in enumerate(now.latency)]
    rate, figures = interval.rate, interval.figures
    return ShardRow(
        shard=now.shard,
        restarted=not same,
        requests_per_s=rate("engine.frames"),
        sends_per_s=rate("engine.sends"),
        polls_per_s=rate("engine.polls"),
        messages_in_per_s=rate("engine.messages_in"),
        messages_out_per_s=rate("engine.messages_out"),
        bytes_in_per_s=rate("engine.bytes_in"),
        bytes_out_per_s=rate("engine.bytes_out"),
        p50_us=percentile_us(latency, 0.5),
        p99_us=percentile_us(latency, 0.99),
        cpu_percent=rate("process.cpu_us") / 1e4,
        pool_used_bytes=figures.get("engine.pool_used_bytes", 0),
        pool_capacity_bytes=figures.get("engine.pool_capacity_bytes", 0),
        queue_depth=sum(figures.get(name, 0) for name in _QUEUES),
        connections=figures.get("engine.connections", 0),
        partitions_dirty=figures.get("engine.partitions_dirty", 0),
        figures=figures,
    )


def tables(view: View, address: str) -> Group:
    """The shards, and below them the jobs in the background."""
    return Group(shards_table(view, address), "", jobs_table(view.jobs, _size))


def shards_table(view: View, address: str) -> Table:
    title = f"{address}, up {view.uptime_s:,.0f} s, the last {view.interval_s:.1f} s"
    result = Table(title=title, title_justify="left", caption_justify="left", caption=_caption(view))
    for name in ("shard", "req/s", "msg in/s", "msg out/s", "in/s", "out/s", "p50", "p99", "CPU", "pool", "queue",
                 "conns", "dirty"):  # fmt: skip
        result.add_column(name, justify="right", no_wrap=True)
    for row in view.shards:
        result.add_row(
            f"{row.shard}{'*' if row.restarted else ''}",
            f"{row.requests_per_s:,.0f}",
            f"{row.messages_in_per_s:,.0f}",
            f"{row.messages_out_per_s:,.0f}",
            _size(row.bytes_in_per_s),
            _size(row.bytes_out_per_s),
            _time(row.p50_us),
            _time(row.p99_us),
            f"{row.cpu_percent:.0f} %",
            f"{_size(row.pool_used_bytes)} of {_size(row.pool_capacity_bytes)}",
            str(row.queue_depth),
            str(row.connections),
            str(row.partitions_dirty),
        )
    return result


def _caption(view: View) -> str | None:
    notes = []
    if view.down:
        notes.append(f"down: shard {', '.join(map(str, view.down))}")
    for row in view.shards:
        if row.figures.get("stalls.device_now_ms"):
            notes.append(f"shard {row.shard}: device stalls since {row.figures['stalls.device_now_ms'] / 1000:.0f} s")
        if row.figures.get("stalls.cpu_now_ms"):
            notes.append(f"shard {row.shard}: no CPU since {row.figures['stalls.cpu_now_ms'] / 1000:.0f} s")
        if row.figures.get("loop.over_limit"):
            notes.append(_long_steps(row))
    days = [row.figures["tls.certificate_days"] for row in view.shards if "tls.certificate_days" in row.figures]
    if days and min(days) < 30:
        notes.append(f"a certificate of TLS expires in {min(days)} days")
    if any(row.restarted for row in view.shards):
        notes.append("* new worker, rates since its start")
    return "; ".join(notes) or None


def _long_steps(row: ShardRow) -> str:
    """Of the loop, over the limit of docs/adr/0038-bounded-steps.md."""
    name = max(
        (each for each in row.figures if _LONGEST.fullmatch(each)), key=lambda each: row.figures[each], default=""
    )
    longest, found = _time(row.figures.get(name, 0)), _LONGEST.fullmatch(name)
    return (
        f"shard {row.shard}: {row.figures['loop.over_limit']} steps too long, at most {longest} ({found and found[1]})"
    )


def _size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def _time(us: float) -> str:
    if us < 1000:
        return f"{us:.0f} us"
    return f"{us / 1000:.1f} ms" if us < 1_000_000 else f"{us / 1_000_000:.1f} s"
