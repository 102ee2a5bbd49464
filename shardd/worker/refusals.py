"""Says in the log how many connections were refused or given up, and what was removed for others: one line for each
kind, not for each of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

_log = logging.getLogger(__name__)

REPORT_INTERVAL_S: Final = 10.0
# counter of the engine -> what the line says about it
_KINDS: Final = {
    "refused_connections": "connections refused: server.connections_max are open",
    "refused_by_address": "connections refused: their address has server.connections_per_address_max open",
    "refused_before_login": "connections refused: server.connections_before_login_max are not logged in",
    "refused_introductions": "connections of trusted proxies closed: no PROXY protocol header, version 2, came in time",
    "offsets_removed": "stored offsets of deleted users removed, the longest unused first: others needed the places",
    "timeouts": "connections closed: they took longer than one of the timeouts of server.* allows",
}


class RefusalReport:
    """`counters` are those of the engine."""

    def __init__(self, counters: Callable[[], Mapping[str, int]]) -> None:
        self._counters = counters
        self._seen = dict.fromkeys(_KINDS, 0)

    def report(self) -> None:
        """What has grown since the last look."""
        now, seen = self._counters(), self._seen
        for kind, sentence in _KINDS.items():
            if now.get(kind, 0) != seen[kind]:
                _log.warning("%d %s", now[kind] - seen[kind], sentence)
                seen[kind] = now[kind]
