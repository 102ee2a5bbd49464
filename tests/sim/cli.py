"""`python -m tests.sim`: runs seeds through all worlds: the shards (metadata, groups), one partition of the log, and
one with producers whose batches are stored once.

    --seeds 2000 [--first 1]   so many seeds
    --seed N [--trace]         one seed again, with everything that happens
    --planted NAME             with a planted fault, to see that it is found (tests/sim/planted.py)

The same seed gives the same trace, also in another process: names in sets are hashed without salt (PYTHONHASHSEED).
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.sim.findings import EVENTS_SHOWN
from tests.sim.planted import ALL, Planted
from tests.sim.run import Result, run_seed

HASH_SEED = "PYTHONHASHSEED"
FINDINGS_SHOWN = 5
PROGRESS_S = 15.0


def main() -> int:
    arguments = _arguments()
    if os.environ.get(HASH_SEED) != "0":
        os.environ[HASH_SEED] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    logging.disable(logging.CRITICAL)  # deaths and refusals are what this is about
    if arguments.seed is not None:
        result = run_seed(arguments.seed, arguments.planted, verbose=arguments.trace)
        print(f"seed {result.seed}: trace {result.digest}, {result.steps} steps")
        for finding, events in result.findings:
            _show(result.seed, finding, events, arguments.planted)
        return 1 if result.findings else 0
    return _many(range(arguments.first, arguments.first + arguments.seeds), arguments.jobs, arguments.planted)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="deterministic simulation")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--planted", choices=[each.name for each in ALL], default=Planted.name)
    return parser.parse_args()


def _one(work: tuple[int, str]) -> Result:
    return run_seed(*work)


def _start_worker(cpus: list[int]) -> None:
    """Every process stays on one CPU: its threads only ever hand over to each other."""
    logging.disable(logging.CRITICAL)
    os.sched_setaffinity(0, {cpus[os.getpid() % len(cpus)]})


def _many(seeds: range, jobs: int, planted: str) -> int:
    began = shown = time.monotonic()
    faults: Counter[str] = Counter()
    done: Counter[str] = Counter()
    steps = found = count = 0
    cpu_s = 0.0
    cpus = sorted(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _start_worker, (cpus,)) as pool:
        for result in pool.map(_one, [(seed, planted) for seed in seeds], chunksize=4):
            count += 1
            steps, cpu_s = steps + result.steps, cpu_s + result.cpu_s
            faults.update(result.faults)
            done.update(result.done)
            for finding, events in result.findings:
                found += 1
                if found <= FINDINGS_SHOWN:
                    _show(result.seed, finding, events, planted)
                else:
                    print(f"FINDING in seed {result.seed}: {finding}", flush=True)
            if time.monotonic() - shown > PROGRESS_S:
                shown = time.monotonic()
                print(f"{count} of {len(seeds)} seeds, {found} findings", flush=True)
    took_s = time.monotonic() - began
    print(f"{count} seeds in {took_s:.1f} s ({count / took_s:.1f} seeds/s with {jobs} processes, "
          f"{cpu_s / count:.3f} s of CPU for a seed), {steps} steps")  # fmt: skip
    print("done:   " + _list(done))
    print("faults: " + _list(faults))
    print(f"{found} findings")
    return 1 if found else 0


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count)


def _show(seed: int, finding: str, events: list[str], planted: str) -> None:
    print(f"FINDING in seed {seed}: {finding}")
    for event in events[-EVENTS_SHOWN:]:
        print(f"    {event}")
    option = f' --planted "{planted}"' if planted else ""
    print(f"  replay: python -m tests.sim --seed {seed} --trace{option}", flush=True)
