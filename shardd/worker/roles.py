"""The part that a worker has in the server as a whole: one of them has the tasks of which there is one in a server, the
others follow it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shardd.engine import Engine, _native
from shardd.groups.hub import GroupHub
from shardd.groups.surroundings import HubSurroundings
from shardd.log import layout
from shardd.log.directory_info import FORMAT_VERSION, raise_version
from shardd.maintenance.archiver import Archiver
from shardd.maintenance.clock_keeper import ClockKeeper
from shardd.maintenance.deletion_gate import DeletionGate
from shardd.maintenance.job import Job, Turn
from shardd.maintenance.scheduler import JobScheduler
from shardd.maintenance.trash_emptier import TrashEmptier
from shardd.metadata import FILE_NAME, Metadata, State
from shardd.metadata.errors import LogError
from shardd.metadata.replica import MetadataReplica
from shardd.metadata.reserve import with_reserve
from shardd.metadata.writer import MetadataWriter
from shardd.runtime.bus import Bus
from shardd.runtime.channel import CONTROL_SHARD
from shardd.runtime.inheritance import WorkerInheritance
from shardd.runtime.metrics import MetricRegistry
from shardd.runtime.threads import Threads
from shardd.security import Passwords, command_allowed, ensure_root
from shardd.service.clocks import StampClock, forgotten_us
from shardd.service.producers import expire_producers
from shardd.service.tokens import clean_expired_tokens
from shardd.worker.partition_changes import changed_streams
from shardd.worker.producers import FILE_NAME as BOOT_FILE_NAME
from shardd.worker.producers import begin_boot

_log = logging.getLogger(__name__)

PRODUCERS_INTERVAL_S: Final = 60.0


def is_control_shard(inheritance: WorkerInheritance) -> bool:
    return inheritance.shard == CONTROL_SHARD


class Role:
    """Lives on the loop thread. In the order of a worker's life: `start_metadata`, `serve`, the notices,
    `close`. Its jobs are added when it is made. Who has no task of that kind does nothing."""

    reports_foreign_directories = False

    metadata: Metadata

    async def start_metadata(self) -> bool:
        """True when the first user was created just now."""
        raise NotImplementedError

    def serve(self) -> None:
        """The services are about to be made."""

    def add_figures(self, metrics: MetricRegistry) -> None:
        """Of its tasks."""

    def applied(self, old: State, new: State) -> None:
        """A record of the metadata, before it is acknowledged."""

    def trashed(self) -> None:
        """Files went to the trash here."""

    async def room_returned(self) -> None:
        """The disk has room again."""

    def stopping(self) -> None:
        """The worker is about to stop: what only waits is refused."""

    def close(self) -> None:
        """The worker stops."""


def _raise_version(directory: Path) -> None:
    """Of the data directory, when the metadata can be used and before any shard knows them: no partition was opened yet
    and nothing was written that earlier programs would misread (docs/adr/0028-format-version-2.md). LogError."""

    def write() -> None:
        earlier = raise_version(directory)
        if earlier is not None:
            _log.info(
                "format version %d becomes %d: earlier programs cannot open this directory any more",
                earlier, FORMAT_VERSION,
            )  # fmt: skip

    try:
        with_reserve(directory, write)
    except (OSError, ValueError) as error:
        raise LogError(f"the format version of {directory} cannot be raised: {error}") from error


def _begin_boot(directory: Path, index: int) -> bool:
    """Before any shard knows the metadata. False: it could not be written. That stops no start: without it a partition
    that has no file of producers knows fewer of them."""
    try:
        with_reserve(directory, lambda: begin_boot(directory, index))
    except OSError as error:
        _log.warning(
            "%s cannot be written (%s), tried again later: producers that have not sent to a partition yet may have to "
            "begin a new epoch",
            directory / BOOT_FILE_NAME, error.strerror,
        )  # fmt: skip
        return False
    return True


class FollowerRole(Role):
    """`diverged(sentence)`: this replica cannot follow."""

    def __init__(self, data_directory: Path, bus: Bus, threads: Threads, diverged: Callable[[str], None]) -> None:
        self._replica = self.metadata = MetadataReplica(data_directory / FILE_NAME, bus, threads, diverged)

    async def start_metadata(self) -> bool:
        await self._replica.start()
        return False


class ControlRole(Role):
    """Writes the metadata, gives out the partitions of consumer groups, empties the trash, removes expired tokens, lets
    new topics start balancing at partition 0, and reports foreign directories."""

    reports_foreign_directories = True

    def __init__(
        self,
        inheritance: WorkerInheritance,
        engine: Engine,
        bus: Bus,
        threads: Threads,
        passwords: Passwords,
        jobs: JobScheduler,
        hear: Callable[[], None],
    ) -> None:
        self._root = inheritance.root_name, inheritance.root_password, inheritance.root_password_hash
        self._settings = settings = inheritance.settings
        self._engine = engine
        self._bus = bus
        self._threads = threads
        self._data = inheritance.data_directory
        self._passwords = passwords
        trash = layout.trash_directory(inheritance.data_directory)
        names_max = settings.system.trash.names_max
        self._trash = TrashEmptier(trash, jobs, names_max=names_max, reserve_bytes=settings.system.disk_reserve_bytes)
        self._archiver = Archiver(self._data, self._state, settings.system.archive, jobs, self._trash.wake)
        self._clock = ClockKeeper(engine, self._data, settings.system.retention.clock_jump_max_ms * 1000, jobs)
        self._gate = DeletionGate(self._trash.content, names_max, threads, self._trash.wake)
        compaction_due = jobs.add(Job("metadata_compaction", self._compact, first_s=None))
        self._writer = self.metadata = MetadataWriter(
            inheritance.data_directory / FILE_NAME,
            bus,
            threads,
            command_allowed,
            clock=StampClock(engine),
            hear=hear,
            compaction_due=compaction_due,
            deletions=self._gate.enter,
        )
        self._hub: GroupHub | None = None
        self._unsaved_boot: int | None = None  # what `_begin_boot` could not write
        interval_s = settings.consumer_group.rebalancing_check_interval_ms / 1000
        jobs.add(Job("groups", self._check_groups, interval_s, first_s=interval_s))
        tokens = settings.personal_access_token
        if tokens.cleaner_enabled:
            jobs.add(Job("tokens", self._clean_tokens, tokens.cleaner_interval_ms / 1000))
        jobs.add(Job("producers", self._expire_producers, PRODUCERS_INTERVAL_S, first_s=PRODUCERS_INTERVAL_S))

    def _state(self) -> State:
        return self._writer.state

    async def start_metadata(self) -> bool:
        created = []

        async def prepare() -> None:
            await self._threads.run(_raise_version, self._data)
            index = self._writer.state.index
            if not await self._threads.run(_begin_boot, self._data, index):
                self._unsaved_boot = index
            created.append(await ensure_root(self._writer, self._passwords, *self._root))

        await self._writer.start(prepare)
        return created[0]

    def serve(self) -> None:
        settings = self._settings.consumer_group
        self._hub = GroupHub(HubSurroundings(self._engine.generation, self._writer, self._bus, settings))

    def add_figures(self, metrics: MetricRegistry) -> None:
        metrics.add(
            "trash",
            lambda: self._trash.gauges() | self._gate.gauges(),
            lambda: self._trash.counters() | self._gate.counters(),
        )

        metrics.add("archive", self._archiver.gauges, self._archiver.counters)

    def applied(self, old: State, new: State) -> None:
        """A new topic starts balancing at partition 0."""
        for stream_id in changed_streams(old, new):
            before, stream = old.streams.get(stream_id), new.streams.get(stream_id)
            for topic_id, topic in stream.topics.items() if stream is not None else ():
                known = before.topics.get(topic_id) if before is not None else None
                if known is None or known.incarnation != topic.incarnation:
                    self._engine.counter_reset(topic.incarnation)

    def trashed(self) -> None:
        self._trash.wake()

    async def room_returned(self) -> None:
        await self._writer.room_returned()
        if self._unsaved_boot is not None and await self._threads.run(_begin_boot, self._data, self._unsaved_boot):
            self._unsaved_boot = None

    def stopping(self) -> None:
        self._gate.close()

    def close(self) -> None:
        if self._hub is not None:
            self._hub.close()

    async def _compact(self, _turn: Turn) -> None:
        await self._writer.compact()

    async def _check_groups(self, _turn: Turn) -> None:
        if self._hub is not None:
            await self._hub.check()

    async def _expire_producers(self, _turn: Turn) -> None:
        clock, age_us = self._engine.expiry_clock(), self._settings.server.producer_expiry_ms * 1000
        await expire_producers(
            self._writer, _native.clock_first_younger(clock.now_us, clock.stamp_us, age_us, clock.doubts)
        )

    async def _clean_tokens(self, _turn: Turn) -> None:
        await clean_expired_tokens(self._writer, forgotten_us(self._engine))
