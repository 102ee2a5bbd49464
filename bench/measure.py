"""Runs one line against one server, and all lines in interleaved rounds."""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench import together
from bench.lines import RECORD_HEADER_BYTES, Line, Placement
from bench.native_build import build
from bench.targets import EPOLL, PARTITIONS, RING, Floor, Shardd, Target, wait_for_free_disk

LOAD_TIMEOUT_S = 120.0
PREFILL_BATCH = 1000
LARGE_REQUEST_BYTES = 64 << 10
_BY_KEY = (Placement.KEYED, Placement.SPREAD, Placement.EIGHT, Placement.THOUSAND)
TOUCH_MIN = 64 << 20
MADV_POPULATE_WRITE = 23  # not named by Python's mmap


@dataclass(frozen=True)
class Effort:
    """How much is measured. Sends stop at `send_bytes_max`, so that no line reaches the kernel's dirty-page limit;
    `touch_bytes` of memory are touched before each of them, later less (`Needs`). `disk_wait_s`: for deleted segments
    to be really gone."""

    rounds: int
    duration_ms: int
    warmup_ms: int
    send_bytes_max: int
    prefill_bytes: int
    touch_bytes: int
    disk_wait_s: float = 10.0
    idle_s: float = 2.0  # before the memory of an idle server is looked at


FULL = Effort(5, 1500, 300, 1 << 30, 128 << 20, 3 << 29)
QUICK = Effort(1, 150, 50, 64 << 20, 8 << 20, 64 << 20, idle_s=0.1)


@dataclass
class Cell:
    """Results of one line on one server: one parsed answer of the load client for each round, or what went wrong."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    placement: str = ""
    error: str | None = None


class Needs:
    """How much memory is touched before a send: from its second time on, a line says by itself what it writes."""

    def __init__(self, touch_bytes: int) -> None:
        self._touch_bytes = touch_bytes
        self._written_bytes: dict[str, float] = {}

    def touch_bytes(self, line: Line) -> int:
        written = self._written_bytes.get(line.name)
        return self._touch_bytes if written is None else min(self._touch_bytes, max(TOUCH_MIN, int(2 * written)))

    def answered(self, line: Line, requests: float) -> None:
        """By whichever server: all of them get the same."""
        written = requests * line.request_bytes
        self._written_bytes[line.name] = max(written, self._written_bytes.get(line.name, 0.0))


def touch_memory(size_bytes: int) -> None:
    """Touches and frees that much memory (at most half of what is available), so that the next page-cache pages are
    recycled ones. A page that the hypervisor must back first costs four times as much, and guests with free page
    reporting lose theirs again within seconds: this has to come directly before a measurement."""
    size = min(size_bytes, psutil.virtual_memory().available // 2)
    with contextlib.closing(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)) as pages:
        try:
            pages.madvise(MADV_POPULATE_WRITE)
        except OSError:  # kernels before 5.14
            for at in range(0, size, mmap.PAGESIZE):
                pages[at] = 1


def _load(target: Target, line: Line, streams: Sequence[int], arguments: Sequence[str], batch: int) -> dict[str, float]:
    command = [str(build_once("load")), "--port", str(target.port), "--login", "--batch", str(batch)]
    command += ["--payload", str(line.payload_bytes), "--connections", str(line.connections)]
    command += ["--threads", str(line.threads), "--streams", ",".join(map(str, streams)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"the load client ended with {done.returncode}")
    answer = json.loads(done.stdout)
    return {key: float(value) for key, value in answer.items() if isinstance(value, int | float)}


_built: dict[str, Path] = {}


def build_once(program: str) -> Path:
    """`build`, asked once for each run of the benchmark."""
    if program not in _built:
        _built[program] = build(program)
    return _built[program]


def _beside(cpu: int) -> list[str]:
    """Pins the load client to another CPU than the serving one, when there is one. Left to the scheduler, a single
    connection is served from the same CPU or from another one by chance, and that alone changes its latency twofold."""
    others = sorted(os.sched_getaffinity(0) - {cpu})
    return ["--cpu", str(others[0])] if others else []


def _prefill(target: Target, line: Line, streams: Sequence[int], effort: Effort) -> int:
    """Fills each partition for polls; returns the messages in each."""
    record_bytes = RECORD_HEADER_BYTES + line.payload_bytes
    partitions = PARTITIONS.get(line.placement, 1)
    requests = math.ceil(effort.prefill_bytes / (len(streams) * partitions * PREFILL_BATCH * record_bytes))
    each = requests if partitions == 1 else math.ceil(requests / line.connections)  # they share the stream
    for partition in range(partitions):
        arguments = ["--mode", "send", "--requests-each", str(each), "--partition", str(partition)]
        _load(target, line, streams, arguments, PREFILL_BATCH)
    return requests * PREFILL_BATCH


def _together(target: Target, line: Line, effort: Effort, needs: Needs) -> tuple[dict[str, float], str]:
    touch_memory(needs.touch_bytes(line))
    used_s = target.cpu_s()
    try:
        answer = together.run(target, line, effort.duration_ms, effort.send_bytes_max)
        answer["cpu_us_per_request"] = (target.cpu_s() - used_s) * 1e6 / answer["answered"]
        return answer, f"{line.connections // 2}+{line.connections // 2}"
    finally:
        together.drop(target)
        wait_for_free_disk(target.directory, effort.disk_wait_s)


def run_line(
    target: Target,
    line: Line,
    effort: Effort,
    needs: Needs,
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> tuple[dict[str, float], str]:
    """One measurement on fresh streams, which are gone again afterwards: (answer of the load client, placement).
    `around`: what is entered for the measured load alone (not of a line with both modes).
    RuntimeError, WireError, OSError or TimeoutExpired when it cannot be done."""
    if line.mode == "both":
        return _together(target, line, effort, needs)
    streams, placement = target.make_streams(line)
    try:
        arguments = ["--mode", line.mode, "--depth", str(line.depth), "--duration-ms", str(effort.duration_ms)]
        # Large requests warm up quickly, and each of their bytes counts against the dirty-page limit.
        large = line.request_bytes >= LARGE_REQUEST_BYTES
        arguments += ["--warmup-ms", str(effort.warmup_ms // 3 if large else effort.warmup_ms)]
        if line.placement is Placement.THOUSAND:
            arguments[-1] = str(effort.warmup_ms * 4)  # each partition opens its files at its first message
        if line.connections == 1:
            arguments += _beside(target.serving_cpu(streams[0]))
        if line.mode != "send":
            arguments += ["--poll-messages", str(_prefill(target, line, streams, effort))]
            arguments += ["--verify-offsets"] if isinstance(target, Shardd) else []
            arguments += ["--group", "0"] if line.placement is Placement.GROUP else []
        else:
            touch_memory(needs.touch_bytes(line))
            arguments += ["--requests", str(max(1, effort.send_bytes_max // line.request_bytes))]
            arguments += ["--balanced"] if line.placement is Placement.BALANCED else []
            arguments += ["--keyed"] if line.placement in _BY_KEY else []
        with around():
            used_s = target.cpu_s()
            answer = _load(target, line, streams, arguments, line.batch)
            answer["cpu_us_per_request"] = (target.cpu_s() - used_s) * 1e6 / answer["answered"]
        return answer, placement
    finally:
        target.drop_streams(streams)
        wait_for_free_disk(target.directory, effort.disk_wait_s)


def _takes_part(target: Target, line: Line) -> bool:
    asked = {EPOLL: line.epoll_ratio_min, RING: line.ring_ratio_min}
    return target.name not in asked or asked[target.name] is not None


def run_rounds(
    targets: Sequence[Target], lines: Sequence[Line], effort: Effort, progress: Callable[[str], None]
) -> dict[str, dict[str, Cell]]:
    """Cells by line and server. Each round measures every line on every server, the servers in alternating order; the
    one on epoll and the floor on io_uring only take part in lines that ask for them. A server that failed a line is not
    asked for it again."""
    cells = {line.name: {target.name: Cell() for target in targets if _takes_part(target, line)} for line in lines}
    needs = Needs(effort.touch_bytes)
    for number in range(effort.rounds):
        order = list(targets) if number % 2 == 0 else list(reversed(targets))
        for line in lines:
            for target in order:
                cell = cells[line.name].get(target.name)
                if cell is None or cell.error is not None:
                    continue
                if line.against is not None and isinstance(target, Floor):
                    continue
                try:
                    answer, cell.placement = run_line(target, line, effort, needs)
                except Exception as error:  # the other lines are still worth measuring
                    cell.error = f"{type(error).__name__}: {error}"
                    progress(f"round {number + 1} {line.name} {target.name}: {cell.error}")
                    continue
                cell.rounds.append(answer)
                needs.answered(line, answer["answered"])
                progress(
                    f"round {number + 1}/{effort.rounds} {line.name:24} {target.name:10}"
                    f" {answer['requests_per_s']:>10.0f} req/s  p50 {answer['p50_us']:>9.1f} us"
                )
    return cells
