"""What the names and units of figures become for Prometheus: base units, labels instead of names with numbers."""

from __future__ import annotations

import re
from typing import Final

from shardd.doors.metrics.collector import Server
from shardd.doors.metrics.exposition import Exposition, Kind, Labels, name_of
from shardd.protocol.door_figures import Counts, GroupFigures
from shardd.runtime.metrics import ShardFigures

PREFIX: Final = "shardd_"
_BARRIER: Final = re.compile(r"(held_by|overtaken)\.(\d+/\d+/\d+)\.(consumer|group)\.(\d+)")
_BARRIERS: Final = {
    "held_by": "Stored offset that holds messages back.",
    "overtaken": "Stored offset that has not passed messages that are gone.",
}
_UNITS: Final = (("microseconds", 1e-6), ("us", 1e-6), ("ms", 1e-3), ("s", 1))
_LABELS: Final = {"jobs": "task", "loop": "step"}  # of figures with a name in the middle
_PUBLIC: Final = ("streams", "topics", "partitions", "segments", "messages", "users", "clients")


def write_public(counts: Counts | None, requests: int, to: Exposition) -> None:
    """What Iggy's door tells everybody: no name, no label."""
    to.add("http_requests", "counter", "total count of http_requests", requests)
    for name in _PUBLIC if counts is not None else ():
        to.add(name, "gauge", f"total count of {name}", getattr(counts, name))


def write_all(server: Server, problems: list[str], version: str, to: Exposition) -> None:
    to.add(f"{PREFIX}build_info", "gauge", "Version of the server.", 1, (("version", version),))
    to.add(f"{PREFIX}ready", "gauge", "1 when /readyz answers 200.", int(not problems))
    if server.counts is not None:
        for name in _PUBLIC:
            to.add(f"{PREFIX}{name}", "gauge", f"Number of {name} in the server.", getattr(server.counts, name))
    for shard, figures in enumerate(server.shards):
        _write_shard(shard, figures, to)
    _write_topics(server, to)
    _write_groups(server, to)


def _write_shard(shard: int, figures: ShardFigures | None, to: Exposition) -> None:
    labels = (("shard", str(shard)),)
    to.add(
        f"{PREFIX}shard_up", "gauge", "1 when the worker of the shard has answered.", int(figures is not None), labels
    )
    if figures is None:
        return
    about = "Processes that the shard has had since the start of the server."
    to.add(f"{PREFIX}shard_starts", "counter", about, figures.generation, labels)
    for name, value in figures.counters.items():
        _write_figure("counter", name, value, labels, to)
    for name, value in figures.gauges.items():
        _write_figure("gauge", name, value, labels, to)
    if figures.latency:
        about = "Answered requests of TCP by the time from the whole frame to the whole answer with the kernel."
        buckets = [((1 << number) / 1e6, count) for number, count in enumerate(figures.latency)]
        to.add_histogram(f"{PREFIX}request_duration_seconds", about, buckets, labels)


def _write_figure(kind: Kind, name: str, value: int, labels: Labels, to: Exposition) -> None:
    source, _, rest = name.partition(".")
    about = f"{source}.{rest} of docs/extensions.md#get-metrics."
    barrier = _BARRIER.fullmatch(rest)
    if barrier is not None:
        found = (*labels, ("partition", barrier[2]), ("kind", barrier[3]), ("id", barrier[4]))
        to.add(f"{PREFIX}{source}_{barrier[1]}_offset", "gauge", _BARRIERS[barrier[1]], value, found)
        return
    middle, _, figure = rest.rpartition(".")
    if middle:
        labels = (*labels, (_LABELS.get(source, "name"), middle))
        about = f"{source}.<{_LABELS.get(source, 'name')}>.{figure} of docs/extensions.md#get-metrics."
    for unit, factor in _UNITS:
        head = figure.removesuffix(unit)
        if head != figure and (not head or head.endswith("_")):
            figure, seconds = f"{head}seconds", value * factor
            to.add(_name(source, figure, middle), kind, about, round(seconds, 6), labels)
            return
    to.add(_name(source, figure, middle), kind, about, value, labels)


def _name(source: str, figure: str, middle: str) -> str:
    """One family has one set of labels."""
    between = f"{_LABELS.get(source, 'named')}_" if middle and source != "jobs" else ""
    return PREFIX + name_of(f"{source}_{between}{figure}")


def _write_topics(server: Server, to: Exposition) -> None:
    if server.topics is None:
        return
    gauges = (
        ("partitions", "Partitions of the topic."),
        ("segments", "Segments of the topic."),
        ("messages", "Messages that are kept."),
        ("size_bytes", "Bytes that are kept."),
    )
    for topic in server.topics.listed:
        labels = (("stream", topic.stream), ("topic", topic.topic))
        for name, about in gauges:
            to.add(f"{PREFIX}topic_{name}", "gauge", about, getattr(topic, name), labels)
        about = "Messages since the topic was made or purged."
        to.add(f"{PREFIX}topic_appended_messages", "counter", about, topic.appended, labels)
        about = "Messages that the device may not have yet: the distance of the durable ends."
        to.add(f"{PREFIX}topic_not_durable_messages", "gauge", about, topic.not_durable, labels)
        about = "Partitions that take no sends."
        to.add(f"{PREFIX}topic_read_only_partitions", "gauge", about, topic.read_only, labels)
    about = "Topics above metrics.topics_max, which are not told."
    to.add(f"{PREFIX}topics_left_out", "gauge", about, server.topics.left_out)


def _write_groups(server: Server, to: Exposition) -> None:
    for group in _merged(server):
        labels = (("stream", group.stream), ("topic", group.topic), ("group", group.group))
        about = "Messages that the group has not passed, over all partitions."
        to.add(f"{PREFIX}group_lag_messages", "gauge", about, group.lag_messages, labels)
        about = "Age of the oldest message that the group has not passed; 0: there is none."
        to.add(f"{PREFIX}group_lag_seconds", "gauge", about, round(group.lag_us / 1e6, 6), labels)
        about = "Partitions that the lag is of; less than those of the topic while a shard is down."
        to.add(f"{PREFIX}group_partitions", "gauge", about, group.partitions, labels)
        about = "Partitions in which the group has stored no offset: all of their messages count."
        to.add(f"{PREFIX}group_partitions_without_offset", "gauge", about, group.without_offset, labels)
    if server.groups:
        about = "Groups above metrics.groups_max, which are not told."
        to.add(f"{PREFIX}groups_left_out", "gauge", about, max(each.left_out for each in server.groups))


def _merged(server: Server) -> list[GroupFigures]:
    """Each shard has told of its partitions."""
    found: dict[tuple[str, str, str], GroupFigures] = {}
    for listed in server.groups:
        for each in listed.listed:
            key = (each.stream, each.topic, each.group)
            other = found.get(key)
            if other is None:
                found[key] = each
                continue
            found[key] = GroupFigures(
                *key,
                other.partitions + each.partitions,
                other.without_offset + each.without_offset,
                other.lag_messages + each.lag_messages,
                max(other.lag_us, each.lag_us),
            )
    return list(found.values())
