"""The form of NATS that the settings name: a link to a NATS server, a NATS server of the door itself, or no NATS."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from shardd.doors.door import Door
from shardd.doors.liftbridge.ingest import Ingest
from shardd.doors.liftbridge.late_refusals import LateRefusals
from shardd.doors.liftbridge.losses import Losses
from shardd.doors.liftbridge.nats.server import NatsServer
from shardd.doors.liftbridge.options import LiftbridgeOptions
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.liftbridge.registry import Registry

if TYPE_CHECKING:
    from shardd.doors.liftbridge.nats.link import NatsLink

LISTENS_S: Final = 1.0  # a creation waits so long for a NATS server that has to know of a new subject


class Nats:
    """Loop thread only. `outlet`: who hears of what is published here."""

    def __init__(self, door: Door, options: LiftbridgeOptions, registry: Registry, publisher: Publisher) -> None:
        settings = options.liftbridge
        self.outlet: NatsLink | NatsServer | None = None
        self._runs: list[Callable[[], Awaitable[None]]] = []
        self._link: NatsLink | None = None
        self._registry = registry
        losses, fsync, late = Losses(), settings.ack_all_fsync, LateRefusals(door.clients)
        if settings.nats.servers:
            from shardd.doors.liftbridge.nats.link import NatsLink  # a quarter of what the door imports

            ingest = Ingest(
                registry, publisher, settings.max_message_size_bytes, losses, ack_all_fsync=fsync, late=late
            )
            self.outlet = self._link = NatsLink(door, settings.nats, ingest)
            self._runs.append(self._link.run)
        elif settings.nats_server.enabled:
            payload_bytes_max = settings.nats_server.max_payload_bytes
            ingest = Ingest(registry, publisher, payload_bytes_max, losses, ack_all_fsync=fsync, late=late)
            self.outlet = NatsServer(
                door,
                ingest,
                payload_bytes_max=payload_bytes_max,
                anonymous=bool(settings.anonymous_user),
                connections_max=options.connections_max,
                partial_frame_timeout_s=options.server.partial_frame_timeout_ms / 1000,
                slow_reader_timeout_s=options.server.slow_reader_timeout_ms / 1000,
            )
            self._runs.append(partial(self.outlet.run, door.listeners[0]))
            publisher.follow(self.outlet.audience.tellings)

    def work(self) -> list[Awaitable[None]]:
        """What goes on until the door stops."""
        return [run() for run in self._runs]

    async def listens(self) -> None:
        """Until messages over NATS get to the streams that there are now, or for a moment."""
        if self._link is not None:
            await self._link.listens(self._registry.version, LISTENS_S)
