"""Measures the processes of servers, and keeps the samples for the CSV and as series."""

from __future__ import annotations

import csv
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from tests.soak.series import Series
from tests.support.server import Server

PROCESS_QUANTITIES = ("rss", "anonymous", "threads")
SEGMENT_SUFFIXES = (".log", ".blocks", ".index", ".manifest")
WARM_UP_S = 60.0  # of a process: caches and pools fill
P99_SAMPLES_MIN = 100
Row = tuple[float, str, str, int, float]  # seconds, who, quantity, process id, value


def directory_bytes(root: Path) -> int:
    """What the files occupy; those that vanish meanwhile count as nothing."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                total += (Path(folder) / name).lstat().st_blocks * 512
            except OSError:
                continue
    return total


def _status(pid: int) -> dict[str, int]:
    """rss and anonymous in bytes, threads. OSError when it is gone."""
    wanted = {"VmRSS:": ("rss", 1024), "RssAnon:": ("anonymous", 1024), "Threads:": ("threads", 1)}
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, *rest = line.split()
        if name in wanted:
            quantity, unit = wanted[name]
            found[quantity] = int(rest[0]) * unit
    return found


def descriptors(pid: int) -> tuple[int, int]:
    """Of files of segments that exist, and all others. The log keeps the first ones open on purpose, as many as its
    budget allows (native/src/log/file_cache.h): how many differs with what is read. One of a segment that is gone is
    among the others, and so is what anybody forgets to close. OSError."""
    segments = others = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
        kept = target.endswith(SEGMENT_SUFFIXES) and "/partitions/" in target
        segments, others = segments + kept, others + (not kept)
    return segments, others


def _processes(server: Server) -> Iterator[tuple[str, int]]:
    yield "supervisor", server.pid
    for shard, pid in sorted(server.running_workers().items()):
        yield f"worker {shard}", pid


class Sampler:
    """One call of `sample` measures one server. Rows grow by about ten a sample and server."""

    def __init__(self, warm_up_s: float = WARM_UP_S) -> None:
        self.began = time.monotonic()
        self.warm_up_s = warm_up_s
        self.rows: list[Row] = []
        self.series: dict[tuple[str, str], Series] = {}

    def sample(
        self,
        name: str,
        server: Server,
        answers_s: Sequence[float],
        *,
        disturbed: bool,
        control_s: Sequence[float] = (),
    ) -> None:
        """`answers_s`: of the SENDs since the last sample; with `disturbed` (a kill) their p99 is no measurement.
        `control_s`: of a control (control.py); then the p99 of the SENDs counts as a multiple of its p99."""
        now = time.monotonic() - self.began
        warm = now >= self.warm_up_s
        fds = segment_fds = 0
        for role, pid in _processes(server):
            try:
                values = _status(pid)
                of_segments, own_fds = descriptors(pid)
                age_s = time.time() - psutil.Process(pid).create_time()
            except (OSError, psutil.Error):
                disturbed = True  # it ends just now
                continue
            fds, segment_fds = fds + own_fds, segment_fds + of_segments
            self._add(now, f"{name} {role}", "own fds", pid, own_fds, False)
            for quantity in PROCESS_QUANTITIES:
                self._add(now, f"{name} {role}", quantity, pid, values[quantity], age_s >= self.warm_up_s)
        # connections go from worker to worker when one is killed: together the processes have as many as there are
        self._add(now, name, "fds", 0, fds, warm and not disturbed)
        self._add(now, name, "segment fds", 0, segment_fds, False)
        if len(answers_s) >= P99_SAMPLES_MIN:
            p99 = statistics.quantiles(answers_s, n=100)[98]
            self._add(now, name, "p99", 0, p99, warm and not disturbed and not control_s)
            if len(control_s) >= P99_SAMPLES_MIN:
                control = statistics.quantiles(control_s, n=100)[98]
                self._add(now, name, "p99 of control", 0, control, False)
                self._add(now, name, "p99 ratio", 0, p99 / control, warm and not disturbed)
        self._add(now, name, "data", 0, directory_bytes(server.data_dir), warm)

    def _add(self, now: float, who: str, quantity: str, life: int, value: float, counts: bool) -> None:
        self.rows.append((now, who, quantity, life, value))
        if counts:
            self.series.setdefault((who, quantity), Series(quantity, who)).add(life, now, value)

    def write_csv(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["seconds", "who", "quantity", "process", "value"])
            writer.writerows((f"{at:.1f}", who, quantity, life, value) for at, who, quantity, life, value in self.rows)
