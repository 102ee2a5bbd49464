"""`make soak`: hours of producers, a churning group, rolling segments, changes and worker kills; everything stays flat.

    python -m tests.soak [--hours H | --minutes M] [--producers N] [--kill-every S] [--seed N] [--csv FILE]

Two servers run side by side, one at `written` and one at `durable`, each with half of the producers (load.py).
Segments are small and roll all the time; there is no retention: what is verified is deleted by DELETE_SEGMENTS. Every
few minutes one worker is killed. Measured are each process (RSS, anonymous memory, threads) and each server (open
descriptors, p99 of the answers to SENDs, data directory). In the end every message is accounted for and each series is
judged (series.py), then once more with a planted leak, which must be found. Exit status 1 when something was lost or
grows.
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.run import Soak


def main() -> int:
    parser = argparse.ArgumentParser(description="Hours of load with kills: nothing lost, nothing grows.")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--minutes", type=float, default=None, help="instead of --hours")
    parser.add_argument("--producers", type=int, default=56, help="on both servers together")
    parser.add_argument("--kill-every", type=float, default=180.0, help="seconds")
    parser.add_argument("--sample-every", type=float, default=10.0, help="seconds")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--csv", type=Path, default=Path("soak.csv"))
    parser.add_argument("--directory", type=Path, default=None, help="for the data; default: a temporary one")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else secrets.randbelow(2**32)
    duration_s = given.hours * 3600 if given.minutes is None else given.minutes * 60
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an end in order: the servers end, too
    root = Path(tempfile.mkdtemp(prefix="shardd-soak-", dir=given.directory))
    print(f"seed {seed}, data in {root}, {duration_s / 60:.1f} minutes", flush=True)
    soak = Soak(root, given.producers, seed)
    try:
        soak.run(duration_s, given.kill_every, given.sample_every, random.Random(seed))
        result = soak.finish()
    finally:
        soak.stop()
    soak.sampler.write_csv(given.csv)
    print("\n".join(result.table()))
    for problem in result.problems[:20]:
        print(f"FINDING {problem}")
    print(f"soak: {duration_s / 3600:.2f} hours, {result.figures}; seed {seed}; samples in {given.csv}")
    if result.problems:
        print(f"the data and the logs of the servers are in {root}")
        return 1
    time.sleep(0.1)
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
