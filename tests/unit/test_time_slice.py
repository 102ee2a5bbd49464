"""Processes that give way ask the kernel for long slices (docs/adr/0086-doors-give-way.md)."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys

import pytest

from shardd.runtime.time_slice import LONG_SLICE_NS

_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_PROGRAM = """
import os
from shardd.doors.process import NICE, give_way
from tests.unit.test_time_slice import own_attributes
before = os.nice(0)
give_way()
policy, nice, slice_ns = own_attributes()
print(policy == os.SCHED_OTHER, nice == min(19, before + NICE) == os.nice(0), slice_ns)
"""
_SILENT_PROGRAM = """
import os
from shardd.runtime.time_slice import ask_for_long_slices
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
print(ask_for_long_slices(), os.sched_getscheduler(0) == os.SCHED_BATCH)
"""


def own_attributes() -> tuple[int, int, int]:
    """(policy, nice, slice in nanoseconds) of this thread, as the kernel says."""
    held = ctypes.create_string_buffer(_ATTRIBUTES.size)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SCHED_GETATTR[os.uname().machine], 0, held, _ATTRIBUTES.size, 0) != 0:
        raise OSError(ctypes.get_errno(), "sched_getattr")
    _, policy, _, nice, _, slice_ns, _, _ = _ATTRIBUTES.unpack(held.raw)
    return policy, nice, slice_ns


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(os.uname().machine not in _SCHED_GETATTR, reason="the number of the call is not known here")
def test_a_door_gives_way_with_its_priority_and_with_long_slices() -> None:
    priority_kept, nice, slice_ns = run(_PROGRAM).split()
    assert (priority_kept, nice) == ("True", "True")
    if tuple(int(each) for each in os.uname().release.split(".")[:2]) >= (6, 12):
        assert int(slice_ns) == LONG_SLICE_NS


def test_who_has_another_policy_keeps_it() -> None:
    assert run(_SILENT_PROGRAM) == "False True"
