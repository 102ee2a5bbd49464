"""Tells a service manager how the server is (sd_notify over $NOTIFY_SOCKET)."""

from __future__ import annotations

import logging
import os
import socket

_log = logging.getLogger(__name__)


def notify_service_manager(state: str) -> None:
    """Sends "READY=1" or "STOPPING=1"; does nothing without $NOTIFY_SOCKET."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
            notifier.sendto(state.encode(), address)
    except OSError as error:
        _log.warning("cannot notify the service manager: %s", error.strerror)
