"""One seed of the log's worlds, without producers and with them, and what it has done."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from tests.sim.findings import Trace
from tests.sim.log_world import LEVELS, LogWorld
from tests.sim.once_world import OnceWorld
from tests.sim.planted import Planted
from tests.sim.world import Outcome

DONE = ("append", "poll", "sync ends", "purge", "offset", "clean", "compress", "archive", "once", "epoch", "unknown")


def run_log(
    seed: int, root: Path, planted: Planted, *, verbose: bool = False, world_of: type[LogWorld] = LogWorld
) -> Outcome:
    """One partition."""
    trace = Trace(verbose=verbose)
    world = world_of(seed, root, planted, trace)
    try:
        world.run()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    faults = Counter(world.disk.injected)
    holes = [f"{level}: hole behind the durable end" for level in LEVELS]
    for kind in ("kill", "power cut", "clock goes back", *holes):
        faults[f"log: {kind}"] = trace.counts[kind]
    done = Counter({f"log: {kind}": trace.counts[kind] for kind in DONE})
    return Outcome(seed, trace.finding, trace.digest, world.step + world.disk.calls, faults, done, list(trace.last))


def run_once(seed: int, root: Path, planted: Planted, *, verbose: bool = False) -> Outcome:
    """One partition to which producers send whose batches are stored once."""
    return run_log(seed, root, planted, verbose=verbose, world_of=OnceWorld)
