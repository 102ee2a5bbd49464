"""The newest log lines of one process, in memory for snapshots (docs/protocol/system.md#get-snapshot): the server logs
to stderr only."""

from __future__ import annotations

import logging
from collections import deque
from datetime import UTC, datetime
from typing import Final

LINES_MAX: Final = 1000
LINE_CHARACTERS_MAX: Final = 1000


class RecentLogs(logging.Handler):
    """A handler of the root logger; what the level of the logs lets through is what it sees. Any thread."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source
        self._lines: deque[str] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        self._lines.append(f"{moment} {record.levelname} {self._source} {message}"[:LINE_CHARACTERS_MAX])

    def lines(self) -> list[str]:
        """Oldest first."""
        return list(self._lines.copy())  # a copy is atomic, a plain iteration is not

    def install(self) -> None:
        logging.getLogger().addHandler(self)

    def remove(self) -> None:
        logging.getLogger().removeHandler(self)


def recent_lines() -> list[str]:
    """Of this process, oldest first; none when nothing is installed."""
    return [line for each in logging.getLogger().handlers if isinstance(each, RecentLogs) for line in each.lines()]
