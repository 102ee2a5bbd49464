"""The last syncs of a worker that stops in order."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Final

from shardd.engine import Engine
from shardd.runtime.threads import Threads
from shardd.service.partition_calls import sync_descriptors

_log = logging.getLogger(__name__)

_SYNC_POLL_S: Final = 0.01
_AFTER_STALL_S: Final = 1.0  # that is left when the device answers again
_PAUSE_S: Final = 0.5


async def flush_everything(
    engine: Engine, threads: Threads, deadline: float, stands_still: Callable[[], bool] = lambda: False
) -> None:
    """Background syncs end, then what they did not cover follows, until nothing is dirty (or the time is up, which
    does not pass while the device stands still, or is slow and takes more and more of it)."""
    fewest = sys.maxsize
    while (now := time.monotonic()) < deadline:
        if stands_still():
            deadline = max(deadline, now + _AFTER_STALL_S)
        if engine.counters()["syncs_running"]:
            await asyncio.sleep(_SYNC_POLL_S)
            continue
        descriptors = engine.flush_all()
        if not descriptors:
            return
        if len(descriptors) >= fewest:  # a full disk takes nothing, however often it is asked
            await asyncio.sleep(_SYNC_POLL_S)
        elif time.monotonic() - now > _PAUSE_S:  # it wrote, and the device let it wait
            deadline = max(deadline, time.monotonic() + _AFTER_STALL_S)
        fewest = min(fewest, len(descriptors))
        errno = await threads.run(sync_descriptors, descriptors)
        engine.flush_all_done(errno)
        if errno:
            _log.error("the last messages may not be on the device: %s", os.strerror(errno))
            return
    _log.error("the time for the stop was too short to bring everything to the device")
