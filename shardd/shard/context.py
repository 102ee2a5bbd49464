"""What the services of one worker get to work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardd.shard.sessions import SessionTable

if TYPE_CHECKING:
    from shardd.config import Settings
    from shardd.engine import Engine
    from shardd.metadata import Metadata
    from shardd.shard.bus import Bus


class Passwords(Protocol):
    """Password hashing away from the loop thread (`shardd.security.passwords`)."""

    async def verify(self, password_hash: str, password: str) -> bool:
        """True when `password` is the one of the PHC string `password_hash`."""
        ...


@dataclass(slots=True)
class ShardContext:
    """One per worker, used on its loop thread only. `tcp_address` is the address the server is really bound to.

    `stopping` is set when the orderly stop begins: logins are answered with 8 from then on (iggy-protocol 3.2).
    """

    shard: int
    shards: int
    engine: Engine
    metadata: Metadata
    bus: Bus
    settings: Settings
    sessions: SessionTable
    passwords: Passwords
    started_at_us: int
    tcp_address: tuple[str, int]
    stopping: bool = False
