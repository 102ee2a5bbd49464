"""Levels of log lines, by the names that `system.logging.level` takes."""

from __future__ import annotations

import logging
from typing import Final

TRACE: Final = 5
LEVELS: Final = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


def set_level(name: str) -> None:
    """For all lines of this process from now on."""
    logging.getLogger().setLevel(LEVELS[name])
