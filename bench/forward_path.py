"""`python -m bench.forward_path`: ways from one pinned worker process to another.

ZeroMQ over ipc (pyzmq, as the bus between workers), descriptor rings in shared memory with an eventfd doorbell, and a
socket that moves over (SCM_RIGHTS). Round trips of 128-byte requests; CPU of both processes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zmq

from bench import report
from bench.native_build import build

REQUEST_BYTES = 128
RUN_TIMEOUT_S = 180
REPLY_TIMEOUT_MS = 10_000
COLUMNS = ("way", "in flight", "us per request", "CPU us per request")
NAMES = {
    "zmq": "ZeroMQ ipc DEALER/ROUTER",
    "ring": "shared ring, eventfd doorbell",
    "spin": "shared ring, 20 us look first",
    "pass": "socket there and back (SCM_RIGHTS)",
}


def _cpu_us() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


def _zmq_serve(endpoint: str, cpu: int, requests: int, used: multiprocessing.Queue[float]) -> None:
    os.sched_setaffinity(0, {cpu})
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.RCVTIMEO, REPLY_TIMEOUT_MS)
        router.bind(endpoint)
        before = _cpu_us()
        for _ in range(requests):
            router.send_multipart(router.recv_multipart())
        used.put(_cpu_us() - before)


def measure_zmq(cpus: tuple[int, int], requests: int, depth: int) -> tuple[float, float]:
    """(microseconds, CPU microseconds of both) for each request. zmq.Again when the peer does not answer."""
    spawn = multiprocessing.get_context("spawn")
    used: multiprocessing.Queue[float] = spawn.Queue()
    home = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(prefix="shardd-zmq-") as base:
        endpoint = f"ipc://{base}/peer"
        peer = spawn.Process(target=_zmq_serve, args=(endpoint, cpus[1], requests + 1, used), daemon=True)
        peer.start()
        os.sched_setaffinity(0, {cpus[0]})
        try:
            with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
                dealer.setsockopt(zmq.RCVTIMEO, REPLY_TIMEOUT_MS)
                dealer.setsockopt(zmq.LINGER, 0)
                dealer.connect(endpoint)
                payload = bytes(REQUEST_BYTES)
                dealer.send(payload)  # the first answer proves that the peer is up
                dealer.recv()
                sent, cpu_before, started = 0, _cpu_us(), time.perf_counter()
                for received in range(requests):
                    while sent < requests and sent - received < depth:
                        dealer.send(payload)
                        sent += 1
                    dealer.recv()
                elapsed_us, cpu = (time.perf_counter() - started) * 1e6, _cpu_us() - cpu_before
            cpu += used.get(timeout=10)
            peer.join(10)
        finally:
            os.sched_setaffinity(0, home)
            if peer.is_alive():
                peer.kill()
    return elapsed_us / requests, cpu / requests


def measure_native(way: str, cpus: tuple[int, int], requests: int, depth: int) -> tuple[float, float]:
    """As measure_zmq, by bench/native/forward_path.c. RuntimeError with its words."""
    command = [str(build("forward_path")), way, "--requests", str(requests), "--depth", str(depth)]
    command += ["--cpus", f"{cpus[0]},{cpus[1]}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"forward_path ended with {done.returncode}")
    answer = json.loads(done.stdout)
    return float(answer["us_per_request"]), float(answer["cpu_us_per_request"])


def measure(rounds: int, requests: int) -> list[list[str]]:
    """Rows of COLUMNS, medians over the rounds; the ways alternate."""
    usable = sorted(os.sched_getaffinity(0))
    cpus = (usable[0], usable[-1])
    cases = [(way, depth) for way in ("zmq", "ring", "spin") for depth in (1, 16)] + [("pass", 1)]
    found: dict[tuple[str, int], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for way, depth in cases:
            count = requests // 4 if way == "zmq" else requests
            done = measure_zmq(cpus, count, depth) if way == "zmq" else measure_native(way, cpus, count, depth)
            found[way, depth].append(done)
    out = []
    for (way, depth), values in found.items():
        us, cpu = (statistics.median(value[i] for value in values) for i in (0, 1))
        out.append([NAMES[way], str(depth), f"{us:.2f}", f"{cpu:.2f}"])
    return out


def main(words: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.forward_path", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=40_000, help="of a round (ZeroMQ: a quarter of it)")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args(words)
    print("\n".join(f"{key}: {value}" for key, value in report.machine(Path.cwd()).items()) + "\n")
    table = report.markdown_table if options.markdown else report.text_table
    print(table(COLUMNS, measure(options.rounds, options.requests)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
