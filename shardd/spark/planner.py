"""From options and the server's bounds to ranges of offsets and to slices, one for each task. Runs on the driver.

Data loss (spark spec 4.5): a start below what is kept, a place beyond the end, another incarnation, a partition that is
gone. With `failOnDataLoss` it stops with what was asked and what there is; without it the range is clipped, never
rewound.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardd.protocol.bounds import PartitionBounds, TopicBounds
from shardd.spark import archive_files
from shardd.spark.options import ReadMode, SourceOptions
from shardd.spark.piece import Piece
from shardd.spark.pieces import Locations
from shardd.spark.positions import (
    EARLIEST,
    LATEST,
    Offsets,
    OptionError,
    Place,
    Positions,
    TopicName,
    cuts,
    stride_of,
)
from shardd.spark.server import Server, TopicMissingError

_log = logging.getLogger(__name__)
Bounds = Mapping[TopicName, TopicBounds]
PARTITIONS_MAX: Final = 1 << 20


class DataLossError(RuntimeError):
    """Messages that were asked for are gone; the message says which and how to go on."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Offsets [start, end) of one partition for one task, and where they lie. Pickled to the executors."""

    name: TopicName
    partition: int
    incarnation: int
    start: int
    end: int
    pieces: tuple[Piece, ...]


def discover(server: Server, options: SourceOptions, *, segments: bool = False) -> dict[TopicName, TopicBounds]:
    """Bounds of everything the options select. `TopicMissingError`."""
    if options.pattern is not None:
        selected: dict[TopicName, tuple[int, ...]] = dict.fromkeys(server.matching(options.pattern), ())
    else:
        selected = {name: options.assigned.get(name, ()) for name in options.topics}
    return server.bounds(selected, segments=segments or _only_sealed(options))


def _only_sealed(options: SourceOptions) -> bool:
    return options.read_mode is ReadMode.COLD and options.path is not None


def earliest(options: SourceOptions, name: TopicName, partition: PartitionBounds) -> int:
    """First offset that can be read: what the server has or, further back, the archive."""
    if options.archive_path is None or options.read_mode is ReadMode.LIVE:
        return partition.first
    archived = archive_files.find(options.archive_path, name, partition.id, partition.incarnation)
    return min((each.start for each in archived), default=partition.first)


def readable_end(options: SourceOptions, partition: PartitionBounds) -> int:
    """Offset behind the last one that may be planned: on the device, and for cold reads in a sealed segment.

    It can be lower than before: what a restarted owner found is not known to be on the device until its next sync.
    """
    end = min(partition.end, partition.durable_end) if options.durable else partition.end
    if _only_sealed(options):
        sealed = max((each.end for each in partition.segments if each.sealed), default=partition.first)
        end = min(end, sealed)
    return max(end, partition.first)


def check_explicit(option: str, positions: Positions, bounds: Bounds) -> None:
    """Explicit positions must name exactly the partitions that are read."""
    if not positions.explicit:
        return
    there = {(name, each.id) for name, topic in bounds.items() for each in topic.partitions}
    named = {(name, partition) for name, each in positions.explicit.items() for partition in each}
    for verb, difference in (("does not name", there - named), ("names", named - there)):
        if difference:
            name, partition = min(difference)
            more = f" and {len(difference) - 1} more" if len(difference) > 1 else ""
            where = "which is read" if verb == "does not name" else "which is not read"
            raise OptionError(f"option '{option}' {verb} partition {partition} of '{name}'{more}, {where}")


def resolve(server: Server, options: SourceOptions, positions: Positions, bounds: Bounds, *, ending: bool) -> Offsets:
    """The place in every partition that a side of the range stands for."""
    check_explicit("endingOffsets" if ending else "startingOffsets", positions, bounds)
    places = {}
    for name, topic in bounds.items():
        explicit = positions.explicit.get(name, {})
        places[name] = {
            each.id: Place(
                each.incarnation, _offset(server, options, positions, name, each, explicit.get(each.id), ending)
            )
            for each in topic.partitions
        }
    return Offsets(places)


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
        offset = server.offset_at(name, partition.id, timestamp_us)
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


def check_range(
    options: SourceOptions, name: TopicName, partition: PartitionBounds, start: Place, end: Place
) -> tuple[int, int]:
    """The part of [start, end) that can be read. `DataLossError`."""
    faults = []
    first, last = earliest(options, name, partition), end.offset
    if start.incarnation != partition.incarnation or end.incarnation != partition.incarnation:
        faults.append("was purged or made anew since the checkpoint, so its offsets mean other messages now")
    if start.offset > partition.end:
        faults.append(f"starts at offset {start.offset}, but ends at {partition.end}")
    elif start.offset < first and start.offset < last:
        lost = min(first, last) - start.offset
        faults.append(f"is asked for offset {start.offset}, but begins at {first} ({lost} messages are gone)")
    if last > partition.end:
        faults.append(f"is asked for offsets below {last}, but ends at {partition.end}")
    if faults:
        _lose(options, f"partition {partition.id} of '{name}' {'; it '.join(faults)}")
    if start.incarnation != partition.incarnation:
        return first, max(partition.end, first)
    return max(start.offset, first), min(last, partition.end)


def _lose(options: SourceOptions, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{what}. To go on without them set failOnDataLoss=false; to start elsewhere use a new checkpoint with"
            " startingOffsets"
        )
    _log.warning("data loss accepted (failOnDataLoss=false): %s", what)


def check_present(options: SourceOptions, start: Offsets, bounds: Bounds) -> None:
    """`DataLossError` when a partition of a checkpoint does not exist any more."""
    for name, places in start.places.items():
        there = {each.id for each in bounds[name].partitions} if name in bounds else set()
        for n in sorted(places.keys() - there):
            _lose(options, f"partition {n} of '{name}' does not exist any more, or is not selected any more")


def strides(options: SourceOptions, bounds: Bounds, start: Offsets, end: Offsets) -> dict[TopicName, int]:
    """Offsets in one task, for each topic."""
    partitions = sum(len(topic.partitions) for topic in bounds.values())
    waiting = {
        (name, n): max(end.places[name][n].offset - place.offset, 0)
        for name, places in start.places.items()
        if name in end.places
        for n, place in places.items()
        if n in end.places[name]
    }
    return {
        name: stride_of(
            sum(waiting.values()),
            sum(each.size_bytes for each in topic.partitions),
            sum(each.messages_count for each in topic.partitions),
            partitions,
            max_records=options.max_records_per_partition,
            max_bytes=options.max_bytes_per_partition,
            min_partitions=options.min_partitions,
        )
        for name, topic in bounds.items()
    }


def slices(options: SourceOptions, bounds: Bounds, start: Offsets, end: Offsets) -> list[Slice]:
    """The tasks of a range. Where a topic or partition is gone: `DataLossError`, or nothing of it.

    The cuts depend on the two places and the stride of `end` alone; only the location of the pieces follows what
    there is now.
    """
    found = []
    for name in sorted(end.places):
        topic = bounds.get(name)
        there = {each.id: each for each in topic.partitions} if topic is not None else {}
        for n, last in sorted(end.places[name].items()):
            partition = there.get(n)
            if topic is None or partition is None:
                _lose(options, f"partition {n} of '{name}' does not exist any more")
                continue
            first = start.places.get(name, {}).get(n)
            if first is None:
                first = Place(last.incarnation, earliest(options, name, partition))
            low, high = check_range(options, name, partition, first, last)
            locations = Locations(options, topic, partition)
            for a, b in cuts(low, high, end.strides.get(name, 0)):
                found.append(Slice(name, n, partition.incarnation, a, b, locations.pieces(a, b)))
    if len(found) > PARTITIONS_MAX:
        raise OptionError(
            f"the range is cut into {len(found)} tasks; raise maxBytesPerPartition or maxRecordsPerPartition"
        )
    return found


def needs_segments(options: SourceOptions) -> bool:
    """Whether cold reads are possible, so that the lists of segments are worth their bytes."""
    return options.path is not None and options.read_mode is not ReadMode.LIVE


__all__ = ["DataLossError", "Slice", "TopicMissingError", "discover", "needs_segments", "resolve", "slices", "strides"]
