"""`make vopr`: everything at once against one server, and whatever was acknowledged is judged.

    python -m tests.vopr [--seconds N] [--seed N] [--engine NAME] [--topics NAME...] [--directory DIR] [--log FILE]

Ten topics of different kinds, each with a thread that sends, reads, changes settings, purges, deletes and makes anew;
backups one on top of the other; kills, stops, full and failing disks, few descriptors and clock jumps, one after the
other. The seed decides the plan of each thread; the moments depend on the machine, too. Exit status 1 at a finding:
then the directory is kept, with the data in `found`, and the log has what was done to that partition.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.vopr.plan import KINDS
from tests.vopr.run import ENGINES, Run


def main() -> int:
    parser = argparse.ArgumentParser(description="Everything at once against one server.")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0])
    parser.add_argument("--topics", nargs="+", choices=[each.name for each in KINDS], help="only these kinds")
    parser.add_argument("--directory", type=Path, default=None, help="for the data; default: a temporary one")
    parser.add_argument("--log", type=Path, default=None, help="what was done; default: vopr.log in the directory")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else secrets.randbelow(2**32)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an end in order: the server ends, too
    kinds = [each for each in KINDS if not given.topics or each.name in given.topics]
    root = Path(tempfile.mkdtemp(prefix="shardd-vopr-", dir=given.directory))
    log = given.log or root / "vopr.log"
    print(f"vopr: seed {seed}, {given.engine}, {given.seconds:.0f} s, log in {log}", flush=True)
    began = time.monotonic()
    with log.open("a") as file:
        outcome = Run(root, seed, file, kinds=kinds, engine=given.engine).run(given.seconds)
    for finding in outcome.findings[:30]:
        print(f"FINDING {finding}")
    for skipped in outcome.skipped:
        print(f"SKIPPED {skipped}")
    print(f"vopr: {outcome}; {(time.monotonic() - began) / 60:.1f} minutes; seed {seed}, {given.engine}", flush=True)
    if outcome.findings:
        print(f"the logs are in {root}")
        return 1
    shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
