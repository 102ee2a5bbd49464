"""`make crash`: kills of -9 of random processes under load; nothing acknowledged may be lost, doubled or unreadable.

    python -m tests.crash.kills [--kills N] [--levels written,durable] [--seed N] [--directory DIR]

The kills come in epochs. Each has its level, engine and segment size and a fresh directory or (up to three times) the
one of the epoch before, whose history then goes on. Killed are one worker, shard 0, the supervisor or all of them: at a
random moment under load, while nothing is asked, or a second time while the first kill is recovered from. At the end of
an epoch everything is read and judged (tests.support.checker, tests.support.offset_history). Exit status 1 at the first
epoch with a finding; its directory is kept. What the seed decides is the plan; the moments depend on the machine, too.
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash import faults
from tests.crash.kill_load import Load, create_all
from tests.support import wire
from tests.support.checker import Finding, Report
from tests.support.load import Producer
from tests.support.server import Server, io_engine_environment

EPOCH_KILLS = 20
EPOCHS_OF_A_DIRECTORY_MAX = 3
WORKER_KILLS_MAX = 4  # under one supervisor, which waits longer before each further restart of a young worker
PROGRESS_TIMEOUT_S = 60.0  # a stuck client is a finding, a machine that is busy otherwise is none
SHOWN_MAX = 20
VICTIMS = ("worker",) * 5 + ("shard 0",) * 2 + ("supervisor", "all")
MOMENTS = ("load",) * 6 + ("idle", "recovering")
SEGMENT_SIZES = ("16 KiB", "64 KiB", "1 MiB")
COUNTED = {"lost": ("lost", "reuse"), "duplicated": ("duplicate",), "reordered": ("reordered", "gap", "clock")}
COUNTED |= {"unreadable": ("unreadable",), "altered": ("altered", "foreign", "misplaced", "checksum")}
COUNTED |= {"offsets lost": ("offset lost", "offset foreign")}


@dataclass
class Figures:
    """Of all epochs so far. `settled` counts what directories held that are gone, `current` what is in this one."""

    kills: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    recoveries_s: list[float] = field(default_factory=list)
    epochs: int = 0
    errors: int = 0  # that the load has seen
    timeouts: Counter[str] = field(default_factory=Counter)  # of these, by what a client waited for
    longest_login_s: float = 0.0
    settled: Counter[str] = field(default_factory=Counter)
    current: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def count(self, load: Load, reports: Sequence[Report]) -> None:
        """The end of an epoch: the reports are of everything in the directory."""
        self.epochs += 1
        self.errors += sum(thread.errors for thread in load.threads)
        self.timeouts += sum((thread.timeouts for thread in load.threads), Counter())
        self.longest_login_s = max(self.longest_login_s, *(thread.longest_login_s for thread in load.threads))
        self.findings = [finding for report in reports for finding in report.findings]
        self.current = Counter(
            acknowledged=sum(report.acknowledged for report in reports),
            stored=sum(report.stored for report in reports),
            repeats=sum(report.repeats for report in reports),
            offsets=load.offsets.acknowledgements,
        )

    def settle(self) -> None:
        """The next epoch starts with a fresh directory."""
        self.settled += self.current
        self.current = Counter()

    def __str__(self) -> str:
        kinds, counts = Counter(finding.kind for finding in self.findings), self.settled + self.current
        found = ", ".join(f"{sum(kinds[kind] for kind in each)} {name}" for name, each in COUNTED.items())
        victims = ", ".join(f"{count} {name}" for name, count in sorted(self.kills.items()))
        moments = ", ".join(f"{count} {name}" for name, count in sorted(self.moments.items()))
        recovery = "none"
        if self.recoveries_s:
            median, longest = statistics.median(self.recoveries_s), max(self.recoveries_s)
            recovery = f"median {median * 1000:.0f} ms, max {longest * 1000:.0f} ms"
        return (
            f"{self.kills.total()} kills ({victims}; {moments}) in {self.epochs} epochs: {counts['acknowledged']:,} "
            f"messages and {counts['offsets']:,} offsets acknowledged, {counts['stored']:,} stored "
            f"({counts['repeats']:,} legal repeats); {found}; all producers answered again after: {recovery}; gave up "
            f"waiting: {self.timeouts['login']} for a login (longest {self.longest_login_s:.1f} s), "
            f"{self.timeouts['answer']} for an answer"
        )


class Cluster:
    """A server on a directory, the load on it, and the ways to hurt it."""

    def __init__(self, data: Path, settings: Mapping[str, str], load: Load) -> None:
        self.load = load
        self.server = Server(data, settings)
        fresh = not data.exists()
        self.server.start()
        if fresh:
            with wire.connect(self.server.address) as connection:
                self.load.token = create_all(connection)
        self.load.resume(self.server.address)
        self.worker_kills = 0

    def kill(self, victim: str, generator: random.Random) -> None:
        """Does not wait for what dies with it, nor for the restart of a worker."""
        if victim in ("worker", "shard 0"):
            workers = self.server.worker_pids()
            faults.kill9(workers[0] if victim == "shard 0" else generator.choice(workers))
            self.worker_kills += 1
            return
        workers = self.server.worker_pids() if victim == "all" else []
        self.server.kill_supervisor()
        for pid in workers:
            if faults.is_running(pid):
                faults.kill9(pid)
        self.worker_kills = 0

    def kill_again(self, first: str, generator: random.Random) -> str:
        """A second kill before the first one is recovered from; what was killed."""
        time.sleep(generator.uniform(0.0, 0.6))
        if first in ("supervisor", "all"):
            self.server.spawn()
            time.sleep(generator.uniform(0.05, 0.8))
            self.server.kill_supervisor()
            return "supervisor"
        running = self.server.running_workers()
        if not running or generator.random() < 0.3:
            self.kill("supervisor", generator)
            return "supervisor"
        faults.kill9(generator.choice(list(running.values())))
        return "worker"

    def revive(self) -> None:
        """After the death of the supervisor: the next one."""
        if not self.server.supervised:
            self.server.start()
            self.load.use(self.server.address)

    def wait_for_progress(self) -> float:
        """Seconds until each producer got at least one more answer. A busy machine may let them in one by one."""
        before = list(zip(self.load.producers, self.load.answers(), strict=True))

        def left() -> list[Producer]:
            self.load.answers()
            return [each for each, old in before if each.acknowledged_batches == old]

        try:
            return faults.wait_until_none_is_left(left, PROGRESS_TIMEOUT_S)
        except TimeoutError as problem:
            stuck = [f"{each.name}: {each.last_error}" for each in left()]
            raise TimeoutError(f"{problem}; no answer to {stuck}; {self.server.log_path}") from None


def run_kills(cluster: Cluster, generator: random.Random, kills: int, figures: Figures) -> None:
    done = 0
    cluster.wait_for_progress()
    while done < kills:
        moment, victim = generator.choice(MOMENTS), generator.choice(VICTIMS)
        if cluster.worker_kills >= WORKER_KILLS_MAX and victim in ("worker", "shard 0"):
            victim = "all"
        cluster.load.pause(moment == "idle")
        time.sleep(generator.uniform(0.0, 0.3))
        began = time.monotonic()
        cluster.kill(victim, generator)
        figures.kills[victim] += 1
        figures.moments[moment] += 1
        done += 1
        if moment == "recovering" and done < kills:
            figures.kills[cluster.kill_again(victim, generator)] += 1
            figures.moments[moment] += 1
            done += 1
        cluster.revive()
        cluster.load.pause(False)
        cluster.wait_for_progress()
        figures.recoveries_s.append(time.monotonic() - began)


def run_epoch(data: Path, load: Load, generator: random.Random, level: str, kills: int, figures: Figures) -> str:
    """Kills, then judges everything that the directory has held so far. Returns the settings, for a report."""
    settings = {
        "SHARDD_SYSTEM_IO_ENGINE": generator.choice(("io_uring", "epoll")),
        **io_engine_environment(),
        "SHARDD_SYSTEM_PARTITION_ACK": level,
        "SHARDD_SYSTEM_SEGMENT_SIZE": generator.choice(SEGMENT_SIZES),
        "SHARDD_CONSUMER_GROUP_REBALANCING_TIMEOUT": "1 s",
        "SHARDD_CONSUMER_GROUP_REBALANCING_CHECK_INTERVAL": "100 ms",
    }
    cluster = Cluster(data, settings, load)
    try:
        run_kills(cluster, generator, kills, figures)
        reports = load.judge()
    finally:
        load.stop()
        cluster.server.stop()
    figures.count(load, reports)
    return f"{settings['SHARDD_SYSTEM_IO_ENGINE']}, {level}, segments of {settings['SHARDD_SYSTEM_SEGMENT_SIZE']}"


def campaign(root: Path, kills: int, levels: Sequence[str], seed: int, epoch_kills: int = EPOCH_KILLS) -> Figures:
    """All epochs, below `root`; ends early at a finding, with its directory still there."""
    figures, generator = Figures(), random.Random(seed)
    epochs_here = 0  # 0: the next directory is a fresh one
    while figures.kills.total() < kills and not figures.findings:
        epoch = figures.epochs
        if epochs_here == 0:
            data, load = root / f"data-{epoch}", Load(seed + epoch)
        began, wanted = time.monotonic(), min(epoch_kills, kills - figures.kills.total())
        about = run_epoch(data, load, generator, levels[epoch % len(levels)], wanted, figures)
        print(
            f"epoch {epoch} ({about}): {wanted} kills in {time.monotonic() - began:.0f} s, so far {figures}", flush=True
        )
        epochs_here += 1
        if not figures.findings and (epochs_here == EPOCHS_OF_A_DIRECTORY_MAX or generator.random() < 0.5):
            shutil.rmtree(data)
            figures.settle()
            epochs_here = 0
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills of -9 under load; nothing acknowledged may be missing.")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--levels", default="written,durable")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--directory", type=Path, default=None, help="for the data; default: a temporary one")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else secrets.randbelow(2**32)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an end in order: the server ends, too
    root = Path(tempfile.mkdtemp(prefix="shardd-crash-", dir=given.directory))
    print(f"seed {seed}, data in {root}", flush=True)
    began = time.monotonic()
    figures = campaign(root, given.kills, given.levels.split(","), seed)
    minutes = (time.monotonic() - began) / 60
    for finding in figures.findings[:SHOWN_MAX]:
        print(f"FINDING {finding}")
    missed = figures.errors < figures.kills.total()
    if missed:
        print(f"FINDING the kills did not hit the load: it saw {figures.errors} errors")
    print(f"crash: {figures}; {minutes:.1f} minutes; seed {seed}", flush=True)
    if figures.findings or missed:
        print(f"the data and the log of the server are in {root}")
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
