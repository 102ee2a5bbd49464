"""The jobs in the background of every worker that are a call into one of its other parts; the rest registers itself
(shardd/maintenance/README.md), and `roles` those of which there is one in a server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from shardd.config.schema import Settings
from shardd.engine import RoomEvent
from shardd.maintenance.job import Job, Turn
from shardd.maintenance.scheduler import JobScheduler
from shardd.runtime.threads import Threads
from shardd.service.connections import ConnectionService
from shardd.worker.partitions import OwnedPartitions
from shardd.worker.refusals import REPORT_INTERVAL_S, RefusalReport
from shardd.worker.roles import Role

_ROOM_INTERVAL_S: Final = 30.0
_log = logging.getLogger(__name__)


def tell_room(event: RoomEvent, data: Path) -> None:
    """Into the log: sends are refused for want of room, or taken again."""
    free, inodes = event.free_bytes, event.free_inodes
    if event.refused:
        _log.warning("sends are refused: only %d bytes and %d inodes are free on the disk of %s", free, inodes, data)
    else:
        _log.warning("sends are taken again: %d bytes and %d inodes are free on the disk of %s", free, inodes, data)


def add_room_job(
    jobs: JobScheduler, partitions: OwnedPartitions, role: Callable[[], Role], threads: Threads
) -> Callable[[], None]:
    """Uses room that has come back: when the engine finds it (what is returned), and now and then (it does not look
    when the setting is 0)."""

    async def use_room(_turn: Turn) -> None:
        await partitions.room_returned(lambda: role().metadata.state, threads)
        await role().room_returned()

    return jobs.add(Job("room", use_room, _ROOM_INTERVAL_S, first_s=_ROOM_INTERVAL_S))


def add_client_jobs(
    jobs: JobScheduler,
    counters: Callable[[], Mapping[str, int]],
    connections: ConnectionService,
    settings: Settings,
) -> None:
    """Refusals are told, clients without a heartbeat evicted. `counters` are those of the engine."""
    refusals, heartbeat = RefusalReport(counters), settings.heartbeat

    async def report(_turn: Turn) -> None:
        refusals.report()

    async def evict(turn: Turn) -> None:
        await turn.on_loop(connections.evict_stale_clients(heartbeat.interval_ms))

    jobs.add(Job("refusals", report, REPORT_INTERVAL_S, first_s=REPORT_INTERVAL_S))
    if heartbeat.enabled:
        interval_s = heartbeat.interval_ms / 1000
        jobs.add(Job("eviction", evict, interval_s, first_s=interval_s))
