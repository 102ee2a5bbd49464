"""What hub and members of consumer groups need from the worker that they live in, as protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from shardd.config import Settings
from shardd.engine import Engine
from shardd.groups.membership import Membership
from shardd.metadata import Metadata
from shardd.runtime.bus import Bus


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


class HubSurroundings(Protocol):
    """Of the hub on shard 0."""

    @property
    def shards(self) -> int: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def metadata(self) -> Metadata: ...
    @property
    def bus(self) -> Bus: ...
    @property
    def settings(self) -> Settings: ...


class MembersSurroundings(Protocol):
    """Of the members on every worker."""

    @property
    def shard(self) -> int: ...
    @property
    def shards(self) -> int: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def metadata(self) -> Metadata: ...
    @property
    def bus(self) -> Bus: ...
    @property
    def sessions(self) -> MemberSessions: ...
