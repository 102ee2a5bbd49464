"""Ingestion of NATS messages (`make bench-nats`): 100 bytes each, stored at `written`, from a released nats-server or
at the door's own, at full speed. Told are messages a second from the first that is sent to the last that is stored, CPU
time of the door for each, and what was lost.

    python -m bench.nats [--messages N] [--rounds N] [--subjects N] [--profile FILE]

The publisher writes bytes that were made before, so that it costs as little as may be."""

from __future__ import annotations

import argparse
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from tests.doors.door_server import HOST
from tests.doors.nats_peers import NatsDoor, NatsServerProgram, linked, wait_until

SIZE: Final = 100
_CHUNK: Final = 1 << 18


def publish(port: int, subjects: list[str], messages: int) -> None:
    """All of them, over one connection; returns when the server has read them."""
    value = b"x" * SIZE
    lines = b"".join(
        f"PUB {subjects[n % len(subjects)]} {SIZE}\r\n".encode() + value + b"\r\n" for n in range(messages)
    )
    with socket.create_connection((HOST, port), timeout=60) as connection:
        connection.sendall(b'CONNECT {"verbose":false}\r\n')
        for begin in range(0, len(lines), _CHUNK):
            connection.sendall(lines[begin : begin + _CHUNK])
        connection.sendall(b"PING\r\n")
        heard = b""
        while b"PONG" not in heard:
            heard = heard[-4:] + connection.recv(65_536)


class Round(msgspec.Struct):
    """`lost`: by reason."""

    messages_per_s: float
    door_cpu_us_per_message: float
    lost: dict[str, int]


def stored_count(door: NatsDoor, topic: dict[str, object]) -> int:
    with door.root() as root:
        said = root.ask("get_topic", {"stream": topic["stream_id"], "topic": topic["topic_id"]})
    return int(said["topic"]["messages_count"])


def one_round(door: NatsDoor, port: int, name: str, subjects: int, messages: int) -> Round:
    made = door.make_stream(name, f"{name}.*", 1)
    time.sleep(0.5)
    process = door.door("liftbridge")
    before, lost = process.cpu_times(), door.losses()
    began_s = time.monotonic()
    publish(port, [f"{name}.s{n}" for n in range(subjects)], messages)
    wait_until(lambda: stored_count(door, made) + missing(door, lost) >= messages, "messages are missing")
    took_s = time.monotonic() - began_s
    after = process.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    now = door.losses()
    gone = {reason: count - lost.get(reason, 0) for reason, count in now.items() if count > lost.get(reason, 0)}
    return Round(messages / took_s, cpu_s / messages * 1e6, gone)


def missing(door: NatsDoor, before: dict[str, int]) -> int:
    return sum(door.losses().values()) - sum(before.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--subjects", type=int, default=16)
    options = parser.parse_args()
    for way in ("nats-server", "own"):
        with tempfile.TemporaryDirectory() as text, NatsServerProgram(Path(text)) as program:
            settings = linked(program.url) if way == "nats-server" else None
            with NatsDoor(Path(text) / "data", settings) as door:
                door.make_writer()
                wait_until(lambda door=door: door.figures()["listens"] > 0, "no connection")  # type: ignore[misc]
                time.sleep(1)
                port = program.port if way == "nats-server" else door.nats_port
                for number in range(options.rounds):
                    done = one_round(door, port, f"{way.replace('-', '')}{number}", options.subjects, options.messages)
                    print(
                        f"{way:12} {done.messages_per_s:10,.0f} messages/s"
                        f" {done.door_cpu_us_per_message:6.1f} us of the door each, lost {done.lost or 0}"
                    )


if __name__ == "__main__":
    main()
