"""`make test-net`: what crowds at every door cost others, line by line.

    python -m tests.hostile.matrix [--lines PATTERNS] [--connections N] [--rounds N] [--seconds S] [--again] [--list]

A line is DOOR/ROLE/ATTACK; PATTERNS have commas between them, as names of files (`http/*/unread,quic/*`). Verdicts are
kept in build/test-net.jsonl: a line that has one of this commit is passed over, so a run goes on where it was stopped.
Each line is run beside the attackers and beside as many clients that behave (the control), in turns; p99 of others is
at most three times that of the control, or 100 ms (medians of the rounds)."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from tests.hostile.crowd import allow_descriptors
from tests.hostile.matrix import lines
from tests.hostile.matrix.judge import Bounds, Measured, Watch, judged
from tests.hostile.matrix.lines import Line
from tests.hostile.matrix.memory import CROWD
from tests.hostile.matrix.target import MatrixServer

VERDICTS: Final = Path("build/test-net.jsonl")
RATIO_MAX: Final = 3.0
LATE_MS: Final = 100.0
NICE: Final = 19
REST_S: Final = 1.0  # connections of the crowd before are closed


class Verdict(msgspec.Struct, frozen=True):
    """Medians of the rounds in ms: p99 of clients that are there, median of new ones."""

    commit: str
    line: str
    findings: list[str]
    control_ms: float
    beside_ms: float
    control_new_ms: float
    beside_new_ms: float
    process_bytes: int
    kernel_bytes: int
    entered: int
    seconds: float


def percentile(times_ms: list[float], share: float) -> float:
    """Of ascending ones."""
    return times_ms[min(len(times_ms) - 1, int(len(times_ms) * share))] if times_ms else 0.0


@dataclass(slots=True)
class Rounds:
    control: list[Measured] = field(default_factory=list)
    beside: list[Measured] = field(default_factory=list)

    def verdict(self, commit: str, line: Line, seconds: float) -> Verdict:
        steady = self._medians(lambda each: percentile(each.steady_ms, 0.99))
        new = self._medians(lambda each: percentile(each.newcomers_ms, 0.5))
        findings = [said for each in self.beside for said in each.findings]
        findings += [f"control: {said}" for each in self.control for said in each.findings]
        for what, (control, beside) in (("p99 of others", steady), ("the median of newcomers", new)):
            if beside > max(RATIO_MAX * control, LATE_MS):
                findings.append(f"{what} is {beside:.0f} ms, that of the control {control:.0f} ms")
        return Verdict(
            commit=commit,
            line=str(line),
            findings=findings,
            control_ms=steady[0],
            beside_ms=steady[1],
            control_new_ms=new[0],
            beside_new_ms=new[1],
            process_bytes=max(each.process_bytes for each in self.beside),
            kernel_bytes=max(each.kernel_bytes for each in self.beside),
            entered=sum(each.crowd.entered for each in self.beside),
            seconds=seconds,
        )

    def _medians(self, figure: Callable[[Measured], float]) -> tuple[float, float]:
        """Of the control, beside the crowd."""
        return statistics.median(map(figure, self.control)), statistics.median(map(figure, self.beside))


def commit_of() -> str:
    """With a sum of what is not committed."""
    head = _git("rev-parse", "HEAD").decode().strip()
    changed = _git("diff", "HEAD")
    return f"{head}+{hashlib.sha256(changed).hexdigest()[:12]}" if changed else head


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], check=True, capture_output=True).stdout


def known(path: Path, commit: str) -> dict[str, Verdict]:
    """Verdicts of this commit by line; a line that was cut off by the end of a run is none."""
    found = {}
    for text in path.read_bytes().splitlines() if path.exists() else []:
        with contextlib.suppress(msgspec.DecodeError):
            verdict = msgspec.json.decode(text, type=Verdict)
            if verdict.commit == commit:
                found[verdict.line] = verdict
    return found


def first_on_the_cpu() -> None:
    """Those who behave run when they are woken, as if on a machine of their own."""
    with contextlib.suppress(PermissionError):  # the figures show more than the server's doing then
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


class Servers:
    """One at a time, kept while lines are at one door and nothing was found."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._door = ""
        self._watch: Watch | None = None

    def of(self, door: str) -> Watch:
        if self._watch is None or self._door != door:
            self.stop()
            server = MatrixServer(Path(tempfile.mkdtemp(dir=self._scratch)) / "data", [door])
            server.start()
            self._door, self._watch = door, Watch(server)
        return self._watch

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.server.stop()
        self._watch = None


def run_line(servers: Servers, line: Line, given: argparse.Namespace, commit: str) -> Verdict:
    began, rounds = time.monotonic(), Rounds()
    bounds = Bounds(seconds=given.seconds)
    for _ in range(given.rounds):
        for one, kind in ((rounds.control, replace(line, attack=lines.BEHAVED)), (rounds.beside, line)):
            watch = servers.of(line.door)
            one.append(judged(watch, kind, given.connections, nice=NICE, bounds=bounds))
            if one[-1].findings:
                servers.stop()
            time.sleep(REST_S)
    return rounds.verdict(commit, line, time.monotonic() - began)


def row(verdict: Verdict) -> str:
    judged_as = "; ".join(dict.fromkeys(verdict.findings)) or "holds"
    return (
        f"{verdict.line:32} {verdict.control_ms:9.1f} {verdict.beside_ms:9.1f} {verdict.control_new_ms:9.1f} "
        f"{verdict.beside_new_ms:9.1f} {verdict.process_bytes >> 20:6} {verdict.kernel_bytes >> 10:9}  {judged_as}"
    )


def table(verdicts: list[Verdict]) -> str:
    head = f"{'':32} {'p99, ms':>19} {'new ones, ms':>19} {'memory':>16}"
    names = f"{'line':32} {'control':>9} {'beside':>9} {'control':>9} {'beside':>9} {'MiB':>6} {'sock. KiB':>9}"
    return "\n".join([head, names, *map(row, verdicts)])


def list_all() -> None:
    for line in lines.LINES:
        print(line)
    print("\nno lines:")
    for line, reason in lines.WITHOUT.items():
        print(f"{line!s:32} {reason}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", default="", help="patterns of DOOR/ROLE/ATTACK with commas between them")
    parser.add_argument("--connections", type=int, default=CROWD, help="of the crowd; a fifth of them over QUIC")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one measurement")
    parser.add_argument("--again", action="store_true", help="also lines that have a verdict of this commit")
    parser.add_argument("--list", action="store_true", help="all lines, and why others are not there")
    given = parser.parse_args()
    try:
        given.chosen = lines.chosen(given.lines)
    except ValueError as error:
        parser.error(str(error))
    return given


def main() -> int:
    given = parsed()
    if given.list:
        list_all()
        return 0
    commit, chosen = commit_of(), given.chosen
    VERDICTS.parent.mkdir(exist_ok=True)
    verdicts = {} if given.again else known(VERDICTS, commit)
    allow_descriptors(4_096)
    with tempfile.TemporaryDirectory(prefix="shardd-net-", ignore_cleanup_errors=True) as scratch:
        servers = Servers(Path(scratch))
        first_on_the_cpu()
        try:
            for line in chosen:
                if str(line) in verdicts:
                    continue
                verdict = verdicts[str(line)] = run_line(servers, line, given, commit)
                with VERDICTS.open("ab") as kept:
                    kept.write(msgspec.json.encode(verdict) + b"\n")
                print(row(verdict), flush=True)
        finally:
            servers.stop()
    shown = [verdicts[str(line)] for line in chosen]
    print(table(shown))
    broken = sum(bool(verdict.findings) for verdict in shown)
    print(f"{len(shown)} lines, {broken} do not hold; {len(lines.WITHOUT)} combinations are no lines (--list says why)")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
