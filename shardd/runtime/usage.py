"""What processes and the machine use, as the kernel tells it in /proc. OSError when a process is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import msgspec

_PROC: Final = Path("/proc")
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# places in /proc/<pid>/stat behind the name, which may hold anything
_USER_TICKS: Final = 11
_SYSTEM_TICKS: Final = 12
_THREADS: Final = 17


class Usage(msgspec.Struct, frozen=True):
    """One process at one moment. `cpu_percent`: of one CPU, since the last question."""

    cpu_percent: float
    memory_bytes: int
    read_bytes: int
    written_bytes: int
    threads_count: int


class ProcessUsage:
    """Follows one process. Its CPU time is counted from here on."""

    def __init__(self, pid: int) -> None:
        self._directory = _PROC / str(pid)
        self._asked_s = time.monotonic()
        self._cpu_s = self._cpu_of(self._stat())

    def read(self) -> Usage:
        stat, disk = self._stat(), _numbers(self._directory / "io")
        now, cpu_s = time.monotonic(), self._cpu_of(stat)
        passed_s, used_s = now - self._asked_s, cpu_s - self._cpu_s
        self._asked_s, self._cpu_s = now, cpu_s
        return Usage(
            cpu_percent=round(100 * used_s / passed_s, 1) if passed_s > 0 else 0.0,
            memory_bytes=int((self._directory / "statm").read_text().split()[1]) * _PAGE_BYTES,
            read_bytes=disk["read_bytes"],
            written_bytes=disk["write_bytes"],
            threads_count=int(stat[_THREADS]),
        )

    def _stat(self) -> list[str]:
        return (self._directory / "stat").read_text(errors="replace").rpartition(")")[2].split()

    @staticmethod
    def _cpu_of(stat: list[str]) -> float:
        return (int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS])) / _TICKS_PER_SECOND


class MachineUsage:
    """All CPUs together, since the last question."""

    def __init__(self) -> None:
        self._busy, self._all = _machine_ticks()

    def cpu_percent(self) -> float:
        busy, total = _machine_ticks()
        used, passed = busy - self._busy, total - self._all
        self._busy, self._all = busy, total
        return round(max(0.0, 100 * used / passed), 1) if passed > 0 else 0.0


def memory_bytes() -> tuple[int, int]:
    """(in all, available)."""
    memory = _numbers(_PROC / "meminfo")
    return memory["MemTotal"] * 1024, memory["MemAvailable"] * 1024


def _machine_ticks() -> tuple[int, int]:
    """(busy, all) of all CPUs. Time of guests is in that of users already."""
    user, nice, system, idle, waiting, *others = (int(each) for each in _first_line(_PROC / "stat").split()[1:9])
    busy = user + nice + system + sum(others)
    return busy, busy + idle + waiting


def _first_line(file: Path) -> str:
    with file.open() as lines:
        return lines.readline()


def _numbers(file: Path) -> dict[str, int]:
    """Of a file with a name and a number on each line."""
    pairs = (line.partition(":") for line in file.read_text().splitlines())
    return {name: int(value.split()[0]) for name, _, value in pairs}
