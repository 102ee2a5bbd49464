"""`make fuzz`: millions of mutated frames against servers built under ASan and UBSan.

    python -m tests.fuzz.run [--frames N] [--seconds S] [--seed N] [--plain] [--cpu N] [--release R] [--keep-corpus]

Ends with status 1 and the frames at the first finding; see tests/fuzz/lanes.py and watch.py for what is one.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from tests.fuzz import legacy
from tests.fuzz.fuzzer import Fuzzer, Report
from tests.fuzz.lanes import FindingError, Totals
from tests.fuzz.mutator import CORPUS
from tests.fuzz.sanitized import runs_sanitized, sanitized_environment
from tests.fuzz.settings import SETTINGS
from tests.fuzz.watch import Watch
from tests.support.server import Server
from tests.support.top import shard_figures

GROWTH_MAX_BYTES = 768 << 20  # of all workers; ASan keeps freed memory for a while
_CODES = frozenset({*Code, *ExtensionCode})
PROGRESS_EVERY_S = 30.0
CORPUS_FRAME_BYTES_MAX = 200


def keep_corpus(totals: Totals) -> int:
    """Adds frames whose kind of answer (role, code, status) the corpus does not have; how many."""
    lines = CORPUS.read_text().splitlines() if CORPUS.exists() else []
    known = {tuple(line.split()[:3]) for line in lines}
    new = [
        f"{role} {code} {status} {frame.hex()}"
        for (role, code, status), frame in sorted(totals.seen.items())
        if (role, str(code), str(status)) not in known and len(frame) <= CORPUS_FRAME_BYTES_MAX and code in _CODES
    ]
    CORPUS.parent.mkdir(exist_ok=True)
    CORPUS.write_text("".join(f"{line}\n" for line in sorted([*lines, *new])))
    return len(new)


def put_on_cpu(server: Server, cpu: int) -> None:
    """All threads of the server, the workers' own pinning notwithstanding."""
    for process in server.processes():
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {cpu})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--plain", action="store_true", help="the normal build of the native module")
    parser.add_argument("--cpu", type=int, default=None, help="everything on this CPU")
    parser.add_argument("--release", default=None, help="as clients of this earlier release of the crate: 0.6.202")
    parser.add_argument("--keep-corpus", action="store_true", help="add interesting frames to tests/fuzz/corpus")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else secrets.randbelow(2**32)
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an end in order: the server ends, too
    shown_at = time.monotonic()

    def progress(report: Report) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= PROGRESS_EVERY_S:
            shown_at = time.monotonic()
            print(report, flush=True)

    with tempfile.TemporaryDirectory(prefix="shardd-fuzz-", ignore_cleanup_errors=True) as scratch:
        reports = Path(scratch) / "sanitizer"
        environment = {} if given.plain else sanitized_environment(reports)
        environment |= SETTINGS
        server = Server(Path(scratch) / "data", env=environment)
        server.start(120.0)
        if not given.plain and not all(map(runs_sanitized, server.worker_pids())):
            raise RuntimeError("the workers do not run the sanitized module")
        if given.cpu is not None:
            put_on_cpu(server, given.cpu)
        watch = Watch(server, GROWTH_MAX_BYTES, None if given.plain else reports)
        generation = None if given.release is None else legacy.generation_of_clients(given.release)
        fuzzer = Fuzzer(server, seed, watch, generation=generation)
        try:
            report = fuzzer.run(given.frames, given.seconds, progress)
        except FindingError as finding:
            print(f"FINDING after {fuzzer.totals.frames:,} frames, seed {seed}: {finding}", flush=True)
            print(f"figures: {shard_figures(server.address)}\n{server.log()[-4000:]}", flush=True)
            return 1
        finally:
            watch.close()
            status = server.stop(60.0)
        print(report, flush=True)
        print(f"statuses: {dict(sorted(report.totals.statuses.items()))}")
        if given.keep_corpus:
            print(f"{keep_corpus(report.totals)} frames added to the corpus")
        if status != 0 or (not given.plain and any(reports.parent.glob(f"{reports.name}*"))):
            print(f"the server ended with {status}\n{server.log()[-4000:]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
