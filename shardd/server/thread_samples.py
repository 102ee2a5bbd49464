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
        loop = read_thread(f"/proc/{pid}/task/{pid}")
        enough = not everything and loop.state in "DRTt"
        names = [] if enough else os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - many, often
    except (OSError, ValueError, IndexError):
        return None
    others = {}
    for name in names:
        try:
            if name != str(pid):
                others[int(name)] = read_thread(f"/proc/{pid}/task/{name}")
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    return WorkerSample(loop, others, beat, activity == _native.ACTIVITY_ENGINE)


def read_thread(directory: str) -> ThreadSample:
    """`directory`: that of the thread in /proc. Raises OSError, ValueError, IndexError when it ends meanwhile."""
    stat = _read(f"{directory}/stat").rpartition(b")")[2].split()  # the name before may hold anything
    state = stat[0].decode()
    try:
        cpu_ns, _, runs = map(int, _read(f"{directory}/schedstat").split())
    except (OSError, ValueError):  # a kernel without it: ticks tell less exactly
        ticks = int(stat[11]) + int(stat[12])
        cpu_ns, runs = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK"), ticks
    waits_in = ""
    if state in "SD":
        try:
            waits_in = _read(f"{directory}/wchan").decode()
        except OSError:
            waits_in = ""  # needs the right to trace
    return ThreadSample(state, cpu_ns, runs, waits_in)


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
