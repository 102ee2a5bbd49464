"""How a process that has time keeps out of the way of those that have not. Imports nothing of shardd: it comes first.

A low priority does not do it: a kernel without full preemption lets a running process finish its slice (some
milliseconds) before it runs one that has just woken up, however nice it is. Only SCHED_IDLE gives way at once, but not
inside a call of the kernel, and caches are cold afterwards. So this process is in the idle class and works a tenth of
the time, in pieces so short that who waits for one does not notice.
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

FULL_SPEED: Final = "--full-speed"  # the option of those who are in a hurry
WORK_S: Final = 0.0001
REST_S: Final = 0.0009
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
_IOPRIO_IDLE: Final = 3 << 13


@contextmanager
def giving_way() -> Iterator[None]:
    """The main thread works a tenth of the time in short pieces, in the idle class of CPU and disk (which it keeps).
    What the host refuses is left. Takes SIGALRM."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, _IOPRIO_IDLE)
    signal.signal(signal.SIGALRM, _rest)
    signal.setitimer(signal.ITIMER_REAL, WORK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, _nothing)  # for the one that is on its way: ignored, Python would tell of it


def _nothing(_signal: int, _frame: object) -> None:
    pass


def _rest(_signal: int, _frame: object) -> None:
    time.sleep(REST_S)
    signal.setitimer(signal.ITIMER_REAL, WORK_S)
