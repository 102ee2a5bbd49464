"""From options and the server's bounds to ranges of offsets and to slices, one for each task. Runs on the driver.

Data loss (docs/spark.md#data-loss): a start below what is kept, a place beyond the end, another incarnation, a
partition that is gone. With `failOnDataLoss` it stops with what was asked and what there is; without it the range is
clipped, never rewound, never longer than the batch was, and what is missing is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from shardd.client.marks import Mark
from shardd.protocol.bounds import PartitionBounds, TopicBounds
from shardd.spark import archive_listing
from shardd.spark.loss import DataLossError, Losses
from shardd.spark.options import ReadMode, SourceOptions
from shardd.spark.piece import Piece
from shardd.spark.pieces import Locations
from shardd.spark.positions import (
    EARLIEST,
    LATEST,
    Offsets,
    OptionError,
    Position,
    Positions,
    TopicName,
    cuts,
    group_of,
    stride_of,
)
from shardd.spark.server import Server, TopicMissingError

_log = logging.getLogger(__name__)
Bounds = Mapping[TopicName, TopicBounds]
PARTITIONS_MAX: Final = 1 << 20
SLICES_MAX: Final = 128  # of one task: reading one costs about as much as 1/128 of what may share a task


@dataclass(frozen=True, slots=True)
class Slice:
    """Offsets [start, end) of one partition for one task, and where they lie. `mark`: a record of the plan, by which a
    task knows its history. Pickled to the executors."""

    name: TopicName
    partition: int
    incarnation: int
    start: int
    end: int
    pieces: tuple[Piece, ...]
    mark: Mark | None = None


def discover(
    server: Server, options: SourceOptions, *, segments: bool = False, begun: bool = False
) -> dict[TopicName, TopicBounds]:
    """Bounds of everything the options select. What is gone of it is left out with failOnDataLoss=false, for a stream
    that has `begun` all of it. `TopicMissingError`."""
    segments = segments or only_sealed(options)
    if options.pattern is not None:
        return _matching(server, options.pattern, segments=segments)
    found: dict[TopicName, TopicBounds] = {}
    missing: TopicMissingError | None = None
    for name in options.topics:
        wanted = options.assigned.get(name, ())
        try:
            found |= server.bounds({name: wanted}, segments=segments)
        except TopicMissingError as error:
            if options.fail_on_data_loss or not error.gone:
                raise
            missing = error
            if left := _left_of(server, name, wanted, segments=segments):
                found[name] = left
            if not begun:
                _log.warning("data loss accepted (failOnDataLoss=false): %s", error)
    if missing is not None and not found and not begun:
        raise missing
    return found


def _left_of(server: Server, name: TopicName, wanted: tuple[int, ...], *, segments: bool) -> TopicBounds | None:
    """Of a topic that has not all of the partitions wanted; None: nothing."""
    try:
        whole = server.bounds({name: ()}, segments=segments)[name] if wanted else None
    except TopicMissingError as error:
        if not error.gone:
            raise
        return None
    left = () if whole is None else tuple(each for each in whole.partitions if each.id in wanted)
    return None if whole is None or not left else replace(whole, partitions=left)


def _matching(server: Server, pattern: str, *, segments: bool) -> dict[TopicName, TopicBounds]:
    found: dict[TopicName, TopicBounds] = {}
    for name in server.matching(pattern):
        try:
            found |= server.bounds({name: ()}, segments=segments)
        except TopicMissingError as error:
            if not error.gone:  # else deleted after it was listed
                raise
    return found


def only_sealed(options: SourceOptions) -> bool:
    return options.read_mode is ReadMode.COLD and options.path is not None


def earliest(options: SourceOptions, name: TopicName, partition: PartitionBounds) -> int:
    """First offset that can be read: what the server has or, further back, the archive."""
    archive = options.archive_of(name, partition.id)
    if archive is None:
        return partition.first
    archived = archive_listing.find(archive, name, partition.id, partition.incarnation)
    return min((each.start for each in archived), default=partition.first)


def readable_end(options: SourceOptions, partition: PartitionBounds) -> int:
    """Offset behind the last one that may be planned: on the device, and for cold reads in a sealed segment.

    It can be lower than before: what a restarted owner found is not known to be on the device until its next sync.
    """
    end = min(partition.end, partition.durable_end) if options.durable else partition.end
    if only_sealed(options):
        sealed = max((each.end for each in partition.segments if each.sealed), default=partition.first)
        end = min(end, sealed)
    return max(end, partition.first)


def check_explicit(option: str, options: SourceOptions, positions: Positions, bounds: Bounds) -> None:
    """Explicit positions must name exactly the partitions that are read, and may name what is gone of them."""
    if not positions.explicit:
        return
    there = {(name, each.id) for name, topic in bounds.items() for each in topic.partitions}
    named = {(name, partition) for name, each in positions.explicit.items() for partition in each}
    if not options.fail_on_data_loss:
        named = {(name, n) for name, n in named if (name, n) in there or not _selected(options, bounds, name, n)}
    for verb, difference in (("does not name", there - named), ("names", named - there)):
        if difference:
            name, partition = min(difference)
            more = f" and {len(difference) - 1} more" if len(difference) > 1 else ""
            where = "which is read" if verb == "does not name" else "which is not read"
            raise OptionError(f"option '{option}' {verb} partition {partition} of '{name}'{more}, {where}")


def _selected(options: SourceOptions, bounds: Bounds, name: TopicName, partition: int) -> bool:
    """Whether the options ask for what is not there."""
    return (
        partition in options.assigned[name]
        if name in options.assigned
        else name in options.topics and (name not in bounds)
    )


def resolve(server: Server, options: SourceOptions, positions: Positions, bounds: Bounds, *, ending: bool) -> Offsets:
    """The place in every partition that a side of the range stands for."""
    check_explicit("endingOffsets" if ending else "startingOffsets", options, positions, bounds)
    places = {}
    for name, topic in bounds.items():
        explicit = positions.explicit.get(name, {})
        places[name] = {
            each.id: Position(
                each.incarnation, _offset(server, options, positions, name, each, explicit.get(each.id), ending)
            )
            for each in topic.partitions
        }
    if positions.by_timestamp or positions.timestamp_us is not None:
        _check_unchanged(server, bounds)
    return Offsets(places)


def _check_unchanged(server: Server, bounds: Bounds) -> None:
    """The offsets of times were asked one by one: all must be of the histories that are planned. `DataLossError`."""
    now = server.bounds({name: tuple(each.id for each in topic.partitions) for name, topic in bounds.items()})
    for name, topic in bounds.items():
        incarnations = {each.id: each.incarnation for each in now[name].partitions}
        for each in topic.partitions:
            if incarnations.get(each.id) != each.incarnation:
                raise DataLossError(
                    f"partition {each.id} of '{name}' was purged or made anew while the query was planned; run it again"
                )


def _offset(
    server: Server,
    options: SourceOptions,
    positions: Positions,
    name: TopicName,
    partition: PartitionBounds,
    explicit: int | None,
    ending: bool,
) -> int:
    end = readable_end(options, partition)
    timestamp_us = explicit if positions.by_timestamp else positions.timestamp_us
    if timestamp_us is not None:
        offset = _offset_at(server, options, name, partition, timestamp_us)
        if offset is not None:
            return min(offset, end)
        if not ending and not options.timestamp_strategy_latest:
            raise OptionError(
                f"partition {partition.id} of '{name}' has no message at or after the starting time;"
                " set startingOffsetsByTimestampStrategy to 'latest' to start at its end"
            )
        return end
    value = positions.default if explicit is None else explicit
    if value == EARLIEST:
        return earliest(options, name, partition)
    return end if value == LATEST else value


def _offset_at(
    server: Server, options: SourceOptions, name: TopicName, partition: PartitionBounds, timestamp_us: int
) -> int | None:
    """First offset that can be read and is not older; what the server has deleted is looked up in the archive."""
    deleted = _deleted(options, name, partition)
    if deleted:
        from shardd.spark import archive_times  # readers of segments do not load Parquet

        offset = archive_times.offset_at(deleted, timestamp_us)
        if offset is not None and offset < partition.first:
            return offset
    return server.offset_at(name, partition.id, timestamp_us)


class TimesOf:
    """Append times in what the options select, of the archive where the server has deleted (admission.py)."""

    def __init__(self, server: Server, options: SourceOptions, bounds: Bounds) -> None:
        self._server = server
        self._options = options
        self._there = {(name, each.id): each for name, topic in bounds.items() for each in topic.partitions}

    def at(self, place: tuple[TopicName, int], offset: int) -> int | None:
        name, n = place
        deleted = _deleted(self._options, name, self._there[place])
        if deleted and offset < self._there[place].first:
            from shardd.spark import archive_times

            time_us = archive_times.time_at(deleted, offset)
            if time_us is not None:
                return time_us
        return self._server.stored_at_us(name, n, offset)

    def offset_at(self, place: tuple[TopicName, int], timestamp_us: int) -> int | None:
        return _offset_at(self._server, self._options, place[0], self._there[place], timestamp_us)


def _deleted(options: SourceOptions, name: TopicName, partition: PartitionBounds) -> list[Piece]:
    """Archive files with messages that the server has deleted."""
    archive = options.archive_of(name, partition.id)
    if archive is None:
        return []
    archived = archive_listing.find(archive, name, partition.id, partition.incarnation)
    return [each for each in archived if each.start < partition.first]


def check_range(
    options: SourceOptions, name: TopicName, partition: PartitionBounds, start: Position, end: Position, losses: Losses
) -> tuple[int, int]:
    """The part of [start, end) that can be read. `DataLossError`."""
    anew = (
        "was purged, made anew, restored, or put back as files since the checkpoint, so its offsets mean other messages"
        " now"
    )
    if end.incarnation != partition.incarnation:  # the whole batch is of another history
        known = start.incarnation == end.incarnation
        losses.add(name, partition.id, max(end.offset - start.offset, 0) if known else None, anew)
        return 0, 0
    low = start.offset
    if start.incarnation != partition.incarnation:
        losses.add(name, partition.id, None, anew)
        low = earliest(options, name, partition)
    first = partition.first if low >= partition.first else earliest(options, name, partition)
    if low > partition.end:
        losses.add(name, partition.id, None, f"starts at offset {low}, but ends at {partition.end}")
    elif low < first and low < end.offset:
        lost = min(first, end.offset) - low
        losses.add(
            name, partition.id, lost, f"is asked for offset {low}, but begins at {first} ({lost} messages are gone)"
        )
    if end.offset > partition.end:
        lost = end.offset - max(low, partition.end)
        what = f"is asked for offsets below {end.offset}, but ends at {partition.end}"
        losses.add(name, partition.id, max(lost, 0), what)
    return max(low, first), min(end.offset, partition.end)


def check_present(start: Offsets, end: Offsets, bounds: Bounds, losses: Losses) -> None:
    """`DataLossError` when a partition of a checkpoint does not exist any more and so is not part of the batch."""
    for name, places in start.places.items():
        there = {each.id for each in bounds[name].partitions} if name in bounds else set()
        for n in sorted(places.keys() - there - end.places.get(name, {}).keys()):
            losses.add(name, n, None, "does not exist any more, or is not selected any more")


def check_losses(options: SourceOptions, bounds: Bounds, start: Offsets, end: Offsets, losses: Losses) -> None:
    """What a plan of the range would find missing now. `DataLossError`."""
    check_present(start, end, bounds, losses)
    for name, places in end.places.items():
        there = {each.id: each for each in bounds[name].partitions} if name in bounds else {}
        for n, last in places.items():
            first = start.places.get(name, {}).get(n)
            if first is not None and n in there:
                check_range(options, name, there[n], first, last, losses)


def with_cuts(options: SourceOptions, bounds: Bounds, start: Offsets, end: Offsets) -> Offsets:
    """`end` with the numbers that say how the range is cut into tasks, for each topic."""
    partitions = sum(len(topic.partitions) for topic in bounds.values())
    waiting = sum(
        max(end.places[name][n].offset - place.offset, 0)
        for name, places in start.places.items()
        if name in end.places
        for n, place in places.items()
        if n in end.places[name]
    )
    strides, groups = {}, {}
    for name, topic in bounds.items():
        size = sum(each.size_bytes for each in topic.partitions)
        messages = sum(each.messages_count for each in topic.partitions)
        strides[name] = stride_of(
            waiting,
            size,
            messages,
            partitions,
            max_records=options.max_records_per_partition,
            max_bytes=options.max_bytes_per_partition,
            min_partitions=options.min_partitions,
        )
        group = group_of(
            waiting,
            size,
            messages,
            min_bytes=options.min_bytes_per_partition,
            min_partitions=options.min_partitions,
        )
        groups[name] = min(group, strides[name])
    return Offsets(end.places, strides, groups)


def slices(options: SourceOptions, bounds: Bounds, start: Offsets, end: Offsets, losses: Losses) -> list[Slice]:
    """The pieces of a range. Where a topic or partition is gone: `DataLossError`, or nothing of it.

    The cuts depend on the two places and the stride of `end` alone; only the location of the pieces follows what
    there is now.
    """
    found: list[Slice] = []
    for name in sorted(end.places):
        topic = bounds.get(name)
        there = {each.id: each for each in topic.partitions} if topic is not None else {}
        for n, last in sorted(end.places[name].items()):
            partition = there.get(n)
            first = start.places.get(name, {}).get(n)
            if topic is None or partition is None:
                lost = last.offset - first.offset if first is not None else None
                losses.add(name, n, lost, "does not exist any more")
                continue
            if first is None:
                first = Position(last.incarnation, earliest(options, name, partition))
            low, high = check_range(options, name, partition, first, last, losses)
            locations, stride = Locations(options, topic, partition), end.strides.get(name, 0)
            mark = last.marks[-1] if last.marks and options.proves_tasks else None
            if len(found) + (high - low) // (stride or high + 1) > PARTITIONS_MAX:
                raise OptionError(
                    f"the range is cut into more than {PARTITIONS_MAX} pieces; raise maxBytesPerPartition or"
                    " maxRecordsPerPartition"
                )
            for a, b in cuts(low, high, stride):
                found.append(Slice(name, n, partition.incarnation, a, b, locations.pieces(a, b), mark))
    return found


def tasks(found: Sequence[Slice], end: Offsets) -> list[tuple[Slice, ...]]:
    """The slices of each task: small ones that follow each other share one, up to the group of their topic. Depends on
    the slices and the groups of `end` alone."""
    made: list[list[Slice]] = []
    used = 0.0
    for each in found:
        group = end.groups.get(each.name, 0)
        share = (each.end - each.start) / group + 1 / SLICES_MAX if group else 1.0
        if not made or used + share > 1.0:
            made.append([])
            used = 0.0
        made[-1].append(each)
        used += share
    return [tuple(each) for each in made]


def needs_segments(options: SourceOptions) -> bool:
    """Whether cold reads are possible, so that the lists of segments are worth their bytes."""
    return options.path is not None and options.read_mode is not ReadMode.LIVE


__all__ = ["DataLossError", "Slice", "TopicMissingError", "discover", "needs_segments", "resolve", "slices", "tasks"]
