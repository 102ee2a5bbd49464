"""What binds the life of a process to that of its supervisor."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def ignore_signals() -> None:
    """The supervisor decides when its processes end: a SIGTERM for the whole control group must not cut the order
    short."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def die_with(supervisor_pid: int) -> None:
    """The kernel kills this process when its supervisor dies; ends it now when that happened already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != supervisor_pid:
        os._exit(1)
