"""`make bounded`: the longest step of a loop that each command makes, on a server with very many of everything.

    python -m tests.bounded [--directory DIR] [--short]

Prints CPU milliseconds of the longest step for each request, of whatever name on whichever shard, and the names.
Exit status 1 when one of them is above 10 ms (docs/adr/0038-bounded-steps.md), or a request is refused.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from shardd.runtime.loop_watch import LIMIT_MS
from tests.bounded import world
from tests.bounded.battery import Row, run


def show(row: Row) -> None:
    print(row, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bounded", description=__doc__)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--short", action="store_true", help="a small server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardd-bounded-", dir=options.directory) as base:
        rows = run(Path(base), world.SHORT if options.short else world.Size(), 0, show)
    bad = [row for row in rows if not row.good]
    longest_ms = max(row.longest_us for row in rows) / 1000
    print(f"{len(rows) - len(bad)} of {len(rows)} within {LIMIT_MS} ms, the longest {longest_ms:.1f} ms")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
