"""A batch query waits for the sync of what there is when it is planned: it would leave out what is not known to be on
the device yet, all of it behind the last checkpoint of the log for a moment after the death of a worker
(docs/adr/0125-a-batch-query-waits-for-the-sync.md). It is told when the sync does not come."""

from __future__ import annotations

import time
from typing import Final

from msgspec.structs import replace

from shardd.protocol.bounds import PartitionBounds, TopicBounds
from shardd.spark import planner
from shardd.spark.options import SourceOptions
from shardd.spark.positions import Positions, TopicName
from shardd.spark.server import Server

WAIT_S: Final = 25.0
SILENCE_S: Final = WAIT_S  # of a server that takes connections and does not answer
_PAUSE_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.5
_Place = tuple[TopicName, int]


class NotDurableError(RuntimeError):
    """Messages that are asked for are not known to be on the device, and the sync does not come."""


def discover(
    server: Server, options: SourceOptions, *, segments: bool = False, begun: bool = False
) -> dict[TopicName, TopicBounds]:
    """As `planner.discover`, when all that is there now and is asked for is on the device. `NotDurableError`;
    `SilentServerError` from a server that does not answer meanwhile, as one whose device stands still."""
    with server.within(SILENCE_S):
        return _discover(server, options, segments=segments, begun=begun)


def _discover(server: Server, options: SourceOptions, *, segments: bool, begun: bool) -> dict[TopicName, TopicBounds]:
    bounds = planner.discover(server, options, segments=segments, begun=begun)
    waiting = _waiting(options, bounds)
    if not waiting:
        return bounds
    until_s, pause_s = time.monotonic() + WAIT_S, _PAUSE_S
    while waiting:
        if time.monotonic() >= until_s:
            raise NotDurableError(_said(waiting))
        server.ask_sync(_places(waiting))
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_MAX_S)
        there = _flat(planner.discover(server, options, begun=True))
        waiting = {place: was for place, was in waiting.items() if place in there and _behind(there[place], was)}
    return planner.discover(server, options, segments=segments, begun=begun)


def _flat(bounds: planner.Bounds) -> dict[_Place, PartitionBounds]:
    return {(name, each.id): each for name, topic in bounds.items() for each in topic.partitions}


def _waiting(options: SourceOptions, bounds: planner.Bounds) -> dict[_Place, PartitionBounds]:
    """The partitions whose last messages are asked for and are not known to be on the device."""
    if not options.durable:
        return {}
    readable = {place: replace(each, end=_readable_end(options, each)) for place, each in _flat(bounds).items()}
    return {
        place: each
        for place, each in readable.items()
        if each.durable_end < min(each.end, _asked_end(options.ending, place, each.end))
    }


def _readable_end(options: SourceOptions, partition: PartitionBounds) -> int:
    """The end of what such a query reads: of sealed segments only, if it reads cold."""
    if not planner.only_sealed(options):
        return partition.end
    return max((each.end for each in partition.segments if each.sealed), default=partition.first)


def _places(waiting: dict[_Place, PartitionBounds]) -> dict[TopicName, tuple[int, ...]]:
    found: dict[TopicName, tuple[int, ...]] = {}
    for name, partition in waiting:
        found[name] = (*found.get(name, ()), partition)
    return found


def _asked_end(ending: Positions, place: _Place, end: int) -> int:
    """What the options say of the end; a time may be anywhere."""
    explicit = None if ending.by_timestamp else ending.explicit.get(place[0], {}).get(place[1])
    return end if explicit is None or explicit < 0 else explicit


def _behind(now: PartitionBounds, was: PartitionBounds) -> bool:
    """False for another history, too: the plan then begins with that one."""
    return now.incarnation == was.incarnation and now.durable_end < min(was.end, now.end)


def _said(waiting: dict[_Place, PartitionBounds]) -> str:
    (name, n), each = next(iter(waiting.items()))
    more = f" (and messages of {len(waiting) - 1} more partitions)" if len(waiting) > 1 else ""
    return (
        f"offsets {max(each.durable_end, each.first)} to {each.end} of partition {n} of '{name}'{more} are not known to"
        f" be on the device after {WAIT_S:g} s, though a sync was asked for: the server's device does not answer, or"
        " the server is of an earlier version and its system.partition.sync_interval is longer; isolation=visible reads"
        " them now"
    )
