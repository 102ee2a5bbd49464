"""`make fuzz-doors`: a million mutated requests at each door that is not the engine's, against a real server.

    python -m tests.fuzz.doors [--doors http grpc quic] [--inputs N] [--seed N]

What is asked is made of what each door says that it takes: the description of the HTTP API, the messages of
Liftbridge, the commands of the classic wire. Values, bytes, heads and whole connections are changed. Every request
that is one has an answer that is one, with a status that the door documents; the process of the door stays the same
one, its memory is bounded, its log tells of no fault. Anything else ends the run with status 1, the input and the seed.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.fuzz.grpc_door import fuzz_grpc
from tests.fuzz.http_door import fuzz_http
from tests.fuzz.lanes import FindingError
from tests.fuzz.quic_door import fuzz_quic

INPUTS: Final = 1_000_000
PROGRESS_EVERY_S: Final = 30.0
DOORS: Final = {"http": fuzz_http, "grpc": fuzz_grpc, "quic": fuzz_quic}


def shown(report: Callable[[str], None]) -> Callable[[int], None]:
    """Tells how far a run is, now and then."""
    began_s = told_s = time.monotonic()

    def progress(inputs: int) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if now_s - told_s >= PROGRESS_EVERY_S:
            told_s = now_s
            report(f"{inputs:,} inputs, {inputs / (now_s - began_s):,.0f} a second")

    return progress


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--doors", nargs="+", choices=[*DOORS], default=[*DOORS])
    parser.add_argument("--inputs", type=int, default=INPUTS, help="at each door")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else secrets.randbelow(2**32)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an end in order: the servers end, too
    for name in given.doors:
        print(f"{name}: seed {seed}", flush=True)
        with tempfile.TemporaryDirectory(prefix="shardd-fuzz-", ignore_cleanup_errors=True) as scratch:
            progress = shown(lambda text, name=name: print(f"{name}: {text}", flush=True))  # type: ignore[misc]
            try:
                counts = asyncio.run(DOORS[name](Path(scratch) / "data", given.inputs, seed, progress))
            except FindingError as finding:
                print(f"FINDING at {name}, seed {seed}: {finding}", flush=True)
                return 1
        print(f"{name}: {dict(sorted(counts.items()))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
