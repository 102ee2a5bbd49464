"""`python -m bench.scrubber`: what the scrubber costs producers.

For each round two fresh servers, one after the other, without and with the scrubber (default rate, no rest between its
rounds); a producer for each shard sends a batch every 2 ms. Printed for each round, and the ratio of the median p99s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.backup import Producers, figures, fill
from bench.targets import Shardd
from tests.support.top import shard_figures

RATIO_MAX: Final = 1.5


def measure(base: Path, *, scrubs: bool, options: argparse.Namespace) -> dict[str, float]:
    """Figures of the sends to a fresh server whose sealed segments are scrubbed or not."""
    settings = {
        "SHARDD_SYSTEM_SEGMENT_SIZE": "16 MiB",
        "SHARDD_SYSTEM_SCRUBBER_ENABLED": str(scrubs).lower(),
        "SHARDD_SYSTEM_SCRUBBER_PAUSE": "10 ms",
    }
    if options.rate:
        settings["SHARDD_SYSTEM_SCRUBBER_RATE"] = options.rate
    server = Shardd(base, sorted(os.sched_getaffinity(0)), None, settings)
    try:
        producers = Producers(server.port, fill(server, options.prefill_mib << 20))
        producers.during(
            lambda: time.sleep(options.seconds)
        )  # the device has what was sent before, segments are sealed
        found = figures(producers.during(lambda: time.sleep(options.seconds)))
        shards = shard_figures(f"127.0.0.1:{server.port}")
        found["scrubbed_mib"] = sum(each["scrubber.bytes"] for each in shards) >> 20
        if scrubs and not found["scrubbed_mib"]:
            raise RuntimeError("nothing was scrubbed")
        producers.stop()
    finally:
        server.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--prefill-mib", type=int, default=128)
    parser.add_argument("--rate", default="", help="system.scrubber.rate instead of the default")
    options = parser.parse_args()
    p99: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(options.rounds):
        for scrubs in (False, True):
            with tempfile.TemporaryDirectory(prefix="shardd-bench-") as base:
                found = measure(Path(base) / "shardd", scrubs=scrubs, options=options)
            p99[scrubs].append(found["p99_ms"])
            print(json.dumps({"scrubber": scrubs, **found}), flush=True)
    ratio = statistics.median(p99[True]) / statistics.median(p99[False])
    verdict = "held" if ratio <= RATIO_MAX else "missed"
    print(f"p99 of producers with the scrubber over without: {ratio:.2f} (at most {RATIO_MAX}: {verdict})")
    return 0 if ratio <= RATIO_MAX else 1


if __name__ == "__main__":
    raise SystemExit(main())
