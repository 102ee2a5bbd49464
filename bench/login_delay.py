"""`python -m bench.login_delay`: how long polls wait while many clients log in at once.

A poll of one message goes to each shard in turn, one every 2 ms, from a process of its own; another process opens 50
connections and logs in on all of them at the same moment. Reported for each round: polls while nobody logs in and
while they do (median, p99, longest), and how long the logins took together.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import struct
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from bench import lines
from bench.targets import Shardd
from bench.wire import Wire, name, send_request
from shardd.protocol.codes import Code
from shardd.protocol.primitives import Consumer, ConsumerKind, PollingKind
from shardd.protocol.requests import PollMessages

POLL_INTERVAL_S: Final = 0.002
QUIET_S: Final = 1.0
TIMEOUT_S: Final = 60.0
LOGIN: Final = name("iggy") + name("iggy") + bytes(8)


def poll_request(stream: int) -> bytes:
    """One message from offset 0 of partition 0 of topic 0, as plain consumer 1."""
    consumer = Consumer(ConsumerKind.CONSUMER, 1)
    return PollMessages(consumer, stream, 0, 0, PollingKind.OFFSET, 0, 1, False).encode()


def log_in_together(port: int, count: int, control: Connection) -> None:
    """In a process of its own: opens the connections, waits for the word, logs in on all, reports the seconds."""
    sockets = [socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) for _ in range(count)]
    control.send("ready")
    control.recv()
    started = time.monotonic()
    frame = struct.pack("<II", 4 + len(LOGIN), Code.LOGIN_USER) + LOGIN
    for each in sockets:
        each.sendall(frame)
    refused = 0
    for each in sockets:
        reply = b""
        while len(reply) < 8 or len(reply) < 8 + struct.unpack_from("<I", reply, 4)[0]:
            reply += each.recv(64)
        refused += reply[:4] != bytes(4)
    control.send((time.monotonic() - started, refused))


def poll_until(wires: list[tuple[Wire, bytes]], done: Connection | None, deadline: float) -> list[float]:
    """Milliseconds of each poll, until the other end of `done` has something to say or the deadline has passed."""
    taken: list[float] = []
    while time.monotonic() < deadline and not (done is not None and done.poll()):
        for wire, request in wires:
            started = time.monotonic()
            wire.request(Code.POLL_MESSAGES, request)
            taken.append((time.monotonic() - started) * 1000)
        time.sleep(POLL_INTERVAL_S)
    return sorted(taken)


def figures(taken: list[float]) -> dict[str, float]:
    """In milliseconds."""
    return {
        "polls": len(taken),
        "median_ms": round(taken[len(taken) // 2], 3),
        "p99_ms": round(taken[len(taken) * 99 // 100], 3),
        "longest_ms": round(taken[-1], 3),
    }


def measure(server: Shardd, logins: int, rounds: int) -> list[dict[str, object]]:
    """One entry for each round."""
    context = multiprocessing.get_context("spawn")
    found: list[dict[str, object]] = []
    streams: dict[int, int] = {}  # shard -> stream whose partition it owns
    with Wire(server.port) as admin:
        for number in range(64):
            stream = admin.create_stream(f"delay-{number}")
            streams.setdefault(lines.owner(stream, server.shards), stream)
            if len(streams) == server.shards:
                break
        for stream in streams.values():
            admin.create_topic(stream, "delay", 1)
            admin.request(Code.SEND_MESSAGES, send_request(stream, b"x" * 100))
        wires = [(Wire(server.port), poll_request(stream)) for stream in streams.values()]
        for _ in range(rounds):
            control, theirs = context.Pipe()
            clients = context.Process(target=log_in_together, args=(server.port, logins, theirs), daemon=True)
            clients.start()
            control.recv()
            quiet = poll_until(wires, None, time.monotonic() + QUIET_S)
            control.send("go")
            busy = poll_until(wires, control, time.monotonic() + TIMEOUT_S)
            seconds, refused = control.recv()
            clients.join(TIMEOUT_S)
            found.append(
                {"quiet": figures(quiet), "logins": figures(busy), "seconds": round(seconds, 2), "refused": refused}
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logins", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=0, help="default: one for each CPU")
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    cpus = cpus[: options.shards or len(cpus)]
    with tempfile.TemporaryDirectory(prefix="shardd-bench-") as base:
        server = Shardd(Path(base) / "shardd", cpus, None, {})
        try:
            for entry in measure(server, options.logins, options.rounds):
                print(json.dumps(entry), flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
