"""The jobs in the background of a worker that are a call into one of its other parts; the rest registers itself
(shardd/maintenance/README.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shardd.maintenance.job import Job, Turn
from shardd.maintenance.scheduler import JobScheduler
from shardd.metadata import Metadata, MetadataWriter
from shardd.runtime.threads import Threads
from shardd.service.context import ShardContext
from shardd.service.tokens import clean_expired_tokens
from shardd.transport.dispatch import Dispatcher
from shardd.worker.partitions import OwnedPartitions
from shardd.worker.refusals import REPORT_INTERVAL_S, RefusalReport

_ROOM_INTERVAL_S: Final = 30.0


def add_compaction(jobs: JobScheduler, writer: Callable[[], MetadataWriter]) -> Callable[[], None]:
    """Shortens the log of the metadata; what is returned says that it is long."""

    async def compact(_turn: Turn) -> None:
        await writer().compact()

    return jobs.add(Job("metadata_compaction", compact, first_s=None))


def add_room_job(
    jobs: JobScheduler, partitions: OwnedPartitions, metadata: Callable[[], Metadata], threads: Threads
) -> Callable[[], None]:
    """Uses room that has come back: when the engine finds it (what is returned), and now and then (it does not look
    when the setting is 0)."""

    async def use_room(_turn: Turn) -> None:
        await partitions.room_returned(lambda: metadata().state, threads)
        writer = metadata()
        if isinstance(writer, MetadataWriter):
            await writer.room_returned()

    return jobs.add(Job("room", use_room, _ROOM_INTERVAL_S, first_s=_ROOM_INTERVAL_S))


def add_client_jobs(jobs: JobScheduler, context: ShardContext, dispatcher: Dispatcher) -> None:
    """Refusals are told, clients without a heartbeat evicted, expired tokens removed (shard 0)."""
    refusals = RefusalReport(context.engine.counters)
    heartbeat, tokens = context.settings.heartbeat, context.settings.personal_access_token

    async def report(_turn: Turn) -> None:
        refusals.report()

    async def evict(turn: Turn) -> None:
        await turn.on_loop(dispatcher.evict_stale_clients())

    async def clean(_turn: Turn) -> None:
        await clean_expired_tokens(context)

    jobs.add(Job("refusals", report, REPORT_INTERVAL_S, first_s=REPORT_INTERVAL_S))
    if heartbeat.enabled:
        interval_s = heartbeat.interval_ms / 1000
        jobs.add(Job("eviction", evict, interval_s, first_s=interval_s))
    if context.shard == 0 and tokens.cleaner_enabled:
        jobs.add(Job("tokens", clean, tokens.cleaner_interval_ms / 1000))
