"""The jobs in the background of every worker that are a call into one of its other parts; the rest registers itself
(shardd/maintenance/README.md), and `roles` those of which there is one in a server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shardd.engine import Engine, RoomEvent, Sample
from shardd.maintenance.job import Job, Turn
from shardd.maintenance.offset_expiry import OffsetExpiry
from shardd.maintenance.scheduler import JobScheduler
from shardd.metadata import Metadata
from shardd.protocol.catalogue import command_name
from shardd.runtime import tracing
from shardd.runtime.disk_errors import Trouble
from shardd.runtime.inheritance import WorkerInheritance
from shardd.runtime.threads import Threads
from shardd.service.services import Services
from shardd.worker.partitions import OwnedPartitions
from shardd.worker.refusals import REPORT_INTERVAL_S, RefusalReport
from shardd.worker.roles import Role

_ROOM_INTERVAL_S: Final = 30.0
_MOMENT_INTERVAL_S: Final = 2.0  # while descriptors or memory are missing
_SILENCE_INTERVAL_S: Final = 1.0
_TRACES_INTERVAL_S: Final = 0.25  # the engine has places for 64 requests
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
    when the setting is 0). What descriptors or memory have kept closed is tried again all the time."""

    async def use_room(_turn: Turn) -> None:
        await partitions.try_again(lambda: role().metadata.state, threads)
        await role().room_returned()

    async def try_again(_turn: Turn) -> None:
        await partitions.try_again(lambda: role().metadata.state, threads, (Trouble.MOMENTARY,))

    jobs.add(Job("reopening", try_again, _MOMENT_INTERVAL_S, first_s=_MOMENT_INTERVAL_S))
    return jobs.add(Job("room", use_room, _ROOM_INTERVAL_S, first_s=_ROOM_INTERVAL_S))


def service_jobs(
    jobs: JobScheduler, engine: Engine, metadata: Metadata, services: Services, inheritance: WorkerInheritance
) -> OffsetExpiry:
    """Refusals are told, clients without their heartbeat evicted, requests that the engine has chosen traced, stored
    offsets that are not used deleted: adds the jobs that do it."""
    settings = inheritance.settings
    refusals, heartbeat = RefusalReport(engine.counters), settings.heartbeat

    async def report(_turn: Turn) -> None:
        refusals.report()

    async def evict(turn: Turn) -> None:
        await turn.on_loop(services.connections.evict_stale_clients())

    async def evict_silent(turn: Turn) -> None:
        await turn.on_loop(services.connections.evict_silent_clients())

    async def trace(_turn: Turn) -> None:
        for sample in engine.samples():
            tracing.sampled(_told(sample))

    jobs.add(Job("refusals", report, REPORT_INTERVAL_S, first_s=REPORT_INTERVAL_S))
    if settings.telemetry.enabled and settings.telemetry.traces.sample_every:
        jobs.add(Job("traces", trace, _TRACES_INTERVAL_S, first_s=_TRACES_INTERVAL_S))
    if heartbeat.enabled:
        interval_s = heartbeat.interval_ms / 1000
        jobs.add(Job("eviction", evict, interval_s, first_s=interval_s))
    jobs.add(Job("silence", evict_silent, _SILENCE_INTERVAL_S, first_s=_SILENCE_INTERVAL_S))
    expiry = OffsetExpiry(engine, metadata, services.partition_calls, services.unused_offsets, settings.offsets)
    expiry.start(jobs)
    return expiry


def _told(of: Sample) -> tracing.Sampled:
    began_ns = time.time_ns() - time.monotonic_ns() + of.began_us * 1000
    attributes = {"user_id": of.user_id, "connection": of.connection, "dialect": of.dialect, "bytes": of.length}
    name = command_name(of.code).lower()
    return tracing.Sampled(name, began_ns, of.took_us * 1000, of.status, dict(attributes), of.begin)
