"""What a request costs, by stage: `python -m bench.stages`. It needs root and `perf`.

Workers are sampled while a line of `make bench` runs on them (`perf record -e cpu-clock`: virtual machines have no
counters). A sample belongs to the first stage of STAGES that one of its functions matches, from the innermost one on;
the CPU time of a request, which the kernel counts, is dealt out by the shares. The load client's own work is not in it,
but loopback is: what a packet costs on its way to the client is paid by the sender.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from bench.lines import Line, select
from bench.measure import FULL, Needs, run_line
from bench.targets import Shardd

STAGES: Final = (
    ("logins, once for a connection", r"argon2"),
    ("checksum", r"XXH|xxh3|checksum|libxxhash"),
    ("read from the page cache", r"vfs_read|preadv|filemap_read|filemap_get_read|ext4_file_read|xfs_file_.*read"),
    ("write into the page cache", r"vfs_write|vfs_iter_write|pwritev|ext4_|xfs_|iomap_|filemap_"),
    ("receive", r"sock_recvmsg|tcp_recvmsg|io_recv|recvfrom"),
    ("send", r"sock_sendmsg|tcp_|io_send\b|sendto|sendmsg|napi|net_rx|sock_def|softirq"),
    ("sleep and wake", r"schedule|io_cqring_wait|epoll_wait|eventfd|futex|try_to_wake_up"),
    ("ring, other calls", r"io_uring|io_submit|io_issue|do_syscall_64|entry_SYSCALL|syscall"),
    ("check and stamp the batch", r"^(batch|record|id_window)_"),
    ("append, index, statistics", r"^(partition|segment|index|offsets|commit|file_cache|sync|room|producer)"),
    ("find and window the records", r"^(reads?|output|unpacked|segment_reader)_"),
    ("frames and requests", r"^(conn|net|classic|window|dialect|stream|legacy|iggy09|frame)"),
    ("routes, rights, levels", r"^(route|execute|core|session|caller|once|seat|send_limits|fence)"),
    ("other shards", r"^(links|post|forward|serve|peers|handover)"),
    ("memory", r"^(pool_|(__)?mem(cpy|move|set))|page_fault|unknown. .*/libc[.]so"),
    ("loop", r"^(engine|io|ring|complete|work|begin_pass|turn_watch|clock|run_timers|__vdso)"),
)
OTHER: Final = "Python and the rest"
LINES: Final = ("send-1x100-c32", "send-10x100-c8", "send-100x1000-c8", "poll-10x100-c8", "poll-100x1000-c8")
_HERTZ: Final = 4_000
_COMPILED: Final = [(name, re.compile(pattern)) for name, pattern in STAGES]


def stage_of(functions: list[str]) -> str:
    """Of a sample; the innermost function is the first."""
    for function in functions:
        for name, pattern in _COMPILED:
            if pattern.search(function):
                return name
    return OTHER


def samples(script: str) -> Iterator[list[str]]:
    """Functions of each sample in the output of `perf script -F ip,sym,dso`: "name (file)"."""
    for block in script.split("\n\n"):
        functions = [line.split(maxsplit=1)[1].strip() for line in block.splitlines() if len(line.split()) > 1]
        if functions:
            yield functions


def shares_of(script: str) -> dict[str, float]:
    """Of all samples, by stage."""
    counts = Counter(stage_of(each) for each in samples(script))
    return {name: count / counts.total() for name, count in counts.items()}


@contextlib.contextmanager
def _recording(target: Shardd, file: Path) -> Iterator[None]:
    """Samples the workers into `file`."""
    supervisor = psutil.Process(target.process_id)
    pids = [str(each.pid) for each in supervisor.children() if "shard " in "".join(each.cmdline())]
    command = [
        "perf",
        "record",
        "-q",
        "-e",
        "cpu-clock",
        "-F",
        str(_HERTZ),
        "-g",
        "-o",
        str(file),
        "-p",
        ",".join(pids),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as perf:
        time.sleep(0.3)
        try:
            yield
        finally:
            perf.send_signal(signal.SIGINT)
            perf.wait(60)


def sampled(target: Shardd, line: Line, file: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The load client's answer, and the shares. What was stored for a poll is not in them."""
    answer, _ = run_line(target, line, FULL, Needs(FULL.touch_bytes), lambda: _recording(target, file))
    script = subprocess.run(
        ["perf", "script", "-i", str(file), "-F", "ip,sym,dso"], capture_output=True, text=True, check=True, timeout=300
    )
    return answer, shares_of(script.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.stages", description=__doc__)
    parser.add_argument("--lines", nargs="*", default=list(LINES))
    parser.add_argument("--cpus", type=int, default=2)
    options = parser.parse_args()
    try:
        lines = select(options.lines)
    except ValueError as error:
        parser.error(str(error))
    if not lines or any(line.mode == "both" for line in lines):
        parser.error(f"{' '.join(options.lines)}: lines of sends and lines of polls are sampled, nothing else")
    found: dict[str, tuple[float, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="shardd-stages-") as base:
        target = Shardd(Path(base) / "server", sorted(os.sched_getaffinity(0))[: options.cpus], None, {})
        try:
            for line in lines:
                answer, shares = sampled(target, line, Path(base) / "perf.data")
                found[line.name] = (answer["cpu_us_per_request"], shares)
        finally:
            target.stop()
    names = [name for name, _ in STAGES] + [OTHER]
    print("| us of CPU for a request | " + " | ".join(found) + " |")
    print("|---" * (len(found) + 1) + "|")
    for name in names:
        print(
            f"| {name} | " + " | ".join(f"{cpu * shares.get(name, 0.0):.2f}" for cpu, shares in found.values()) + " |"
        )
    print("| all | " + " | ".join(f"{cpu:.2f}" for cpu, _ in found.values()) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
