"""Figures are those that the rules of iggy-bench give (docs/bench.md)."""

from __future__ import annotations

import struct

import pytest

from shardd.benchmark import metrics
from shardd.benchmark.kinds import BY_NAME, CONSUMER, PRODUCER
from shardd.benchmark.options import BenchError, Options, Span, check, parse_span
from shardd.benchmark.plan import RECORDS_MAX, SLOTS_FIXED, Actor, make_plan

MS = 1_000_000


def records(*rows: tuple[int, int]) -> bytes:
    """(elapsed, latency) in ms, of batches of 10 messages with 1000 bytes in all."""
    return b"".join(struct.pack("<7Q", at * MS, latency * MS, latency * MS, 10, 1, 1000, 1640) for at, latency in rows)


def test_percentiles_lie_on_the_line_between_neighbours() -> None:
    assert metrics.percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert metrics.percentile([1.0, 2.0], 99) == pytest.approx(1.99)
    assert metrics.percentile([], 50) == 0.0


def test_an_amount_is_spread_over_the_time_since_the_one_before() -> None:
    found = metrics.throughput([5 * MS, 25 * MS], [10.0, 40.0], 10 * MS)
    # 10 and 5 ms of the second one in the first bucket, then 10 ms, then 5 ms; each bucket is 10 ms
    assert [(time, round(value)) for time, value in found] == [(0.0, 2000), (0.01, 2000), (0.02, 1000)]


def test_buckets_without_anything_are_left_out() -> None:
    assert metrics.averaged([1 * MS, 2 * MS, 35 * MS], [1.0, 3.0, 7.0], 10 * MS) == [(0.0, 2.0), (0.03, 7.0)]


def test_a_moving_average_grows_until_its_window_is_full() -> None:
    series = [(float(at), value) for at, value in enumerate([2.0, 4.0, 6.0, 8.0])]
    assert [value for _, value in metrics.smoothed(series, 2)] == [2.0, 3.0, 5.0, 7.0]


def test_an_actor_has_raw_percentiles_and_extremes_of_averages() -> None:
    found = metrics.actor_figures(Actor(PRODUCER, 1, 1), records((2, 1), (4, 3), (12, 8)), 10_000, 20)
    assert (found.messages, found.batches, found.user_bytes, found.total_bytes) == (30, 3, 3000, 4920)
    assert found.percentiles_ms["p50"] == 3.0 and found.avg_ms == 4.0
    assert (found.min_ms, found.max_ms) == (2.0, 8.0)
    assert found.std_dev_ms == 3.0
    assert found.seconds == 0.012


def test_an_actor_that_measured_nothing_has_zeros() -> None:
    found = metrics.actor_figures(Actor(PRODUCER, 1, 1), b"", 10_000, 20)
    assert (found.megabytes_per_s, found.avg_ms, found.percentiles_ms["p99"]) == (0.0, 0.0, 0.0)


def test_a_group_sums_throughput_and_averages_percentiles() -> None:
    one = metrics.actor_figures(Actor(PRODUCER, 1, 1), records((10, 2)), 10_000, 20)
    two = metrics.actor_figures(Actor(CONSUMER, 1, 1), records((10, 4)), 10_000, 20)
    groups = metrics.groups_of([one, two])
    assert [group.kind for group in groups] == ["producers", "consumers", "producers_and_consumers"]
    assert groups[2].percentiles_ms["p99"] == 3.0
    assert groups[2].messages_per_s == one.messages_per_s + two.messages_per_s == 2000.0


def test_a_distribution_has_all_of_the_density() -> None:
    found = metrics.distribution([float(at) for at in range(1, 1001)])
    assert found is not None and len(found.bins) == 50
    width = found.bins[1][0] - found.bins[0][0]
    assert sum(density for _, density in found.bins) * width == pytest.approx(1.0)
    alike = metrics.distribution([2.0, 2.0])
    assert alike is not None and alike.bins == [(2.0, 1.0)]


def options(name: str, **values: object) -> Options:
    given = {"streams": 2, "partitions": 1, "producers": 2, "consumers": 2, "groups": 1, "batches": 10} | values
    return Options(kind=BY_NAME[name], **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "values", "budgets"),
    [
        ("pinned-producer", {}, [10, 10]),
        ("pinned-consumer", {}, [10, 10]),
        ("pinned-producer-and-consumer", {}, [20, 20, 20, 20]),
        ("balanced-producer", {"streams": 1, "partitions": 2}, [20]),
        ("balanced-consumer-group", {"streams": 1}, [20]),
        ("balanced-producer-and-consumer-group", {"streams": 1, "partitions": 2}, [20, 20]),
        ("end-to-end-producing-consumer", {}, [10, 10, 10, 10]),
        ("end-to-end-producing-consumer-group", {"streams": 1, "partitions": 2}, [20, 20]),
        ("pinned-producer", {"total_data_bytes": 5000}, [2500, 2500]),
        ("balanced-producer", {"streams": 1, "partitions": 2, "total_data_bytes": 5000}, [5000]),
    ],
)
def test_each_kind_has_the_amount_of_iggy_bench(name: str, values: dict[str, object], budgets: list[int]) -> None:
    chosen = options(name, **values)
    check(chosen)
    plan = make_plan(chosen)
    assert plan.budgets == budgets
    slots = {slot for actor in plan.actors for slot in (actor.send_slot, actor.poll_slot) if slot}
    assert slots == {SLOTS_FIXED + at for at in range(len(budgets))}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("pinned-producer", {"streams": 3}),
        ("pinned-consumer", {"streams": 1}),
        ("pinned-producer-and-consumer", {"partitions": 2}),
        ("balanced-producer", {"partitions": 1}),
        ("balanced-consumer-group", {"streams": 2}),
        ("balanced-producer-and-consumer-group", {"streams": 1, "partitions": 1}),
        ("end-to-end-producing-consumer", {"streams": 3}),
        ("pinned-producer", {"open_loop": True}),
        ("pinned-producer", {"batch": Span(1_000_000, 1_000_000), "message_size": Span(64_000_000, 64_000_000)}),
        ("pinned-producer", {"depth": 1024, "message_size": Span(1_000_000, 1_000_000)}),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(name: str, values: dict[str, object]) -> None:
    with pytest.raises(BenchError, match=r".{20,}"):
        check(options(name, **values))


def test_a_run_that_could_not_keep_its_requests_is_refused() -> None:
    with pytest.raises(BenchError, match="5,000,000"):
        make_plan(options("pinned-producer", batches=RECORDS_MAX))


def test_ranges_are_read() -> None:
    assert parse_span("100..200", 0, 1000, "x") == (100, 200)
    assert str(parse_span("7", 0, 1000, "x")) == "7"
    for wrong in ("", "a", "5..2", "-1", "1..", "2000"):
        with pytest.raises(BenchError):
            parse_span(wrong, 0, 1000, "x")
