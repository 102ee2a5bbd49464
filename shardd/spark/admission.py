"""What a batch of a stream takes when the query has a watermark: rows by time over all partitions.

Spark drops a row that is older than the newest one of earlier batches less the delay of the watermark. Partitions are
read side by side, and one that is ahead in time would have the rest of the others dropped. So a batch ends at one time
in all of them: every row behind it is at most the delay older than the newest row in front of it.

- A partition without a row behind its end holds nobody back: what comes is stamped by the same clock later.
- A row of which the driver's clock says that it lies in the future is not taken until it does not: it would have the
  present rows of the others dropped. It holds nobody back either.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, Protocol

from shardd.spark.positions import Offsets, Position, TopicName

Place = tuple[TopicName, int]
SKEW_US: Final = 60_000_000  # clocks of server and driver may differ by so much
_log = logging.getLogger(__name__)


class Times(Protocol):
    """Append times in the partitions, in microseconds."""

    def at(self, place: Place, offset: int) -> int | None:
        """Of the first message from the offset on, also of one that may not be read yet; None: there is none."""

    def offset_at(self, place: Place, timestamp_us: int) -> int | None:
        """First offset whose message is not older; None: there is none."""


def flat(offsets: Offsets) -> dict[Place, Position]:
    return {(name, n): place for name, places in offsets.places.items() for n, place in places.items()}


def ends_by_time(
    times: Times,
    begin: Mapping[Place, int],
    offered: Mapping[Place, int],
    ends: Mapping[Place, int],
    *,
    delay_us: int,
    now_us: int,
) -> dict[Place, int]:
    """Where the batch ends, between `begin` and `offered`, which is what the limits of a batch leave of `ends`."""
    following = {place: times.at(place, end) for place, end in offered.items()}
    latest = now_us + SKEW_US + delay_us
    first = min((each for each in following.values() if each is not None), default=latest)
    border = min(first + delay_us, latest)
    found = {}
    for place, end in offered.items():
        follows = following[place]
        whole = begin[place] >= end or (follows is not None and follows < border)
        found[place] = end if whole else max(_cut(times, place, end, border), begin[place])
    if any(found[place] > begin[place] for place in found):
        _tell(begin, found, ends, border == latest)
        return found
    if delay_us == 0 and first < latest:
        return _all_of(times, begin, ends, first)
    _tell(begin, found, ends, border == latest)
    return found


def _cut(times: Times, place: Place, end: int, border: int) -> int:
    late = times.offset_at(place, border)
    return end if late is None else min(late, end)


def _all_of(times: Times, begin: Mapping[Place, int], ends: Mapping[Place, int], moment: int) -> dict[Place, int]:
    """All rows of one moment, whatever the limits say: those left of it would be late. `begin` while some of them may
    not be read yet."""
    found = {place: max(_cut(times, place, end, moment + 1), begin[place]) for place, end in ends.items()}
    for place, end in found.items():
        if end == ends[place] and times.at(place, end) == moment:
            return dict(begin)
    return found


def _tell(begin: Mapping[Place, int], found: Mapping[Place, int], ends: Mapping[Place, int], future: bool) -> None:
    held = {place: ends[place] - end for place, end in found.items() if begin[place] == end < ends[place]}
    if not held:
        return
    (name, partition), count = next(iter(held.items()))
    if future:
        _log.warning(
            "partition %d of '%s' and %d more wait with %d messages: their times are ahead of the clock here, and with"
            " them the watermark would drop what is stored now",
            partition, name, len(held) - 1, sum(held.values()),
        )  # fmt: skip
    else:
        _log.info(
            "partition %d of '%s' (%d messages) and %d more wait for older messages of other partitions",
            partition, name, count, len(held) - 1,
        )  # fmt: skip
