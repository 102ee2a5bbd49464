"""`make crash-power`: a real server on a file system that forgets what was not synced, under load; the power goes, the
server is killed, a new one starts on what is left, and everything is judged.

    python -m tests.power.cuts --cuts 200 --seed 1 --levels durable,written,memory --engines io_uring,epoll

The cuts form chains: what is left of one is where the next begins. A chain has one level, one engine, one way in which
names are lost. In some cuts the power goes a second time while the server recovers. A chain draws everything from its
seed, which is printed with a finding as "seed SEED-NUMBER"; `--seed SEED --only NUMBER` runs that chain again (threads
and the clock stay free, so the same moment comes back roughly). What was left on the disk is kept then.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from tests.power.chain import Chain, Figures, Found
from tests.power.disk import ROOT, why_not
from tests.power.ledger import DURABLE, Tally
from tests.support.built import make

LEVELS: Final = ("durable", "written", "memory")
ENGINES: Final = ("io_uring", "epoll")
CHAIN_CUTS: Final = 8
FINDINGS_MAX: Final = 20  # chains; then a run ends


def run_chain(base: Path, seed: int, number: int, level: str, engine: str, cuts: int) -> Figures:
    """One chain; what is found is printed as it comes, ends it, and its directory stays."""
    figures, directory = Figures(), base / f"chain-{number}"
    directory.mkdir(parents=True)
    chain = Chain(directory, f"{seed}-{number}", level, engine, figures)
    try:
        chain.run(cuts)
    except Exception as found:  # what is not `Found` ends no other chain and is no less a failure
        kind = "" if isinstance(found, Found) else f"{type(found).__name__} "
        figures.findings.append(f"{chain.about()}: {kind}{found}")
        print(f"FOUND {figures.findings[-1]}\n  kept: {directory}", flush=True)
    else:
        shutil.rmtree(directory)
    return figures


def canary(base: Path, seed: int, engine: str) -> str | None:
    """What the judge says about a disk whose syncs do nothing, at level durable; None: it saw nothing."""
    directory = base / "canary"
    directory.mkdir(parents=True)
    try:
        Chain(directory, f"{seed}-canary", DURABLE, engine, Figures(), lying=True).run(3)
    except Found as found:
        shutil.rmtree(directory)
        return str(found)
    return None


def run(
    base: Path,
    cuts: int,
    seed: int,
    levels: Sequence[str],
    engines: Sequence[str],
    *,
    only: int | None = None,
    jobs: int = 1,
    chain_cuts: int = CHAIN_CUTS,
) -> Figures:
    """Chains until `cuts` cuts are done, `jobs` at once; FINDINGS_MAX findings end it. `only`: that chain alone."""
    figures, number, planned = Figures(), 0 if only is None else only, 0
    with ThreadPoolExecutor(jobs) as pool:
        running: set[Future[Figures]] = set()
        while True:
            while planned < cuts and len(running) < jobs and len(figures.findings) < FINDINGS_MAX:
                # levels and engines take turns, so that a short run has seen all of them
                turn = number + number // math.lcm(len(levels), len(engines))
                level, engine = levels[number % len(levels)], engines[turn % len(engines)]
                count = min(chain_cuts, cuts - planned)
                running.add(pool.submit(run_chain, base, seed, number, level, engine, count))
                number, planned = number + 1, cuts if only is not None else planned + count
            if not running:
                return figures
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                figures.add(future.result())
            if only is None:  # a chain that ended early leaves cuts to do
                planned = sum(figures.cuts.values()) + chain_cuts * len(running)


def report(figures: Figures, seconds: float, seed: int) -> list[str]:
    """The lines that the run prints, the figure line last."""
    lines = []
    for level, tally in sorted(figures.tallies.items()):
        lines.append(
            f"{level}: {figures.cuts[level]} cuts, {tally.acknowledged} acknowledged since the last start or sync, "
            f"{tally.required} due and there, {tally.lost} acknowledged lost in {tally.lossy_cuts} partitions, "
            f"{tally.offsets_lost} stored offsets other than acknowledged, {tally.withheld} offsets withheld "
            f"behind what is due, {tally.returned} deleted messages back"
        )
    disk = figures.disk
    lines.append(
        f"{disk['pages']} dirty pages at the cuts ({disk['kept']} survived, {disk['torn']} torn), {disk['short']} of "
        f"{disk['lengths']} lengths short, {disk['names'] - disk['kept_names']} of {disk['names']} names lost, "
        f"{disk['syncs']} syncs under way; {figures.in_recovery} more cuts during recovery, "
        f"{figures.orderly_stops} cuts after an orderly stop; "
        f"{figures.changes} changes of metadata"
    )
    told = ", ".join(f"{kind} {count}" for kind, count in sorted(figures.told.items()))
    lines.append(f"idempotent producers that came back after a cut: {told}")
    cuts = sum(figures.cuts.values())
    durable = figures.tallies.get(DURABLE, Tally())
    written = figures.tallies.get("written", Tally())
    engines = ", ".join(f"{name} {count}" for name, count in sorted(figures.engines.items()))
    lines.append(
        f"crash-power: {cuts} power cuts ({engines}), seed {seed}: durable lost {durable.lost}, written was seen to "
        f"lose {written.lost}, {len(figures.findings)} findings, {cuts / seconds * 60:.0f} cuts a minute"
    )
    return lines


def log_layer(seeds: int) -> int:
    """What can be done without FUSE: the cuts of native/tests/test_partition_power.c. Its exit status."""
    native, program = ROOT / "native", "build/asan/test_partition_power"
    make(native, program).check_returncode()
    return subprocess.run([native / program], env=os.environ | {"POWER_SEEDS": str(seeds)}, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.power.cuts")
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument(
        "--only", type=int, help="the number of one chain, with the --seed, --levels and --engines of its run"
    )
    parser.add_argument("--jobs", type=int, default=2, help="chains at once")
    parser.add_argument("--directory", type=Path, help="where the disks are; default: a temporary directory")
    options = parser.parse_args()
    reason = why_not()
    if reason is not None:
        print(
            f"crash-power: no server was cut off ({reason}); the log layer on a disk that forgets instead:", flush=True
        )
        return log_layer(options.cuts)
    # the disk under test is in memory; a slow one below it would only cost time
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    base = options.directory or Path(tempfile.mkdtemp(prefix="shardd-power-", dir=memory))
    print(f"crash-power: seed {options.seed}, {options.cuts} cuts, in {base}", flush=True)
    began = time.monotonic()
    levels, engines = options.levels.split(","), options.engines.split(",")
    figures = run(base, options.cuts, options.seed, levels, engines, only=options.only, jobs=options.jobs)
    lines = report(figures, time.monotonic() - began, options.seed)
    seen = figures.cuts["written"] < 20 or figures.tallies["written"].lost > 0
    if not seen:
        lines.insert(0, "crash-power: level written lost nothing: the power did not really go")
    if options.only is None:
        found = canary(base, options.seed, engines[0])
        seen = seen and found is not None
        lines.insert(0, f"canary, a disk whose syncs do nothing: {(found or 'NOT FOUND OUT')[:200]}")
    print("\n".join(lines))
    if not figures.findings and seen:
        shutil.rmtree(base, ignore_errors=True)
    return 0 if seen and not figures.findings else 1


if __name__ == "__main__":
    sys.exit(main())
