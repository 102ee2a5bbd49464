"""Settings that are read again while the server runs: what changes at once, and what waits for a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from shardd.config.keys import KEYS, value_of
from shardd.config.live import LEVEL, LIMITS, LIVE
from shardd.config.loader import ConfigError
from shardd.config.schema import Settings
from shardd.runtime.control_messages import SupervisorMessage
from shardd.runtime.log_levels import LEVELS, set_level
from shardd.server.doors import DoorKeeper
from shardd.server.worker_process import WorkerProcess

_log = logging.getLogger(__name__)


def read_again(
    current: Settings, read: Callable[[], Settings], workers: Sequence[WorkerProcess], doors: DoorKeeper
) -> Settings:
    """The settings from now on, of which all processes were told. `current` when nothing has changed."""
    try:
        found = read()
    except ConfigError as error:
        _log.error("the settings stay as they were: %s", "; ".join(error.problems))
        return current
    changed = [key.path for key in KEYS if value_of(current, key) != value_of(found, key)]
    if waiting := [path for path in changed if path not in LIVE]:
        _log.warning("changed settings that need a restart of the server: %s", ", ".join(waiting))
    if LEVEL in changed:
        current = _use_level(current, found.system.logging.level, workers, doors)
    else:
        _log.info("the settings were read again, the log level is as it was")
    return _use_limits(current, found, workers) if LIMITS.intersection(changed) else current


def _use_level(current: Settings, now: str, workers: Sequence[WorkerProcess], doors: DoorKeeper) -> Settings:
    """Told while the level before or the one from now on lets it through."""
    before = current.system.logging.level
    if LEVELS[now] < LEVELS[before]:
        set_level(now)
    _log.info("the log level is %s, it was %s", now, before)
    set_level(now)
    logs = replace(current.system.logging, level=now)
    for worker in workers:
        worker.send(SupervisorMessage(log_level=now))
    doors.use_logs(logs)
    return replace(current, system=replace(current.system, logging=logs))


def _use_limits(current: Settings, found: Settings, workers: Sequence[WorkerProcess]) -> Settings:
    """The limits of connections, of those that are open too."""
    old, new = current.server, found.server
    limits = replace(new, connections_max=old.connections_max, login_attempts_max=old.login_attempts_max)
    for worker in workers:
        worker.send(SupervisorMessage(limits=limits))
    _log.info("limits of connections are as they were read")
    return replace(current, server=limits)
