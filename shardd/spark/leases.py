"""Files that tasks are to read stay while they read: the driver asks the server to leave them when it plans, and tasks
that run long ask again, for what they read and for what tasks behind them will read
(docs/adr/0090-a-lease-of-files.md). Without a lease, or when it ends early, a file that is gone is replaced or told as
ever (reading.py)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardd.client.errors import ServerError
from shardd.protocol.errors import Status
from shardd.runtime.boot import boot_id
from shardd.spark.live import Polling
from shardd.spark.options import SourceOptions
from shardd.spark.piece import PieceOrigin
from shardd.spark.planner import Slice
from shardd.spark.positions import TopicName
from shardd.spark.retry import Retries
from shardd.spark.server import Server

PARTITIONS_MAX: Final = 1024  # a request for each: what a plan of more may cost is not worth it
PLACES_MAX: Final = 1 << 14  # that all tasks of a plan renew together, beside those of their own partitions
_RENEWALS: Final = 3  # within the time of a lease
_ANSWER_S: Final = 5.0  # a task does not wait longer for a favour
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A lease: the files of a partition from an offset on."""

    name: TopicName
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Leased:
    """What a task renews, its own partitions first. `taken_s`: when it was asked for, by the monotonic clock of the
    machine in the boot `boot`, which is the driver's. Pickled to the executors."""

    seconds: int = 0
    taken_s: float = 0.0
    places: tuple[Place, ...] = ()
    boot: bytes = b""


def take(server: Server, options: SourceOptions, tasks: Sequence[tuple[Slice, ...]]) -> list[Leased]:
    """For the sealed segments of a plan; what each of its tasks is to renew."""
    if options.path is None or not options.lease_s:
        return [Leased()] * len(tasks)
    lowest: dict[tuple[TopicName, int], int] = {}
    for each in (slice_ for task in tasks for slice_ in task):
        start = next((piece.start for piece in each.pieces if piece.place is PieceOrigin.SEGMENT), None)
        if start is not None:
            partition = (each.name, each.partition)
            lowest[partition] = min(start, lowest.get(partition, start))
    wanted = [Place(*partition, start) for partition, start in lowest.items()][:PARTITIONS_MAX]
    now_s, boot = time.monotonic(), boot_id()
    places = _ask(server, wanted, options.lease_s)
    ahead = PLACES_MAX // max(len(tasks), 1)
    numbers = {(each.name, each.partition): number for number, each in enumerate(places)}
    shared = []
    for task in tasks:
        own = sorted({numbers[at] for each in task if (at := (each.name, each.partition)) in numbers})
        behind = places[own[-1] + 1 :][:ahead] if own else ()
        shared.append(Leased(options.lease_s, now_s, (*(places[number] for number in own), *behind), boot))
    return shared


def _ask(server: Server, places: Sequence[Place], seconds: int) -> tuple[Place, ...]:
    """Those that the server grants."""
    granted = []
    for each in places:
        try:
            server.lease(each.name, each.partition, each.offset, seconds)
            granted.append(each)
        except ServerError as error:
            if error.status == Status.INVALID_COMMAND:
                break  # another server, or an earlier version
            _log.info("no lease of partition %d of '%s': %s", each.partition, each.name, error)
        except ConnectionError as error:
            _log.info("no leases: %s", error)
            break
    return tuple(granted)


class Renewal:
    """Of one task. A short query never asks: the first time comes when half of the lease has gone by. On another
    machine it is not known when that is, whatever the clocks say: a task there asks when it begins."""

    def __init__(self, polling: Polling, leased: Leased) -> None:
        self._polling = polling
        self._leased = leased
        same = bool(leased.boot) and leased.boot == boot_id()
        self._next_s = leased.taken_s + leased.seconds / 2 if same else time.monotonic()

    def look(self) -> None:
        """Renews when it is time to; what is refused is asked for again the next time."""
        if not self._leased.places or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + self._leased.seconds / _RENEWALS
        polling = self._polling
        timeout_s = min(polling.timeout_s, _ANSWER_S)
        server = Server(polling.servers, timeout_s=timeout_s, retries=Retries(0, 0.0))
        try:
            _ask(server, self._leased.places, self._leased.seconds)
        finally:
            server.close()
