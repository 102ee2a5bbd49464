"""Instructions of a request in the native core, at an older commit and in this checkout, counted by callgrind.

    python -m bench.instructions [--before COMMIT] [--count N] [--levels log core net]

Builds `native/tests/instructions.c` here and in the tree of the older commit, so both builds run the same program.
Prints for each case the instructions of one request before and after. Ends with 1 when a case costs more than 1 % more.
Instructions of the kernel are not counted. Needs valgrind.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NATIVE = ROOT / "native"
PROGRAM = "build/instructions/instructions"
LEVELS = ("log", "core", "net")
CASES = ("send1", "poll1", "poll100")
COUNT = 2560  # a multiple of INDEX_FLUSH_ENTRIES: each run has as many index writes
GROWTH_MAX = 0.01
COLLECTED = re.compile(r"Collected : (\d+)")


def tree_of(commit: str) -> Path:
    """The native directory as it was at `commit`, below build/; kept, so that a second run builds nothing."""
    name = subprocess.check_output(("git", "rev-parse", commit), cwd=ROOT, text=True).strip()
    tree = ROOT / "build" / "instructions" / name
    if not tree.is_dir():
        archive = subprocess.check_output(("git", "archive", name, "native"), cwd=ROOT)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(tree, filter="data")
    return tree / "native"


def build(native: Path) -> Path:
    """The measuring program of a tree, linked with the core of that tree by the Makefile of this one."""
    source = Path("tests/instructions.c")
    if native != NATIVE:
        shutil.copy2(NATIVE / source, native / source)
    subprocess.run(
        ("make", "--silent", "-C", native, "-f", NATIVE / "Makefile", PROGRAM), check=True, stdout=subprocess.DEVNULL
    )
    return native / PROGRAM


def measure(program: Path, level: str, case: str, count: int) -> float:
    """Instructions of one request."""
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            (
                *("valgrind", "--tool=callgrind", "--toggle-collect=measured"),
                f"--callgrind-out-file={directory}/out",
                *(program, level, case, str(count)),
            ),
            capture_output=True,
            text=True,
            check=False,
        )
    collected = COLLECTED.search(done.stderr)
    if done.returncode != 0 or collected is None:
        raise RuntimeError(f"{program} {level} {case}: {done.stderr}")
    return int(collected[1]) / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="HEAD", help="the older commit (default: HEAD)")
    parser.add_argument("--count", type=int, default=COUNT, help="measured requests")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=LEVELS, help="levels to measure")
    options = parser.parse_args()
    before, after = build(tree_of(options.before)), build(NATIVE)
    grown = False
    print(f"{'case':14} {'before':>10} {'after':>10} {'change':>8}")
    for level in options.levels:
        for case in CASES:
            old, new = (measure(program, level, case, options.count) for program in (before, after))
            grown |= new > old * (1 + GROWTH_MAX)
            print(f"{level + ' ' + case:14} {old:10.1f} {new:10.1f} {new / old - 1:+8.2%}", flush=True)
    return int(grown)


if __name__ == "__main__":
    sys.exit(main())
