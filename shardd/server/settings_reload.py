"""Settings that are read again while the server runs: what changes at once, and what waits for a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from shardd.config.keys import KEYS, value_of
from shardd.config.loader import ConfigError
from shardd.config.schema import Settings
from shardd.runtime.log_levels import LEVELS, set_level

LEVEL: Final = "system.logging.level"  # the one that changes at once
_log = logging.getLogger(__name__)


def read_again(current: Settings, read: Callable[[], Settings]) -> Settings | None:
    """The settings from now on. None: they are as they were, and the log says why."""
    try:
        found = read()
    except ConfigError as error:
        _log.error("the settings stay as they were: %s", "; ".join(error.problems))
        return None
    changed = [key.path for key in KEYS if value_of(current, key) != value_of(found, key)]
    if waiting := [path for path in changed if path != LEVEL]:
        _log.warning("changed settings that need a restart of the server: %s", ", ".join(waiting))
    if LEVEL not in changed:
        _log.info("the settings were read again, the log level is as it was")
        return None
    _use_level(current.system.logging.level, found.system.logging.level)
    logs = replace(current.system.logging, level=found.system.logging.level)
    return replace(current, system=replace(current.system, logging=logs))


def _use_level(before: str, now: str) -> None:
    """Told while either of them lets it through."""
    if LEVELS[now] < LEVELS[before]:
        set_level(now)
    _log.info("the log level is %s, it was %s", now, before)
    set_level(now)
