"""Codecs and histogram of the extension commands, and the rates of `shardd top`, for whatever figures there are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.cli.top_view import compare, shards_table
from shardd.client import values
from shardd.protocol.catalogue import EXTENSIONS
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import (
    Extension,
    ExtensionList,
    FigureKind,
    Metrics,
    percentile_us,
)
from shardd.protocol.primitives import Reader
from shardd.runtime.metrics import ShardFigures
from shardd.service.extensions import merge

BUCKETS = 32
u16, u32, u64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
names = st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1, max_size=20)
extension_lists = st.builds(
    ExtensionList, names, st.lists(st.builds(Extension, u32, u16, names), max_size=5).map(tuple)
)
figures = st.dictionaries(names, u64, max_size=5)
shard_figures = st.builds(ShardFigures, u32, u32, u64, figures, figures, st.lists(u64, max_size=BUCKETS))


def bucket(us: int) -> int:
    """As `latency_bucket` of native/src/net/net.h."""
    return min(us.bit_length(), BUCKETS - 1)


@given(extension_lists)
def test_lists_survive_the_wire(listed: ExtensionList) -> None:
    assert ExtensionList.read(Reader(listed.encode())) == listed


@given(st.lists(shard_figures, max_size=4), u64, u64, u32)
def test_metrics_survive_the_wire(shards: list[ShardFigures], time_us: int, started_us: int, count: int) -> None:
    merged = merge(shards, time_us, started_us, count)
    assert Metrics.read(Reader(merged.encode())) == merged
    for given_, each in zip(shards, merged.shards, strict=True):
        table_ = {(kind, name): value for (kind, name), value in zip(merged.names, each.values, strict=True)}
        for kind, source in ((FigureKind.COUNTER, given_.counters), (FigureKind.GAUGE, given_.gauges)):
            assert all(table_[kind, name] == value for name, value in source.items())
            assert not any(value for (k, name), value in table_.items() if k is kind and name not in source)


@given(st.binary(max_size=300))
def test_bytes_that_are_no_reply_are_refused(data: bytes) -> None:
    for read in (ExtensionList.read, Metrics.read):
        try:
            read(Reader(data))
        except ShardError as error:
            assert error.status is Status.INVALID_COMMAND
        except ValueError:
            pass  # a kind of figure that there is not


@given(st.lists(st.integers(0, 2**30), min_size=1, max_size=300), st.floats(0.0, 1.0))
def test_a_percentile_is_within_a_factor_of_two(latencies: list[int], share: float) -> None:
    buckets = [0] * BUCKETS
    for each in latencies:
        buckets[bucket(each)] += 1
    ordered = sorted(latencies)
    index = next(i for i in range(len(ordered)) if i + 1 >= share * len(ordered))
    exact, estimate = ordered[index], percentile_us(buckets, share)
    if exact == 0:
        assert 0 <= estimate <= 1
    else:
        assert exact / 2 <= estimate <= exact * 2


@given(st.lists(u32, min_size=BUCKETS, max_size=BUCKETS), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_percentiles_grow(buckets: list[int], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert percentile_us(buckets, low) <= percentile_us(buckets, high)


def test_no_requests_no_time() -> None:
    assert percentile_us([0] * BUCKETS, 0.99) == 0.0
    with pytest.raises(ValueError, match="no share"):
        percentile_us([1], 1.5)


def test_codes_lie_in_their_range() -> None:
    codes = [each.code for each in EXTENSIONS]
    assert len(set(codes)) == len(codes)
    assert all(0x5344_0000 <= code <= 0x5344_00FF for code in codes)


def sample(time_s: int, frames: int, generation: int = 1, shards: tuple[int, ...] = (0,)) -> values.Metrics:
    figures = {"engine.frames": frames, "process.cpu_us": frames * 1000}
    rows = tuple(
        values.ShardMetrics(shard, generation, time_s * 1_000_000 + 77, figures, (0, frames)) for shard in shards
    )
    return values.Metrics(time_s * 1_000_000, 0, len(shards), frozenset(figures), rows)


def test_rates_are_differences() -> None:
    view = compare(sample(10, 100), sample(12, 500))
    (row,) = view.shards
    assert (view.interval_s, view.uptime_s, view.down) == (2.0, 12.0, [])
    assert (row.requests_per_s, row.cpu_percent, row.restarted) == (200.0, 20.0, False)
    assert 1 <= row.p99_us <= 2


def test_a_new_worker_counts_from_its_start() -> None:
    (row,) = compare(sample(10, 1_000_000), sample(12, 500, generation=2)).shards
    assert (row.requests_per_s, row.restarted) == (250.0, True)


def test_a_shard_that_is_down_is_named() -> None:
    after = sample(12, 5, shards=(0,))
    after = replace(after, shards_count=3)
    view = compare(sample(10, 0, shards=(0, 1, 2)), after)
    assert view.down == [1, 2]
    assert shards_table(view, "x").caption == "down: shard 1, 2"
