"""How much the kernel lets a process of ours compute before another one that has just woken up (docs/adr/0086)."""

from __future__ import annotations

import ctypes
import logging
import os
import struct
from typing import Final

LONG_SLICE_NS: Final = 20_000_000
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")  # struct sched_attr: size, policy, flags, nice, priority, runtime, ...
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
_log = logging.getLogger(__name__)


def ask_for_long_slices() -> bool:
    """Of the calling thread, and of those that it starts later: it gives way to everybody with shorter ones as soon as
    he wakes up. Its share of the CPU stays that of its priority. Linux 6.12 and later; earlier ones take the number
    and go on as before. False: not taken."""
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, LONG_SLICE_NS, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, wanted, 0) == 0:
        return True
    _log.info("no long slices: %s", os.strerror(ctypes.get_errno()))
    return False
