"""Keys whose value changes while the server runs (docs/configuration.md): `shardd config set`, `shardd config reload`.
All others need a restart."""

from __future__ import annotations

from typing import Final

LEVEL: Final = "system.logging.level"
LIMITS: Final = frozenset(
    {
        "server.connections_per_address_max",
        "server.connections_before_login_max",
        "server.login_timeout",
        "server.idle_timeout",
        "server.request_timeout",
        "server.partial_frame_timeout",
        "server.slow_reader_timeout",
    }
)
LIVE: Final = LIMITS | {LEVEL}
