"""`rebalance-1000x100`, `rebalance-20000x100`: what shard 0 spends when a member joins or leaves a group of 100 members
over so many partitions.

The time is that of the whole worker process (CPU time of all its threads, from the kernel), so it holds the hub, the
bus, and what the worker does for members of its own; and beside it the decision alone, in the state machine.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from bench.lines import REBALANCES
from bench.targets import Shardd
from bench.wire import Wire
from shardd.groups import GroupMachine

MEMBERS = 100
CREATED_AT_ONCE = 1000


@dataclass(frozen=True)
class Result:
    """Milliseconds of each round: shard 0 at the join of the last member and at the leave of one; the machine alone."""

    name: str
    join_ms: list[float]
    leave_ms: list[float]
    machine_ms: list[float]

    def __str__(self) -> str:
        worst = max(statistics.median(self.join_ms), statistics.median(self.leave_ms))
        words = ", ".join(
            f"{name} {statistics.median(values):.1f} [{min(values):.1f}..{max(values):.1f}] ms"
            for name, values in (("join", self.join_ms), ("leave", self.leave_ms), ("decision alone", self.machine_ms))
        )
        target_ms = REBALANCES[self.name][1]
        verdict = "met" if worst < target_ms else "NOT met"
        return f"{self.name}: time of shard 0: {words}; < {target_ms:.0f} ms: {verdict}"


def cpu_ms(pid: int) -> float:
    """CPU time that the threads of a process have used."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ended
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e6


def machine_ms(partitions: int) -> float:
    """The slower one of a join and a leave, decided and carried out by the state machine alone."""
    group = GroupMachine(partitions)
    for number in range(MEMBERS - 1):
        _join(group, f"m{number}")
    began = time.perf_counter()
    _join(group, "last")
    joined = time.perf_counter()
    group.leave("last", 0)
    return max(joined - began, time.perf_counter() - joined) * 1000


def _join(group: GroupMachine, key: str) -> None:
    """Nobody has polled: every partition that is to move moves."""
    group.join(key, 0)
    for member in group.members():
        group.complete_all(member.key, list(member.pending))


def measure(shardd: Shardd, name: str, rounds: int) -> Result:
    """Joins and leaves of the last of 100 members on a running server. WireError, OSError, RuntimeError."""
    pid, partitions = shardd.worker_pid(0), REBALANCES[name][0]
    result = Result(name, [], [], [])
    with Wire(shardd.port) as root, contextlib.ExitStack() as end:
        stream = root.create_stream("rebalance")
        root.create_topic(stream, "bench", CREATED_AT_ONCE)
        for _ in range(partitions // CREATED_AT_ONCE - 1):
            root.create_partitions(stream, CREATED_AT_ONCE)
        root.create_group(stream, "bench")
        members = [end.enter_context(Wire(shardd.port)) for _ in range(MEMBERS)]
        for member in members[1:]:
            member.join_group(stream)
        for _ in range(rounds):
            before = cpu_ms(pid)
            members[0].join_group(stream)
            joined = cpu_ms(pid)
            members[0].leave_group(stream)
            result.join_ms.append(joined - before)
            result.leave_ms.append(cpu_ms(pid) - joined)
            result.machine_ms.append(machine_ms(partitions))
        root.delete_stream(stream)
    return result
