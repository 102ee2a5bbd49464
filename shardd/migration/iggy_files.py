"""Files of a data directory of Apache Iggy that the start looks for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

STATE_DIRECTORY: Final = "state"
LOG_NAME: Final = "log"
LOG_KEPT: Final = "log.imported"
_OF_LATER_SERVERS: Final = ("metadata/journal.wal", "metadata/snapshot.bin")  # instead of it, since 0.9


def file_of_a_later_server(data: Path) -> Path | None:
    """A file that only Apache Iggy 0.9 and later make."""
    found = (data / name for name in _OF_LATER_SERVERS)
    return next((path for path in found if os.path.lexists(path)), None)


def iggy_log(data: Path) -> Path:
    """Where the state log of an Iggy directory lies."""
    return data / STATE_DIRECTORY / LOG_NAME
