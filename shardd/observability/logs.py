"""Log lines: for people `2026-11-21T09:07:00.123Z INFO shard-0 message`, for machines one JSON object per line.

Every process of the server writes whole lines to the same stderr; `source` names the process (supervisor, shard-0).
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

import msgspec

from shardd.runtime.log_levels import TRACE, set_level

_NAMES: Final = {TRACE: "TRACE", logging.WARNING: "WARN", logging.CRITICAL: "ERROR"}


def set_up_logs(source: str, level: str, line_format: str, stream: TextIO | None = None) -> None:
    """Replaces the handlers of the root logger. `level` and `line_format` as `system.logging.*`; default stderr."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter(source) if line_format == "json" else TextFormatter(source))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    set_level(level)
    logging.raiseExceptions = False  # a closed stderr must not end a process


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _level(record: logging.LogRecord) -> str:
    return _NAMES.get(record.levelno, record.levelname)


class TextFormatter(logging.Formatter):
    """One line for each record; a traceback follows on lines of its own."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        # a name that a client chose may hold line breaks: they must not forge a line
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        line = f"{_timestamp(record)} {_level(record)} {self._source} {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """Keys: time, level, source, logger, message, and traceback where there is one."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _timestamp(record),
            "level": _level(record),
            "source": self._source,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
