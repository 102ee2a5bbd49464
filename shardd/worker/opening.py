"""Recovers partitions before they are opened, and tells what an error of that means (shardd/runtime/disk_errors.py)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from shardd.config.schema import System
from shardd.engine import ExpiryClock
from shardd.engine.partition_limits import IdWindow
from shardd.log import layout
from shardd.log.layout import PartitionIds
from shardd.log.recovered import Recovered
from shardd.log.recovery import open_partition
from shardd.log.sealing import counted_at
from shardd.metadata.reserve import Reserve
from shardd.metadata.state import State
from shardd.protocol.errors import Status
from shardd.runtime.disk_errors import Trouble, trouble_of
from shardd.worker.id_windows import known_ids, window_of

READ_ONLY: Final = int(Status.CANNOT_WRITE_TO_FILE)  # a partition whose directory cannot be used refuses sends

_log = logging.getLogger(__name__)

Outcome = Recovered | OSError | ValueError | MemoryError


def trouble_in(outcome: Outcome) -> Trouble | None:
    """What keeps it from being opened, or from being opened for sends; None: nothing that is to be tried again."""
    if isinstance(outcome, Recovered):
        return Trouble.ROOM if outcome.state == READ_ONLY else None
    return trouble_of(outcome)


def recover_all(
    data: Path, batch: Iterable[tuple[PartitionIds, int]], state: State, system: System, clock: ExpiryClock
) -> list[Outcome]:
    """Of partitions and their incarnations; `clock`: the believed one of now. A full disk gets the room of the reserve
    once."""
    outcomes: list[Outcome] = []
    for ids, incarnation in batch:
        directory = layout.partition_directory(data, *ids)
        window = window_of(state.streams[ids[0]].topics[ids[1]], system)
        outcome = _recover_one(directory, incarnation, window, clock)
        if trouble_in(outcome) is Trouble.ROOM and Reserve(data).release():
            outcome = _recover_one(directory, incarnation, window, clock)
        outcomes.append(outcome)
    return outcomes


def _recover_one(directory: Path, incarnation: int, window: IdWindow, clock: ExpiryClock) -> Outcome:
    try:
        found = open_partition(directory, incarnation, now_us=clock.now_us)
        found.unsealed += _uncounted(found, clock)
        found.known_ids = known_ids(directory, found, window, clock)
    except (OSError, ValueError, MemoryError) as error:
        return error
    return found


def _uncounted(found: Recovered, clock: ExpiryClock) -> list[int]:
    """Sealed segments that do not tell yet that their times are ahead of the clock: they count from this start on."""
    if not found.segments or not counted_at(found.segments[-1].last_timestamp, clock):
        return []  # times never fall
    known = set(found.unsealed)
    sealed = [each for each in found.segments[:-1] if not each.counted_us and each.start_offset not in known]
    return [each.start_offset for each in sealed if counted_at(each.last_timestamp, clock)]


def retried(data: Path, opening: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """The engine's own part of an opening: a full disk gets the room of the reserve once, here too. OSError,
    ValueError, MemoryError."""
    try:
        return opening()
    except OSError as error:
        if trouble_of(error) is not Trouble.ROOM or not Reserve(data).release():
            raise
    return opening()


def tell_unread(directory: Path, offsets: int, producers: int) -> None:
    """Into the log: which file beside a log cannot be read (errno, 0: it can), and what that costs."""
    if offsets:
        _log.error(
            "%s cannot be read (%s): whoever asks for a stored offset gets 10002 until it can be; messages are served. "
            "The device gives it no more? Stop the server and see `shardd doctor log`",
            directory / layout.CONSUMER_OFFSETS,
            os.strerror(offsets),
        )
    if producers:
        _log.error(
            "%s cannot be read (%s): batches of idempotent producers are refused; the first other send gives it the "
            "name %s, and its producers have to begin again. Messages are served",
            directory / layout.PRODUCERS,
            os.strerror(producers),
            layout.PRODUCERS_UNREADABLE,
        )
