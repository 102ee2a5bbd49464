"""Tells a door that the metadata have changed: not each change, but that there was one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from shardd.metadata import Metadata, Record, State
from shardd.protocol.door_frames import Kind, MetadataChanged

INTERVAL_S: Final = 0.05  # between two notices to a door


class Noticed(Protocol):
    def notice(self, kind: Kind, value: object) -> bool: ...


class MetadataNotices:
    """Lives on the loop thread. A connection that has not read what it was sent is asked again later: a notice never
    waits, and is never lost. `connections`: those that want to hear of it."""

    def __init__(self, metadata: Metadata, connections: Callable[[], Iterable[Noticed]]) -> None:
        self._metadata = metadata
        self._connections = connections
        self._told: dict[Noticed, int] = {}  # up to which record
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        metadata.subscribe(self._changed)

    def due(self) -> None:
        """Whoever does not know of the newest record hears of it soon."""
        if self._timer is None and not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tell)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _changed(self, _old: State, _new: State, _record: Record) -> None:
        if any(True for _ in self._connections()):
            self.due()

    def _tell(self) -> None:
        self._timer = None
        index = self._metadata.state.index
        connections = list(self._connections())
        self._told = {each: self._told.get(each, -1) for each in connections}
        for connection in connections:
            if self._told[connection] < index and connection.notice(Kind.METADATA_CHANGED, MetadataChanged(index)):
                self._told[connection] = index
        if any(told < index for told in self._told.values()):
            self.due()
