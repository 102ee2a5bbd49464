"""Samples of a worker's threads from /proc, for the supervisor. What cannot be read excuses nobody."""

from __future__ import annotations

import os

from shardd.server.standstill import ThreadSample, WorkerSample


def sample_worker(pid: int, shared_fd: int, shard: int, *, everything: bool) -> WorkerSample | None:
    """The threads of a worker's process now; None when it is gone or /proc does not tell. Without `everything` the
    others are left out where the loop's own state says enough."""
    from shardd.engine import _native  # the supervisor's modules can be imported without the engine

    try:
        beat, activity = _native.worker_beat(shared_fd, shard)
        loop = read_thread(pid)
        enough = not everything and loop.state in "DRTt"
        names = [] if enough else os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - many, often
    except (OSError, ValueError, IndexError):
        return None
    others = {}
    for name in names:
        try:
            if name != str(pid):
                others[int(name)] = read_thread(int(name))
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    return WorkerSample(loop, others, beat, activity == _native.ACTIVITY_ENGINE)


def read_thread(number: int) -> ThreadSample:
    """Raises OSError, ValueError, IndexError when the thread ends meanwhile.

    Its files are read below `/proc/<thread>`. Below `/proc/<process>/task/<thread>` the kernel would remember each of
    them with the process, and whoever waits for its end would turn in circles in the kernel until the last of its
    threads has taken its own ones away: 55 ms of CPU for each server that stops beside others."""
    directory = f"/proc/{number}"
    stat = _fields(directory)
    state = stat[0].decode()
    try:
        cpu_ns, _, runs = map(int, _read(f"{directory}/schedstat").split())
    except (OSError, ValueError):  # a kernel without it: ticks tell less exactly
        stat = _fields(f"{directory}/task/{number}")  # of the thread alone
        ticks = int(stat[11]) + int(stat[12])
        cpu_ns, runs = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK"), ticks
    waits_in = ""
    if state in "SD":
        try:
            waits_in = _read(f"{directory}/wchan").decode()
        except OSError:
            waits_in = ""  # needs the right to trace
    return ThreadSample(state, cpu_ns, runs, waits_in)


def _fields(directory: str) -> list[bytes]:
    """Of `stat`, from the state on: the name before may hold anything."""
    return _read(f"{directory}/stat").rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
