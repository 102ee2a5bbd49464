"""What the services of one worker get to work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardd.runtime.metrics import MetricRegistry
from shardd.runtime.recent_logs import RecentLogs
from shardd.runtime.slices import Slices
from shardd.service.sessions import SessionTable

if TYPE_CHECKING:
    from shardd.config import Settings
    from shardd.engine import Engine
    from shardd.metadata import Metadata
    from shardd.runtime.bus import Bus
    from shardd.runtime.threads import Threads
    from shardd.security import Passwords
    from shardd.security.login_turns import LoginTurns


@dataclass(slots=True)
class ShardContext:
    """One per worker, used on its loop thread only. `tcp_address` is the address the server is really bound to;
    `threads` run blocking calls that may take as long as the device (fdatasync).

    `stopping` is set when the orderly stop begins: logins are answered with 8 from then on
    (docs/protocol/sessions.md#stop).
    """

    shard: int
    shards: int
    engine: Engine
    metadata: Metadata
    bus: Bus
    settings: Settings
    sessions: SessionTable
    passwords: Passwords
    login_turns: LoginTurns
    threads: Threads
    started_at_us: int
    tcp_address: tuple[str, int]
    stopping: bool = False
    metrics: MetricRegistry = field(default_factory=MetricRegistry)
    reports: Slices = field(default_factory=Slices)  # answers about many topics and partitions
    routing: Slices = field(default_factory=Slices)
    recent_logs: RecentLogs = field(default_factory=lambda: RecentLogs(""))
    supervisor_logs: Callable[[], Awaitable[list[str]]] | None = None  # its newest lines
