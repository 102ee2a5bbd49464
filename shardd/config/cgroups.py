"""Limits that the control groups of this process set (v1 and v2): CPU quota and memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc/self")
_ROOT: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = float("inf")
_MEMORY_UNLIMITED_V1: Final = 1 << 60  # v1 writes "no limit" as the largest number of whole pages

_Read = Callable[[Path], float]


def cpu_quota(proc: Path = _PROC, root: Path = _ROOT) -> float:
    """CPUs that the control groups of this process pay for; infinite without a quota."""
    return _smallest(proc, root, "cpu", _quota_v2, _quota_v1)


def memory_limit_bytes(proc: Path = _PROC, root: Path = _ROOT) -> float:
    """Memory, page cache and shared memory included, that the control groups allow; infinite without a limit."""
    return _smallest(proc, root, "memory", _memory_v2, _memory_v1)


def _smallest(proc: Path, root: Path, controller: str, read_v2: _Read, read_v1: _Read) -> float:
    limit = _UNLIMITED
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return limit
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            bases, read = [root, root / "unified"], read_v2
        elif controller in controllers.split(","):
            bases, read = [root / controller, root / controllers], read_v1
        else:
            continue
        for base in bases:
            limit = min(limit, _upwards(base, path, read))
    return limit


def _upwards(base: Path, path: str, read: _Read) -> float:
    """The smallest limit of the group and its parents. Inside a container the path may name a group of the host that is
    not visible: then only the mounted root counts."""
    group = base / path.lstrip("/")
    limit = _UNLIMITED
    for directory in (group, *group.parents):
        if not directory.is_relative_to(base):
            break
        limit = min(limit, read(directory))
    return limit


def _quota_v2(directory: Path) -> float:
    try:
        limit, period = (directory / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return _UNLIMITED
    return _UNLIMITED if limit == "max" else int(limit) / int(period)


def _quota_v1(directory: Path) -> float:
    try:
        limit = int((directory / "cpu.cfs_quota_us").read_text())
        period = int((directory / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return _UNLIMITED
    return _UNLIMITED if limit <= 0 or period <= 0 else limit / period


def _memory_v2(directory: Path) -> float:
    try:
        text = (directory / "memory.max").read_text().strip()
        return _UNLIMITED if text == "max" else int(text)
    except (OSError, ValueError):
        return _UNLIMITED


def _memory_v1(directory: Path) -> float:
    try:
        limit = int((directory / "memory.limit_in_bytes").read_text())
    except (OSError, ValueError):
        return _UNLIMITED
    return _UNLIMITED if limit >= _MEMORY_UNLIMITED_V1 else limit
