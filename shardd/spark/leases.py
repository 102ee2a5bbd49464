"""Files that tasks are to read stay while they read: the driver asks the server to leave them
(docs/adr/0090-a-lease-of-files.md). Without a lease, or when it ends early, a file that is gone is replaced or told as
ever (reading.py)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from shardd.protocol.errors import ShardError, Status
from shardd.protocol.leases import LeaseFiles
from shardd.spark.options import SourceOptions
from shardd.spark.piece import PieceOrigin
from shardd.spark.planner import Slice
from shardd.spark.positions import TopicName
from shardd.spark.server import Server

PARTITIONS_MAX: Final = 1024  # a request for each: what a plan of more may cost is not worth it
_log = logging.getLogger(__name__)


def take(server: Server, options: SourceOptions, slices: Sequence[Slice]) -> int:
    """For the sealed segments of a plan; how many partitions have one."""
    if options.path is None or not options.lease_s:
        return 0
    lowest: dict[tuple[TopicName, int], int] = {}
    for each in slices:
        start = next((piece.start for piece in each.pieces if piece.place is PieceOrigin.SEGMENT), None)
        if start is not None:
            place = (each.name, each.partition)
            lowest[place] = min(start, lowest.get(place, start))
    taken = 0
    for (name, partition), start in list(lowest.items())[:PARTITIONS_MAX]:
        try:
            server.lease(LeaseFiles(name.stream, name.topic, partition, start, options.lease_s))
            taken += 1
        except ShardError as error:
            if error.status is Status.INVALID_COMMAND:
                return taken  # another server, or an earlier version
            _log.info("no lease of partition %d of '%s': %s", partition, name, error)
        except ConnectionError as error:
            _log.info("no leases: %s", error)
            return taken
    return taken
