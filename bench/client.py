"""`python -m bench.client`: what the client and the command line cost: messages, or MB, for each second of CPU of their
process, with the native codec and with the pure one, in turns. The command line is counted with its start."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from shardd.client import Client, Consumer, Producer, SyncClient
from shardd.testing import server
from tests.support.venvs import client_python

PAYLOAD_BYTES: Final = 100
BATCH: Final = 1000
LINE_BYTES: Final = 1024
IN_FLIGHT: Final = 32
RELEASED: Final = "0.8.0"
CODEC: Final = "SHARDD_CLIENT_CODEC"
# name -> what it shall reach: with the native codec, with the pure one
TARGETS: Final = {
    "send_batch": (1e6, None),
    "send": (200e3, 60e3),
    "get_batch": (1.5e6, None),
    "async_for": (300e3, None),
}


async def send_batch(client: Client, count: int) -> None:
    payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(BATCH)]
    async with Producer(client, "bench", "out") as producer:
        for _ in range(count // BATCH):
            await producer.send_batch(payloads)


async def send(client: Client, count: int) -> None:
    payload = os.urandom(PAYLOAD_BYTES)
    async with Producer(client, "bench", "out") as producer:
        for _ in range(count):
            await producer.send(payload)


async def get_batch(client: Client, count: int) -> None:
    async with Consumer(client, "bench", "in", name="bench", commit="manual", batch_messages=4 * BATCH) as consumer:
        while count > 0:
            count -= len(await consumer.get_batch())


async def async_for(client: Client, count: int) -> None:
    async with Consumer(client, "bench", "in", name="bench", commit="manual") as consumer:
        async for _ in consumer:
            count -= 1
            if not count:
                return


WORK: Final[dict[str, Callable[[Client, int], Awaitable[None]]]] = {
    each.__name__: each for each in (send_batch, send, get_batch, async_for)
}


async def carried_out(name: str, url: str, count: int) -> float:
    """Seconds of CPU, without the start and the login."""
    async with Client(url) as client:
        await client.ping()
        begun = time.process_time()
        await WORK[name](client, count)
        return time.process_time() - begun


def cpu_s(command: list[str], environment: dict[str, str], **options: Any) -> float:
    """Of the whole process."""
    process = subprocess.Popen(command, env=environment, **options)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return used.ru_utime + used.ru_stime


def measure_library(url: str, count: int, rounds: int) -> None:
    for name, targets in TARGETS.items():
        rates: dict[str, list[float]] = {"native": [], "pure": []}
        for _ in range(rounds):
            for codec, found in rates.items():
                command = [sys.executable, "-m", "bench.client", "--work", name, "--url", url, "--count", str(count)]
                done = subprocess.run(command, env=os.environ | {CODEC: codec}, stdout=subprocess.PIPE, check=True)
                found.append(count / float(done.stdout))
        for (codec, found), target in zip(rates.items(), targets, strict=True):
            wanted = "" if target is None else f"  (>= {target:,.0f}) {'ok' if median(found) >= target else 'BELOW'}"
            print(f"{name:<11} {codec:<6} {median(found):>12,.0f} messages/s of CPU{wanted}")


async def single_sends(url: str, count: int) -> float:
    """Seconds, with 32 tasks that each wait for the answer."""
    payload, numbers = b"x" * PAYLOAD_BYTES, iter(range(count))

    async def send(producer: Producer) -> None:
        for _ in numbers:
            await producer.send_and_wait(payload, partition=0)

    async with Client(url) as client, Producer(client, "bench", "iggy", in_flight=IN_FLIGHT) as producer:
        await producer.send_and_wait(payload, partition=0)
        begun = time.perf_counter()
        await asyncio.gather(*(send(producer) for _ in range(IN_FLIGHT)))
        return time.perf_counter() - begun


def measure_released(url: str, address: str, count: int, rounds: int) -> None:
    """Single sends against the released client, in turns, in messages a second as the clock on the wall goes."""
    script, python = Path(__file__).with_name("iggy_sends.py"), client_python(RELEASED)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(count / asyncio.run(single_sends(url, count)))
        words = [str(python), str(script), f"iggy+tcp://iggy:iggy@{address}", str(count)]
        theirs.append(count / float(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout))
    ratio = median(our / their for our, their in zip(ours, theirs, strict=True))
    print(
        f"single sends, {IN_FLIGHT} in flight: {median(ours):,.0f}/s, apache-iggy {RELEASED} {median(theirs):,.0f}/s:",
        end=" ",
    )
    print(f"{ratio:.2f} times (>= 3) {'ok' if ratio >= 3 else 'BELOW'}")


def measure_commands(url: str, size_mb: int, rounds: int, directory: Path) -> None:
    shardd = str(Path(sys.executable).with_name("shardd"))
    lines, null = directory / "lines", Path(os.devnull)
    with lines.open("wb") as file:
        for _ in range(size_mb):
            file.write((os.urandom(LINE_BYTES // 2 - 1).hex() + "x\n").encode() * (1_000_000 // LINE_BYTES))
    size = lines.stat().st_size / 1e6
    rates: dict[str, list[float]] = {f"{name} {codec}": [] for name in ("produce", "consume") for codec in ("", "pure")}
    starts = []
    with SyncClient(url) as client:
        for _ in range(rounds):
            for codec in ("", "pure"):
                environment = os.environ | {"SHARDD_URL": url, CODEC: codec}
                client.purge_topic("bench", "lines")
                with null.open("w") as out:
                    used = cpu_s([shardd, "produce", "bench", "lines", str(lines), "--quiet"], environment)
                    rates[f"produce {codec}"].append(size / used)
                    used = cpu_s([shardd, "consume", "bench", "lines"], environment, stdout=out)
                    rates[f"consume {codec}"].append(size / used)
            asyncio_s = cpu_s([sys.executable, "-c", "import asyncio"], dict(os.environ))
            command = [shardd, "stream", "list", "-o", "jsonl"]
            starts.append(cpu_s(command, os.environ | {"SHARDD_URL": url}, stdout=subprocess.DEVNULL) / asyncio_s)
    for name, found in rates.items():
        print(f"{name:<16} {median(found):>8.0f} MB/s of CPU, with the start")
    print(f"stream list      {median(starts):8.2f} times the CPU of `import asyncio`")


def main(
    rounds: int = 3,
    count: int = 600_000,
    size_mb: int = 300,
    work: Annotated[str, typer.Option(hidden=True)] = "",
    url: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    if work:
        print(asyncio.run(carried_out(work, url, count)))
        return
    with tempfile.TemporaryDirectory(prefix="bench-client-") as directory, server() as running:
        with SyncClient(running.url) as client:
            client.create_stream("bench")
            for topic in ("in", "out", "lines", "iggy"):
                client.create_topic("bench", topic)
            token = client.create_token("bench")
        tokened = f"shardd://{quote(token, safe='')}@{running.address}"

        async def fill() -> None:
            async with Client(tokened) as client, Producer(client, "bench", "in") as producer:
                for _ in range(count // BATCH):
                    await producer.send_batch([b"x" * PAYLOAD_BYTES] * BATCH)

        asyncio.run(fill())
        measure_library(tokened, count, rounds)
        measure_released(tokened, running.address, count // 20, rounds)
        measure_commands(tokened, size_mb, rounds, Path(directory))


if __name__ == "__main__":
    typer.run(main)
