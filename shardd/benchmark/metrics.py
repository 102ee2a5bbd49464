"""Figures of what actors recorded, by the rules of iggy-bench (docs/bench.md#what-the-figures-mean)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from shardd.benchmark.kinds import BOTH, CONSUMER, PRODUCER
from shardd.benchmark.plan import Actor

Series = list[tuple[float, float]]
"""Seconds since the measurement began, and the value."""

_COLUMNS: Final = 7
_BINS: Final = 50
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}
GROUPS: Final = {PRODUCER: "producers", CONSUMER: "consumers", BOTH: "producing_consumers"}
COMBINED: Final = "producers_and_consumers"


@dataclass(frozen=True)
class ActorFigures:
    """`latencies_ms` and `service_ms` are sorted; a service time begins when a request is really sent."""

    actor: Actor
    seconds: float
    user_bytes: int
    total_bytes: int
    messages: int
    batches: int
    megabytes_per_s: float
    messages_per_s: float
    latencies_ms: list[float]
    service_ms: list[float]
    percentiles_ms: dict[str, float]
    avg_ms: float
    median_ms: float
    min_ms: float
    max_ms: float
    std_dev_ms: float
    megabytes: Series
    rate: Series
    latency: Series


class Distribution(NamedTuple):
    """`bins`: (edge, density)."""

    bins: list[tuple[float, float]]
    mu: float
    sigma: float
    percentiles_ms: dict[str, float]


@dataclass(frozen=True)
class GroupFigures:
    kind: str
    actors: int
    megabytes_per_s: float
    messages_per_s: float
    percentiles_ms: dict[str, float]
    avg_ms: float
    median_ms: float
    min_ms: float
    max_ms: float
    std_dev_ms: float
    megabytes: Series
    rate: Series
    latency: Series
    distribution: Distribution | None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Between neighbours in a straight line."""
    if not ordered:
        return 0.0
    rank = percent / 100 * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    middle = mean(values)
    return math.sqrt(mean([(value - middle) ** 2 for value in values]))


def throughput(times_ns: Sequence[int], amounts: Sequence[float], width_ns: int) -> Series:
    """Each amount is spread evenly over the time since the one before; per second."""
    buckets: dict[int, float] = {}
    before = 0
    for time_ns, amount in zip(times_ns, amounts, strict=True):
        span = time_ns - before
        first, last = before // width_ns, max(before, time_ns - 1) // width_ns
        if first == last or span <= 0:
            buckets[last] = buckets.get(last, 0.0) + amount
        else:
            for bucket in range(first, last + 1):
                inside = min(time_ns, (bucket + 1) * width_ns) - max(before, bucket * width_ns)
                buckets[bucket] = buckets.get(bucket, 0.0) + amount * inside / span
        before = time_ns
    seconds = width_ns / 1e9
    return [(bucket * seconds, value / seconds) for bucket, value in sorted(buckets.items()) if value > 0]


def smoothed(series: Series, window: int) -> Series:
    """A moving average over the points before, as many as there are until `window`."""
    found, total = [], 0.0
    for at, (time_s, value) in enumerate(series):
        total += value
        if at >= window:
            total -= series[at - window][1]
        found.append((time_s, round(total / min(at + 1, window), 3)))
    return found


def averaged(times_ns: Sequence[int], values: Sequence[float], width_ns: int) -> Series:
    """The mean of each bucket that has a value."""
    sums: dict[int, tuple[float, int]] = {}
    for time_ns, value in zip(times_ns, values, strict=True):
        total, count = sums.get(time_ns // width_ns, (0.0, 0))
        sums[time_ns // width_ns] = (total + value, count + 1)
    return [(at * width_ns / 1e9, total / count) for at, (total, count) in sorted(sums.items())]


def actor_figures(actor: Actor, records: bytes, sampling_us: int, window: int) -> ActorFigures:
    flat = memoryview(records).cast("Q")
    times, latencies, services, messages, batches, user, total = (list(flat[at::_COLUMNS]) for at in range(_COLUMNS))
    width_ns = sampling_us * 1000
    latencies_ms = [value / 1e6 for value in latencies]
    megabytes = smoothed(throughput(times, [value / 1e6 for value in user], width_ns), window)
    rate = smoothed(throughput(times, messages, width_ns), window)
    latency = averaged(times, latencies_ms, width_ns)
    seconds = times[-1] / 1e9 if times else 0.0
    ordered = sorted(latencies_ms)
    of_buckets = [value for _, value in latency]
    return ActorFigures(
        actor,
        seconds,
        sum(user),
        sum(total),
        sum(messages),
        sum(batches),
        _speed(megabytes, sum(user) / 1e6, seconds),
        _speed(rate, sum(messages), seconds),
        ordered,
        sorted(value / 1e6 for value in services),
        {name: percentile(ordered, percent) for name, percent in PERCENTILES.items()},
        mean(ordered),
        percentile(ordered, 50),
        min(of_buckets, default=0.0),
        max(of_buckets, default=0.0),
        deviation(of_buckets),
        megabytes,
        rate,
        latency,
    )


def _speed(series: Series, amount: float, seconds: float) -> float:
    if series:
        return mean([value for _, value in series])
    return amount / seconds if seconds > 0 else 0.0


def distribution(ordered: Sequence[float]) -> Distribution | None:
    """50 bins up to 1.5 times the p99; the last has what is above."""
    if not ordered:
        return None
    least, most = ordered[0], min(ordered[-1], 1.5 * percentile(ordered, 99))
    if most > least:
        width = (most - least) / _BINS
        counts = [0] * _BINS
        for value in ordered:
            counts[min(_BINS - 1, int((value - least) / width))] += 1
        bins = [(least + at * width, count / (len(ordered) * width)) for at, count in enumerate(counts)]
    else:
        bins = [(least, 1.0)]
    logs = [math.log(value) for value in ordered if value > 0]
    wanted = {"p05": 5.0, "p50": 50.0, "p95": 95.0, "p99": 99.0}
    return Distribution(
        bins, mean(logs), deviation(logs), {name: percentile(ordered, each) for name, each in wanted.items()}
    )


def group_figures(kind: str, members: Sequence[ActorFigures]) -> GroupFigures:
    latency = _across([member.latency for member in members], averages=True)
    latencies = sorted(value for member in members for value in member.latencies_ms)
    return GroupFigures(
        kind,
        len(members),
        math.fsum(member.megabytes_per_s for member in members),
        math.fsum(member.messages_per_s for member in members),
        {name: mean([member.percentiles_ms[name] for member in members]) for name in PERCENTILES},
        mean([member.avg_ms for member in members]),
        mean([member.median_ms for member in members]),
        min((member.min_ms for member in members), default=0.0),
        max((member.max_ms for member in members), default=0.0),
        deviation([value for _, value in latency]),
        _across([member.megabytes for member in members], averages=False),
        _across([member.rate for member in members], averages=False),
        latency,
        distribution(latencies),
    )


def _across(many: Iterable[Series], *, averages: bool) -> Series:
    """Of several actors at the same times: their sums, or means."""
    sums: dict[float, tuple[float, int]] = {}
    for series in many:
        for time_s, value in series:
            total, count = sums.get(time_s, (0.0, 0))
            sums[time_s] = (total + value, count + 1)
    return [(time_s, total / count if averages else total) for time_s, (total, count) in sorted(sums.items())]


def groups_of(figures: Sequence[ActorFigures]) -> list[GroupFigures]:
    """One for each role, and one for both when there are producers and consumers."""
    roles = [role for role in GROUPS if any(each.actor.role == role for each in figures)]
    found = [group_figures(GROUPS[role], [each for each in figures if each.actor.role == role]) for role in roles]
    return [*found, group_figures(COMBINED, figures)] if len(roles) == 2 else found
