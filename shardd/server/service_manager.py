"""Tells a service manager how the server is (sd_notify over $NOTIFY_SOCKET)."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

_log = logging.getLogger(__name__)
_DIGITS_MAX: Final = 20  # of microseconds in 64 bits


def notify_service_manager(state: str, *, wait: bool = True) -> None:
    """Sends "READY=1" or "STOPPING=1"; does nothing without $NOTIFY_SOCKET. `wait`: for room in the manager's queue."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
            notifier.sendto(state.encode(), 0 if wait else socket.MSG_DONTWAIT, address)
    except OSError as error:
        _log.warning("cannot notify the service manager: %s", error.strerror or error)


class Watchdog:
    """Says at each look of the supervisor that it lives, twice in the time that the service manager allows.

    The supervisor touches no device in its loop, and says it whatever its workers do: they are its own to replace, and
    a device that stands still is no reason to end the server (docs/adr/0024-a-device-that-stands-still.md).
    """

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        allowed_us = environment.get("WATCHDOG_USEC", "")
        meant = environment.get("WATCHDOG_PID", "") in ("", str(pid))
        is_number = allowed_us.isascii() and allowed_us.isdecimal() and len(allowed_us) <= _DIGITS_MAX
        self._interval_s = int(allowed_us) / 2e6 if meant and is_number else 0.0
        self._due = 0.0

    def look(self, now: float) -> None:
        if self._interval_s > 0.0 and now >= self._due:
            self._due = now + self._interval_s
            notify_service_manager("WATCHDOG=1", wait=False)
