"""The part that a worker has in the server as a whole: one of them has the tasks of which there is one in a server, the
others follow it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from shardd.config import Settings
from shardd.engine import Engine
from shardd.groups.hub import GroupHub
from shardd.groups.surroundings import HubSurroundings
from shardd.maintenance.trash_emptier import TrashEmptier
from shardd.metadata import FILE_NAME, Metadata, MetadataReplica, MetadataWriter, State
from shardd.runtime.bus import Bus
from shardd.runtime.channel import CONTROL_SHARD
from shardd.runtime.inheritance import WorkerInheritance
from shardd.runtime.threads import Threads
from shardd.security import Passwords, command_allowed, ensure_root
from shardd.service.tokens import clean_expired_tokens
from shardd.worker.partition_changes import changed_streams

Spawn = Callable[[Coroutine[Any, Any, None]], None]


def is_control_shard(inheritance: WorkerInheritance) -> bool:
    return inheritance.shard == CONTROL_SHARD


class Role:
    """Lives on the loop thread. In the order of a worker's life: `start_metadata`, `partitions_opened`, `serve`, the
    notices, `close`. Who has no task of that kind does nothing."""

    reports_foreign_directories = False

    metadata: Metadata

    async def start_metadata(self) -> bool:
        """True when the first user was created just now."""
        raise NotImplementedError

    def partitions_opened(self) -> None:
        """What was found on the disk is open."""

    def serve(self, spawn: Spawn) -> None:
        """The services are about to be made; `spawn` starts a task that ends with the worker."""

    def applied(self, old: State, new: State) -> None:
        """A record of the metadata, before it is acknowledged."""

    def trashed(self) -> None:
        """Files went to the trash here."""

    async def room_returned(self) -> None:
        """The disk has room again."""

    def close(self) -> None:
        """The worker stops."""


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
        trash: TrashEmptier,
        hear: Callable[[], None],
    ) -> None:
        self._root = inheritance.root_name, inheritance.root_password
        self._settings: Settings = inheritance.settings
        self._engine = engine
        self._bus = bus
        self._passwords = passwords
        self._trash = trash
        path = inheritance.data_directory / FILE_NAME
        self._writer = self.metadata = MetadataWriter(path, bus, threads, command_allowed, hear=hear)
        self._hub: GroupHub | None = None

    async def start_metadata(self) -> bool:
        created = []

        async def prepare() -> None:
            created.append(await ensure_root(self._writer, self._passwords, *self._root))

        await self._writer.start(prepare)
        return created[0]

    def partitions_opened(self) -> None:
        self._trash.start()

    def serve(self, spawn: Spawn) -> None:
        settings = self._settings
        self._hub = GroupHub(HubSurroundings(self._engine.generation, self._writer, self._bus, settings.consumer_group))
        if settings.personal_access_token.cleaner_enabled:
            spawn(clean_expired_tokens(self._writer, settings.personal_access_token.cleaner_interval_ms))

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

    def close(self) -> None:
        if self._hub is not None:
            self._hub.close()
        self._trash.stop()
