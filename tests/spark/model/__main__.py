"""`python -m tests.spark.model`: the long form; one line for each seed, exit status 1 with the first broken promise."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.spark.model.run import play
from tests.spark.model.world import BrokenPromiseError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.model", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first one (1)")
    parser.add_argument("--runs", type=int, default=10, help="seeds, each with a server of its own (10)")
    parser.add_argument("--steps", type=int, default=1500, help="of one run (1500)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # accepted losses
    for seed in range(options.seed, options.seed + options.runs):
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="shardd-spark-model-") as directory:
            try:
                counts = play(Path(directory), seed, options.steps)
            except BrokenPromiseError as error:
                print(f"seed {seed}, {options.steps} steps: {error}")
                return 1
        told = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
        print(f"seed {seed}: {told}; {time.monotonic() - began_s:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
