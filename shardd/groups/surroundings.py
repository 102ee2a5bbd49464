"""What hub and members of consumer groups need from the worker that they live in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from shardd.config.schema import ConsumerGroupSettings
from shardd.engine import SeatPartition, SeatState
from shardd.groups.membership import Membership
from shardd.metadata import Metadata
from shardd.runtime.bus import Bus
from shardd.runtime.channel import Channel


class MemberSession(Protocol):
    """A connection as a member. `key` names it on every shard; `moves`: how often it came to another one."""

    @property
    def connection(self) -> int: ...
    @property
    def key(self) -> str: ...
    @property
    def moves(self) -> int: ...
    @property
    def memberships(self) -> dict[int, Membership]: ...


class MemberSessions(Protocol):
    """The connections of one worker."""

    def __iter__(self) -> Iterator[MemberSession]: ...
    def get(self, connection: int) -> MemberSession | None: ...
    def by_key(self, key: str) -> MemberSession | None: ...
    def on_leave(self, left: Callable[[MemberSession], None]) -> None: ...


class HubSurroundings(msgspec.Struct, frozen=True):
    """Of the hub. `generation`: how many workers of its shard there were before."""

    generation: int
    metadata: Metadata
    bus: Bus
    settings: ConsumerGroupSettings


class SeatEngine(Protocol):
    """The part of the engine that borrows memberships and keeps offsets of groups."""

    def seat_put(
        self,
        connection: int,
        group: int,
        generation: int,
        offsets_id: int,
        rotation: int,
        last_polled: int,
        partitions: list[SeatPartition],
        /,
    ) -> bool: ...
    def seat_take(self, connection: int, group: int, /) -> SeatState | None: ...
    def offset_delete(
        self, namespace: int, incarnation: int, kind: int, consumer: int, assignment: int = 0, /
    ) -> int: ...
    def fence_drop(self, namespace: int, incarnation: int, group: int, /) -> None: ...


class MembersSurroundings(msgspec.Struct, frozen=True):
    """Of the members on every worker."""

    engine: SeatEngine
    metadata: Metadata
    bus: Channel
    sessions: MemberSessions
