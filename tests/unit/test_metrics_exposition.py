"""Names, units and labels of figures for Prometheus; whatever a name is, the parsers of both formats read it back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from shardd.doors.metrics.collector import Server
from shardd.doors.metrics.exposition import Exposition
from shardd.doors.metrics.families import write_all
from shardd.protocol.door_figures import Counts, GroupFigures, Listed, TopicFigures
from shardd.runtime.metrics import ShardFigures

COUNTS = Counts(1, 2, 3, 4, 5, 6, 7)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def samples(server: Server, *, open_metrics: bool) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    to = Exposition(open_metrics=open_metrics)
    write_all(server, [], "1.2", to)
    families = (open_metrics_families if open_metrics else text_families)(to.text().decode())
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def of_shard(counters: dict[str, int], gauges: dict[str, int], latency: list[int] | None = None) -> Server:
    return Server([ShardFigures(0, 3, 1, counters, gauges, latency or [])], [], counts=COUNTS)


@pytest.mark.parametrize("open_metrics", [False, True])
def test_units_are_seconds_and_numbers_in_names_are_labels(open_metrics: bool) -> None:
    counters = {"process.cpu_us": 1_500_000, "recovery.microseconds": 250_000, "jobs.trash.busy_ms": 30}
    gauges = {
        "loop.GET_ME.longest_us": 2_000,
        "loop.longest_us": 3_000,
        "archive.oldest_age_s": 9,
        "retention.held_by.1/2/3.group.4": 55,
        "retention.overtaken.1/2/3.consumer.5": 56,
        "engine.disk_free_bytes": 7,
    }
    found = samples(of_shard(counters, gauges), open_metrics=open_metrics)
    shard = ("shard", "0")
    assert found["shardd_process_cpu_seconds_total", frozenset({shard})] == 1.5
    assert found["shardd_recovery_seconds_total", frozenset({shard})] == 0.25
    assert found["shardd_jobs_busy_seconds_total", frozenset({shard, ("task", "trash")})] == 0.03
    assert found["shardd_loop_step_longest_seconds", frozenset({shard, ("step", "GET_ME")})] == 0.002
    assert found["shardd_loop_longest_seconds", frozenset({shard})] == 0.003
    assert found["shardd_archive_oldest_age_seconds", frozenset({shard})] == 9
    held = frozenset({shard, ("partition", "1/2/3"), ("kind", "group"), ("id", "4")})
    assert found["shardd_retention_held_by_offset", held] == 55
    overtaken = frozenset({shard, ("partition", "1/2/3"), ("kind", "consumer"), ("id", "5")})
    assert found["shardd_retention_overtaken_offset", overtaken] == 56
    assert found["shardd_engine_disk_free_bytes", frozenset({shard})] == 7
    assert found["shardd_shard_starts_total", frozenset({shard})] == 3
    assert found["shardd_clients", frozenset()] == 7


@pytest.mark.parametrize("open_metrics", [False, True])
def test_a_histogram_has_sums_of_buckets(open_metrics: bool) -> None:
    found = samples(of_shard({}, {}, [1, 2, 4]), open_metrics=open_metrics)
    buckets = {dict(labels)["le"]: value for (name, labels), value in found.items() if name.endswith("_bucket")}
    assert {float(bound): value for bound, value in buckets.items()} == {1e-6: 1, 2e-6: 3, float("inf"): 7}


@pytest.mark.parametrize("open_metrics", [False, True])
@given(stream=NAMES, topic=NAMES, group=NAMES)
def test_any_name_is_read_back(open_metrics: bool, stream: str, topic: str, group: str) -> None:
    topics = Listed([TopicFigures(stream, topic, 1, 2, 3, 4, 5, 6, 7)], 0)
    groups = [Listed([GroupFigures(stream, topic, group, 1, 1, number, 1000 * number)], 0) for number in (2, 3)]
    server = Server([None], [], topics, groups, COUNTS)
    found = samples(server, open_metrics=open_metrics)
    labels = {("stream", stream), ("topic", topic)}
    assert found["shardd_topic_messages", frozenset(labels)] == 3
    of_group = frozenset(labels | {("group", group)})
    assert found["shardd_group_lag_messages", of_group] == 5, "of two shards"
    assert found["shardd_group_lag_seconds", of_group] == 0.003, "the oldest of two shards"
    assert found["shardd_shard_up", frozenset({("shard", "0")})] == 0
