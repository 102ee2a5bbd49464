"""Sends the counters of NATS to a worker at intervals; the worker shows them (docs/extensions.md#get-metrics)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from shardd.doors.door import Door
from shardd.doors.liftbridge.ingest import Ingest
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.requests import TellFigures

INTERVAL_S: Final = 1.0
_SHARD: Final = 0  # one of them: sums over shards stay right
_TASK: Final = "tell_figures"


async def tell_figures(door: Door, ingest: Ingest) -> None:
    """Until it is cancelled."""
    while True:
        await asyncio.sleep(INTERVAL_S)
        lost = {loss.name.lower(): count for loss, count in ingest.losses.counts.items()}
        if ingest.messages or lost:
            with contextlib.suppress(ShardError, WorkerLostError):
                await door.task(_TASK, TellFigures(ingest.messages, lost), shard=_SHARD)
