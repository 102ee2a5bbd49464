"""`python -m bench.tls_path`: what TLS costs a server: the same load plain and over TLS on the same port, in turns.

Two parts: a shard on each CPU beside the clients, which then pay for TLS on the same CPUs; and one shard on a CPU whose
clients have the next one for themselves, as clients on other machines do. Each row: requests/s of TLS over plain, and
CPU time of the server for a request, plain over TLS."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
import typer

from bench.lines import Line, Placement
from bench.native_build import build
from bench.targets import Shardd

TLS: Final = {"SHARDD_TCP_TLS_MODE": "both", "SHARDD_TCP_TLS_SELF_SIGNED": "true"}
LINES: Final = (
    (Line("send", 1, 100, 32, Placement.HASH, 0.6), 0.6),
    (Line("send", 1000, 1000, 8, Placement.HASH, 0.45), 0.45),
    (Line("poll", 1, 100, 32, Placement.HASH, 0.6), 0.6),
    (Line("poll", 1000, 1000, 8, Placement.HASH, 0.45), 0.45),
)


class Cost(msgspec.Struct):
    requests_per_s: float
    cpu_us: float  # of the server, for a request


def run(server: Shardd, line: Line, streams: list[int], tls: bool, mode: str, requests: int, cpu: int) -> Cost:
    """`mode`: of the line, or "fill" for its polls: `requests` for each connection. `cpu`: of the client; -1: any."""
    how = "--requests-each" if mode == "fill" else "--requests"
    mode = "send" if mode == "fill" else mode
    options = ["--login", "--port", str(server.port), "--mode", mode, "--connections", str(line.connections)]
    options += ["--batch", str(line.batch), "--payload", str(line.payload_bytes), how, str(requests)]
    options += ["--streams", ",".join(map(str, streams)), *(["--tls"] if tls else [])]
    options += ["--cpu", str(cpu)] if cpu >= 0 else []
    if mode == "poll":
        options += ["--poll-messages", str(line.batch * 8)]
    before = server.cpu_s()
    done = subprocess.run([str(build("load")), *options], capture_output=True, text=True, check=True)
    used = server.cpu_s() - before
    told = json.loads(done.stdout)
    return Cost(float(told["requests_per_s"]), used / told["answered"] * 1e6)


def compare(server: Shardd, line: Line, rounds: int, requests: int, cpu: int) -> tuple[float, float]:
    """Medians of TLS over plain: requests/s, and CPU time of plain over that of TLS."""
    streams, _ = server.make_streams(line)
    if line.mode == "poll":
        run(server, line, streams, False, "fill", 8, cpu)
    rates, costs = [], []
    for _ in range(rounds):
        plain, over_tls = (run(server, line, streams, tls, line.mode, requests, cpu) for tls in (False, True))
        rates.append(over_tls.requests_per_s / plain.requests_per_s)
        costs.append(plain.cpu_us / over_tls.cpu_us)
    server.drop_streams(streams)
    return median(rates), median(costs)


def part(what: str, server_cpus: list[int], client_cpu: int, rounds: int, requests: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as directory:
        server = Shardd(Path(directory) / "server", server_cpus, None, TLS)
        try:
            for line, least in LINES:
                count = requests if line.batch == 1 else requests // 60
                rate, cost = compare(server, line, rounds, count, client_cpu)
                verdict = "ok" if rate >= least else "BELOW"
                print(
                    f"{what:<22} {line.name:<22} requests/s {rate:5.2f}  server's CPU {cost:5.2f}  "
                    f"(>= {least}) {verdict}",
                    flush=True,
                )
        finally:
            server.stop()


def main(rounds: int = 5, requests: int = 60_000) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    part("clients beside", cpus[:2], -1, rounds, requests)
    if len(cpus) > 1:
        part("clients on another CPU", cpus[:1], cpus[1], rounds, requests)


if __name__ == "__main__":
    typer.run(main)
