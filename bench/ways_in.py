"""What the ways into a server cost, as ratios in one run: Unix socket and WebSocket beside TCP, on the same server.

    python -m bench.ways_in [--rounds N] [--seconds S]

Each round measures one way after the other; ratios are formed inside rounds, the table shows their medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from bench.native_build import build
from bench.targets import Shardd
from bench.wire import Wire

LOAD_TIMEOUT_S: Final = 120.0
TCP: Final = "tcp"


class Row(msgspec.Struct, frozen=True):
    """One way under one load, beside TCP: of `figure` its ratio must be at least, or at most, `bound`."""

    way: str
    connections: int
    figure: str
    at_least: bool
    bound: float

    @property
    def name(self) -> str:
        return f"{self.way}, 1 x 100 B, {self.connections} connections, {self.figure}"

    def holds(self, ratio: float) -> bool:
        return ratio >= self.bound if self.at_least else ratio <= self.bound


ROWS: Final = (
    Row("unix", 32, "requests_per_s", True, 1.2),
    Row("unix", 1, "p50_us", False, 0.8),
    Row("websocket", 32, "requests_per_s", True, 0.8),
)


def measure(load: Path, way: Sequence[str], row: Row, streams: Sequence[int], seconds: float) -> float:
    command = [str(load), *way, "--login", "--mode", "send", "--connections", str(row.connections)]
    command += ["--streams", ",".join(map(str, streams[: row.connections]))]
    command += ["--warmup-ms", "300", "--duration-ms", str(int(seconds * 1000))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return float(json.loads(done.stdout)[row.figure])


def run(rounds: int, seconds: float, base: Path) -> dict[Row, list[tuple[float, float]]]:
    """(TCP, the other way) of each round."""
    local = base / "s.sock"
    settings = {"SHARDD_UNIX_PATH": str(local), "SHARDD_WEBSOCKET_ENABLED": "true"}
    settings["SHARDD_WEBSOCKET_ADDRESS"] = "127.0.0.1:0"
    server = Shardd(base / "server", sorted(os.sched_getaffinity(0))[:2], None, settings)
    port = tomllib.loads((server.directory / "runtime" / "current_config.toml").read_text())["websocket"]["address"]
    ways = {
        TCP: ["--port", str(server.port)],
        "unix": ["--unix", str(local)],
        "websocket": ["--port", port.rpartition(":")[2], "--websocket"],
    }
    found: dict[Row, list[tuple[float, float]]] = {row: [] for row in ROWS}
    try:
        with Wire(server.port) as wire:
            streams = [wire.create_stream(f"s{number}") for number in range(max(row.connections for row in ROWS))]
            for stream in streams:
                wire.create_topic(stream, "t", 1)
        load = build("load")
        others = sorted(os.sched_getaffinity(0) - {server.serving_cpu(streams[0])})
        alone = ["--cpu", str(others[0])] if others else []  # as bench/measure.py has it for a single connection
        for _ in range(rounds):
            for row in ROWS:
                pair = [
                    measure(load, ways[way] + (alone if row.connections == 1 else []), row, streams, seconds)
                    for way in (TCP, row.way)
                ]
                found[row].append((pair[0], pair[1]))
    finally:
        server.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardd-ways-in-") as base:
        found = run(options.rounds, options.seconds, Path(base))
    lost = 0
    for row, pairs in found.items():
        ratio = median(other / tcp for tcp, other in pairs)
        tcp, other = (median(pair[side] for pair in pairs) for side in range(2))
        lost += not row.holds(ratio)
        wanted = f"{'>=' if row.at_least else '<='} {row.bound}"
        verdict = "holds" if row.holds(ratio) else "lost"
        print(f"{row.name}: {other:.1f} beside {tcp:.1f} of TCP, ratio {ratio:.2f} ({wanted}): {verdict}")
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
