"""What publishing and NATS see of the registry: all streams as the workers say them, which of them a client sees is
another question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from shardd.doors.liftbridge.router import Router
from shardd.protocol.liftbridge.requests import StreamInfo


class RegistryView(Protocol):
    """Loop thread only."""

    @property
    def router(self) -> Router:
        """Of all streams, kept up to date."""

    def streams(self) -> Mapping[str, StreamInfo]:
        """By name. The mapping may be another one after a change."""

    async def changed(self, since: int) -> int:
        """Waits until the streams are others than those of version `since` (0: none yet), and returns the number of the
        version that is there now; the router has it by then."""
