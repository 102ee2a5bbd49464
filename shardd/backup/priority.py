"""How a process that has time keeps out of the way of those that have not. Imports nothing of shardd: it comes first.

A low priority alone does not do it: a kernel without full preemption lets a running process finish its slice (some
milliseconds) before it runs one that has just woken up, whatever its priority, and with a sync in its way a request
waits for several of them. So this process rests after every half millisecond.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

WORK_S: Final = 0.0005
REST_S: Final = 0.0005
_NICE: Final = 19
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
_IOPRIO_IDLE: Final = 3 << 13


@contextmanager
def giving_way() -> Iterator[None]:
    """The main thread works half of the time in short pieces, with the lowest priority for CPU and disk (which it
    keeps). What the host refuses is left. Takes SIGALRM."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, _IOPRIO_IDLE)
    signal.signal(signal.SIGALRM, _rest)
    signal.setitimer(signal.ITIMER_REAL, WORK_S)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # also for the one that is on its way: it would end the process


def _rest(_signal: int, _frame: object) -> None:
    time.sleep(REST_S)
    signal.setitimer(signal.ITIMER_REAL, WORK_S)
