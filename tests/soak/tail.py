"""`make soak-tail`: `shardd consume --follow` for an hour, while workers and the whole server are killed with -9.

    python -m tests.soak.tail [--minutes M] [--seed N] [--kill-every-s S]

A producer of `shardd.client` sends numbered messages; one process follows the topic from its beginning. In the end
the offsets that it wrote are 0, 1, 2, ... in every partition, without a gap or one twice, and every message that was
acknowledged is among them in the partition that its acknowledgement named. (A message whose acknowledgement was lost
is sent again and may be stored twice, at two offsets.)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shardd.client import Client, Producer
from shardd.client.errors import ClientError
from shardd.client.outbox import Position
from tests.support.server import Server

PARTITIONS: Final = 4
_PAUSE_S: Final = 0.02  # between batches of the producer
_BATCH: Final = 20
_SUPERVISOR_ONE_IN: Final = 6  # kills of the whole server
_CATCH_UP_S: Final = 60.0


def problems(lines: Iterable[str], acknowledged: set[tuple[int, str]]) -> list[str]:
    """What is wrong with `partition offset payload` lines in the order in which they were written."""
    found: list[str] = []
    next_offset = dict.fromkeys(range(PARTITIONS), 0)
    written: set[tuple[int, str]] = set()
    for line in lines:
        partition, offset, payload = line.split(" ", 2)
        place, expected = int(partition), next_offset[int(partition)]
        if int(offset) != expected:
            found.append(f"partition {partition}: offset {offset} where {expected} is next")
        next_offset[place] = int(offset) + 1
        written.add((place, payload))
    missing = sorted(acknowledged - written)
    found += [f"partition {place}: {payload!r} was acknowledged and never written" for place, payload in missing[:20]]
    return found


async def produce(address: str, until: float, acknowledged: set[tuple[int, str]]) -> tuple[int, int]:
    """Sends until that moment (monotonic clock); how many messages were sent, and were told to have failed. Each is
    tried for five minutes."""
    number = failed = 0
    async with (
        Client(f"shardd://iggy:iggy@{address}") as client,
        Producer(client, "followed", "events", deadline_s=300.0) as producer,
    ):
        waiting: list[tuple[str, asyncio.Future[Position]]] = []
        while time.monotonic() < until:
            for _ in range(_BATCH):
                payload = f"message {number}"
                waiting.append((payload, await producer.send(payload.encode(), key=str(number % 97).encode())))
                number += 1
            if len(waiting) >= 50 * _BATCH:
                failed += await _settle(waiting, acknowledged)
            await asyncio.sleep(_PAUSE_S)
        failed += await _settle(waiting, acknowledged)
    return number, failed


async def _settle(waiting: list[tuple[str, asyncio.Future[Position]]], acknowledged: set[tuple[int, str]]) -> int:
    """How many were not stored, or of unknown fate: their producer was told so."""
    failed = 0
    for payload, future in waiting:
        try:
            acknowledged.add(((await future).partition, payload))
        except ClientError:
            failed += 1
    waiting.clear()
    return failed


def kill_now_and_then(server: Server, chance: random.Random, until: float, every_s: float) -> dict[str, int]:
    """In a thread of its own; what was killed how often."""
    killed = {"worker": 0, "server": 0}
    while time.monotonic() + every_s < until:
        time.sleep(every_s * chance.uniform(0.5, 1.5))
        if chance.randrange(_SUPERVISOR_ONE_IN) == 0:
            server.kill_supervisor()
            server.wait()
            server.start()
            killed["server"] += 1
        else:
            workers = list(server.running_workers().values())
            if workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed["worker"] += 1
    return killed


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start_follower(address: str, output: Path) -> subprocess.Popen[bytes]:
    words = ["consume", "followed", "events", "--follow", "-f", "%p %o %v\\n", "--url", f"shardd://iggy:iggy@{address}"]
    with output.open("wb") as written:
        return subprocess.Popen([sys.executable, "-P", "-m", "shardd", *words], stdout=written)


async def follow(minutes: float, seed: int, every_s: float, directory: Path) -> list[str]:
    """Problems that were found; the account is printed."""
    address, output = free_address(), directory / "followed.txt"
    settings = {"SHARDD_TCP_ADDRESS": address, "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}
    acknowledged: set[tuple[int, str]] = set()
    with Server(directory / "data", settings) as server:
        async with Client(f"shardd://iggy:iggy@{address}") as client:
            await client.create_stream("followed")
            await client.create_topic("followed", "events", PARTITIONS)
        follower = await asyncio.to_thread(start_follower, address, output)
        try:
            until = time.monotonic() + minutes * 60
            kills = asyncio.to_thread(kill_now_and_then, server, random.Random(seed), until, every_s)
            (sent, failed), killed = await asyncio.gather(produce(address, until, acknowledged), kills)
            await asyncio.to_thread(_caught_up, output, follower, len(acknowledged))
        finally:
            follower.send_signal(signal.SIGINT)
            status = follower.wait(60)
    lines = output.read_text().splitlines()
    found = problems(lines, acknowledged)
    print(
        f"{minutes:g} minutes: {killed['worker']} workers and {killed['server']} servers killed; {sent} messages sent, "
        f"{len(acknowledged)} acknowledged, {failed} told to have failed, {len(lines)} written; "
        f"{len(found)} problems; seed {seed}"
    )
    return found if status == 130 else [*found, f"the follower ended with {status}"]


def _caught_up(output: Path, follower: subprocess.Popen[bytes], wanted: int) -> None:
    """Until nothing more is written, or for a minute."""
    deadline, before = time.monotonic() + _CATCH_UP_S, -1
    while time.monotonic() < deadline and follower.poll() is None:
        size = output.stat().st_size
        if size == before and output.read_bytes().count(b"\n") >= wanted:
            return
        before = size
        time.sleep(1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill-every-s", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardd-tail-") as directory:
        found = asyncio.run(follow(options.minutes, options.seed, options.kill_every_s, Path(directory)))
    for each in found[:20]:
        print(each)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
