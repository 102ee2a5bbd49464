"""The part of the NATS server that a connection of a client sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from shardd.doors.door import Door
from shardd.doors.liftbridge.ingest import Ingest
from shardd.doors.liftbridge.nats.audience import Audience
from shardd.runtime.crowds import SharedRoom

if TYPE_CHECKING:
    from shardd.doors.liftbridge.nats.connection import NatsConnection


class NatsLimits(msgspec.Struct, frozen=True):
    """`payload_bytes_max`: of a message with its headers; times as `server.*` has them."""

    payload_bytes_max: int
    connections_max: int
    connections_per_address_max: int
    partial_frame_timeout_s: float
    slow_reader_timeout_s: float


class House(Protocol):
    """The server, as its connections see it. `unread`, `unsent`: bytes of all connections. `buffer`: what is read goes
    there first."""

    door: Door
    ingest: Ingest
    audience: Audience
    limits: NatsLimits
    unread: SharedRoom
    unsent: SharedRoom
    buffer: bytearray

    def admit(self, connection: NatsConnection) -> bool:
        """Whether there is room for another one."""

    def knows(self, connection: NatsConnection) -> None:
        """It has said who it is, or has ended."""

    def left(self, connection: NatsConnection) -> None: ...

    def is_busy(self, connection: NatsConnection) -> None:
        """It has requests: it gets a turn."""

    def may_be_anonymous(self, host: str) -> bool: ...

    def info(self, connection: NatsConnection) -> bytes: ...
