"""Files of a data directory of Apache Iggy that the start looks for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

STATE_DIRECTORY: Final = "state"
LOG_NAME: Final = "log"
LOG_KEPT: Final = "log.imported"


def iggy_log(data: Path) -> Path:
    """Where the state log of an Iggy directory lies."""
    return data / STATE_DIRECTORY / LOG_NAME
