"""What every door that serves clients gets of the server's settings, and how many connections it may have by them."""

from __future__ import annotations

import msgspec

from shardd.config.schema import Server
from shardd.protocol.door_frames import CLIENT_SHARE


class ConnectionOptions(msgspec.Struct, frozen=True):
    server: Server

    @property
    def processes(self) -> int:
        """How many of them share what the door may have."""
        return 1

    @property
    def connections_max(self) -> int:
        return max(1, self.server.connections_max // (CLIENT_SHARE * self.processes))

    @property
    def connections_per_address_max(self) -> int:
        wanted = self.server.connections_per_address_max or self.server.most_connections
        return min(wanted, max(1, self.connections_max * 9 // 10))
