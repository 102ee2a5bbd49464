"""`python -m bench.sync_path DIR`: ways of a batch to the device, for level `durable` (docs/adr/0007-levels.md)."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import report
from bench.native_build import build

RUN_TIMEOUT_S = 120
SHAPES = ((164, 1, 500), (164, 8, 300), (4_200, 1, 400), (20_000, 4, 300), (100_064, 1, 400), (100_064, 8, 200))
WAYS = ("grow", "allocate", "zero-4m", "zero-16m", "ready", "ready-dsync", "ready-direct")
COLUMNS = ("bytes", "files", *WAYS)


def _cell(program: Path, directory: str, shape: tuple[int, int, int], way: str, rounds: int) -> str:
    """ "median us (worst ms)"; what went wrong otherwise."""
    answers = []
    for _ in range(rounds):
        command = [str(program), directory, *map(str, shape), way]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
        if done.returncode != 0:
            return done.stderr.strip() or f"status {done.returncode}"
        answers.append(json.loads(done.stdout))
    worst_ms = max(answer["worst_us"] for answer in answers) / 1000
    return f"{statistics.median(answer['us'] for answer in answers):.0f} ({worst_ms:.1f})"


def main(words: list[str] | None = None) -> int:
    """Prints one row for each shape: microseconds for each operation, in brackets the worst one in milliseconds."""
    parser = argparse.ArgumentParser(prog="python -m bench.sync_path", description=__doc__)
    parser.add_argument("directory", type=Path, help="on the file system to measure")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(words)
    program = build("sync_path")
    with tempfile.TemporaryDirectory(prefix="shardd-sync-path-", dir=options.directory) as directory:
        body = [
            [str(shape[0]), str(shape[1]), *(_cell(program, directory, shape, way, options.rounds) for way in WAYS)]
            for shape in SHAPES
        ]
    print(report.text_table(COLUMNS, body))
    return 0


if __name__ == "__main__":
    sys.exit(main())
