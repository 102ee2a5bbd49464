"""Why a worker gives no sign of life: a judgement of two samples of its threads, without any clock, file or process.

A worker that stopped, loops, or sleeps for a reason of its own is helped by a new one. A worker that waits for its
device, or that gets no CPU, is not: its successor would wait for the same, and its connections would be lost.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

BUSY_SHARE: Final = 0.1  # of one CPU: a process that gets less while a thread of it could run is kept from running
# where the kernel lets somebody sleep interruptibly (S) for a file: the wait of FUSE, 9p, NFS, CIFS, Ceph
_FILE_WAITS: Final = ("request_wait_answer", "fuse_", "__fuse", "p9_client", "rpc_", "nfs", "cifs", "wait_for_response",
                      "ceph_")  # fmt: skip


class Cause(enum.Enum):
    """What a worker cannot be blamed for."""

    DEVICE = "device"
    CPU = "cpu"


class ThreadSample(NamedTuple):
    """One thread at one moment. `state`: the letter of /proc; `runs`: how often it was given a CPU; `waits_in`: the
    function of the kernel where it sleeps, "" when that cannot be read."""

    state: str
    cpu_ns: int
    runs: int
    waits_in: str = ""

    @property
    def waits_for_file(self) -> bool:
        return self.state == "D" or (self.state == "S" and self.waits_in.startswith(_FILE_WAITS))


class WorkerSample(NamedTuple):
    """The loop thread and all others (disk threads, workers of io_uring, helper threads) by thread id.

    `beat`: passes of the loop; `in_engine`: the loop is in the engine, where it sleeps for nothing but a file.
    """

    loop: ThreadSample
    others: Mapping[int, ThreadSample]
    beat: int
    in_engine: bool


def stuck_threads(before: WorkerSample, after: WorkerSample) -> list[ThreadSample]:
    """Threads beside the loop that have waited for a file all the time between the two samples."""
    return [
        thread
        for number, thread in after.others.items()
        if thread.waits_for_file
        and (earlier := before.others.get(number)) is not None
        and earlier.waits_for_file
        and earlier.runs == thread.runs
    ]


def excuse(before: WorkerSample, after: WorkerSample, elapsed_s: float) -> tuple[Cause, float] | None:
    """The cause of a silence and for how many of the `elapsed_s` between the samples it counts; None: no excuse."""
    loop = after.loop
    if loop.state in "Tt":
        return None
    if loop.state == "D":
        return Cause.DEVICE, elapsed_s
    if loop.state == "R":
        ran_s = (loop.cpu_ns - before.loop.cpu_ns) / 1e9
        return (Cause.CPU, elapsed_s - ran_s) if elapsed_s > ran_s else None
    one_call = before.beat == after.beat and before.in_engine and after.in_engine
    in_file = one_call and loop.state == "S" and not loop.waits_in.startswith("futex")  # a lock is not a file
    if loop.waits_for_file or in_file or stuck_threads(before, after):
        return Cause.DEVICE, elapsed_s
    if _is_kept_from_running(before, after, elapsed_s):
        return Cause.CPU, elapsed_s
    return None


def _is_kept_from_running(before: WorkerSample, after: WorkerSample, elapsed_s: float) -> bool:
    """Somebody for whom the loop may wait (the lock of the interpreter) could run and does not get to it."""
    ready = {number for number, thread in before.others.items() if thread.state == "R"}
    if not any(thread.state == "R" and number in ready for number, thread in after.others.items()):
        return False
    ran_ns = after.loop.cpu_ns - before.loop.cpu_ns
    for number, thread in after.others.items():
        earlier = before.others.get(number)
        ran_ns += thread.cpu_ns - (earlier.cpu_ns if earlier is not None else 0)
    return ran_ns / 1e9 < BUSY_SHARE * elapsed_s
