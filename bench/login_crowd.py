"""`python -m bench.login_crowd`: right logins beside a crowd of wrong ones, and how fast a password can be guessed.

A process of its own keeps `--wrong` connections from `--addresses` addresses of this host busy with wrong passwords of
root: each asks again as soon as it is answered. Meanwhile clients of six other addresses log in rightly, one after the
other. Then, without the crowd, one client guesses root's password and logs in to an account of its own between any two
guesses. Reported: the right logins (median, p99, longest, refused), the wrong ones a second, what CPU the server used.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import selectors
import socket
import struct
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import psutil

from bench.targets import Shardd
from bench.wire import Wire, name
from shardd.protocol.codes import Code

RIGHT_ADDRESSES: Final = [f"127.0.0.{host}" for host in range(2, 8)]
LONGEST_S: Final = 120.0


def login_frame(user: str, password: str) -> bytes:
    payload = name(user) + name(password) + bytes(8)
    return struct.pack("<II", 4 + len(payload), Code.LOGIN_USER) + payload


def connect(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=LONGEST_S, source_address=(source, 0))


def log_in(port: int, source: str, frame: bytes) -> tuple[int, float]:
    """Status and seconds of one login on a connection of its own, connecting included; 0 is success."""
    started = time.monotonic()
    with connect(port, source) as one:
        one.sendall(frame)
        head = one.recv(8, socket.MSG_WAITALL)
    return int.from_bytes(head[:4], "little") if len(head) == 8 else -1, time.monotonic() - started


def keep_guessing(port: int, connections: int, addresses: int, control: Connection) -> None:
    """The crowd, in a process of its own, until `control` says something; then it reports its answers."""
    frame, answered, closed = login_frame("iggy", "wrong"), 0, 0
    with selectors.DefaultSelector() as waiting:
        for number in range(connections):
            one = connect(port, f"127.1.0.{1 + number % addresses}")
            waiting.register(one, selectors.EVENT_READ)
            one.sendall(frame)
        control.send("begun")
        while not control.poll():
            for key, _ in waiting.select(0.05):
                one = key.fileobj  # type: ignore[assignment]
                head = one.recv(8)
                if len(head) == 8 and head[:4] == b"\x2a\0\0\0":
                    answered += 1
                    one.sendall(frame)
                else:  # closed, or told to go: comes back
                    closed += 1
                    waiting.unregister(one)
                    one.close()
                    one = connect(port, f"127.1.0.{1 + closed % addresses}")
                    waiting.register(one, selectors.EVENT_READ)
                    one.sendall(frame)
    control.send((answered, closed))


def cpu_seconds(server: Shardd) -> float:
    """Of the supervisor and its workers."""
    own = psutil.Process(server._process.pid)
    return sum(sum(each.cpu_times()[:2]) for each in [own, *own.children(recursive=True)])


def beside_a_crowd(server: Shardd, wrong: int, addresses: int, seconds: float) -> dict[str, object]:
    context = multiprocessing.get_context("spawn")
    control, theirs = context.Pipe()
    crowd = context.Process(target=keep_guessing, args=(server.port, wrong, addresses, theirs), daemon=True)
    crowd.start()
    control.recv()
    taken: list[float] = []
    refused, frame, started, cpu = 0, login_frame("iggy", "iggy"), time.monotonic(), cpu_seconds(server)
    while time.monotonic() - started < seconds:
        for source in RIGHT_ADDRESSES:
            status, one_s = log_in(server.port, source, frame)
            refused += status != 0
            taken.append(one_s)
        time.sleep(0.1)
    passed, cpu = time.monotonic() - started, cpu_seconds(server) - cpu
    control.send("end")
    answered, closed = control.recv()
    crowd.join(LONGEST_S)
    taken.sort()
    return {
        "right": len(taken),
        "refused": refused,
        "median_ms": round(taken[len(taken) // 2] * 1000, 1),
        "p99_ms": round(taken[len(taken) * 99 // 100] * 1000, 1),
        "longest_ms": round(taken[-1] * 1000, 1),
        "wrong_a_second": round(answered / passed, 1),
        "closed": closed,
        "server_cpus": round(cpu / passed, 2),
    }


def guesses_with_an_own_account(server: Shardd, seconds: float) -> int:
    with Wire(server.port) as admin:
        admin.request(Code.CREATE_USER, name("mallory") + name("secret") + bytes([1, 0]))
    own, wrong, source, guesses = login_frame("mallory", "secret"), login_frame("iggy", "wrong"), "127.2.0.1", 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        log_in(server.port, source, wrong)
        log_in(server.port, source, own)
        guesses += 1
    return guesses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wrong", type=int, default=2000, help="connections that guess")
    parser.add_argument("--addresses", type=int, default=1, help="their addresses")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--command", help="another shardd")
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory(prefix="shardd-bench-") as base:
        server = Shardd(Path(base) / "shardd", cpus, options.command, {})
        try:
            print(json.dumps(beside_a_crowd(server, options.wrong, options.addresses, options.seconds)), flush=True)
        finally:
            server.stop()
        server = Shardd(Path(base) / "again", cpus, options.command, {})
        try:
            guesses = guesses_with_an_own_account(server, options.seconds)
            print(json.dumps({"seconds": options.seconds, "guesses_with_an_own_account": guesses}), flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
