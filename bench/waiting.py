"""`python -m bench.waiting` (`make bench-waiting`): what polls that wait cost: 10,000 clients with one each.

Each of them waits for one of 1,000 partitions of a server with two shards. Printed with their bounds: CPU time of the
workers while nothing happens, and how often they wake up, beside the same connections that do not wait; memory for the
waits; time from before a send to the answer of each wait that it ends, one send at a time; CPU time of a send to
another topic, with and without waits, in turns. At last one message ends all waits at once."""

from __future__ import annotations

import argparse
import resource
import select
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from bench.native_build import build
from bench.targets import Shardd
from bench.wire import Wire, identifier, name
from shardd.client import SyncClient
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages

WAITERS: Final = 10_000
PARTITIONS: Final = 1_000
WAIT_MS: Final = 300_000
POLL_OFFSET: Final = 1
SHARDS: Final = 2
SETTLE_S: Final = 3.0
ANSWER_TIMEOUT_S: Final = 60.0
IDLE_CPU_MAX: Final = 0.01
MEMORY_BYTES_MAX: Final = 10_000_000
WAKE_P99_MS_MAX: Final = 10.0
SEND_RATIO_MAX: Final = 1.05


Used = dict[Path, tuple[float, int]]  # by thread: CPU time in seconds, how often it went to sleep


def since(before: Used, after: Used) -> tuple[float, int]:
    """Of the threads that live on."""
    both = [(before[task], after[task]) for task in after if task in before]
    return sum(now[0] - then[0] for then, now in both), sum(now[1] - then[1] for then, now in both)


class Workers:
    """What the workers of a server have used so far."""

    def __init__(self, server: Shardd) -> None:
        self._processes = [Path(f"/proc/{server.worker_pid(shard)}") for shard in range(SHARDS)]

    def _tasks(self) -> list[Path]:
        return [task for process in self._processes for task in (process / "task").iterdir()]

    def used(self) -> Used:
        found = {}
        for task in self._tasks():
            cpu_ns = int((task / "schedstat").read_text().split()[0])
            lines = (task / "status").read_text().splitlines()
            sleeps = next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
            found[task] = (cpu_ns / 1e9, sleeps)
        return found

    def memory_bytes(self) -> tuple[int, int]:
        """Of their own, and with their parts of what they share: buffers that anybody's requests have used lately."""
        own = whole = 0
        for process in self._processes:
            lines = (process / "smaps_rollup").read_text().splitlines()
            sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
            own, whole = own + sizes["Anonymous"], whole + sizes["Pss"]
        return own, whole


class Idle(msgspec.Struct, frozen=True):
    """While nothing happens: share of one CPU, and sleeps of all threads in a second."""

    cpu: float
    sleeps_per_s: float


def idle(workers: Workers, seconds: float) -> Idle:
    time.sleep(SETTLE_S)
    before, began_s = workers.used(), time.monotonic()
    time.sleep(seconds)
    cpu_s, sleeps = since(before, workers.used())
    took_s = time.monotonic() - began_s
    return Idle(cpu_s / took_s, sleeps / took_s)


def token(wire: Wire) -> bytes:
    answer = wire.request(Code.CREATE_PERSONAL_ACCESS_TOKEN, name("waiters") + bytes(8))
    return answer[1 : 1 + answer[0]]


def frame(code: int, payload: bytes) -> bytes:
    return struct.pack("<II", 4 + len(payload), code) + payload


def waits(server: Shardd) -> int:
    """Polls that wait on all shards."""
    with SyncClient(f"shardd://iggy:iggy@127.0.0.1:{server.port}") as client:
        found = client.metrics()
    return sum(shard.values["engine.polls_waiting"] for shard in found.shards)


class Crowd:
    """Connections that are logged in, and what they wait for: messages of a stream's first topic."""

    def __init__(self, port: int, secret: bytes, stream: int) -> None:
        self._where = identifier(stream) + identifier(0)
        self.sockets: list[socket.socket] = []
        self.again = 0
        for _ in range(WAITERS):
            made = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
            made.sendall(frame(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, bytes([len(secret)]) + secret))
            self.sockets.append(made)
        for each in self.sockets:
            self.answer(each)

    def ask(self, number: int, partition: int, offset: int, wait_ms: int = WAIT_MS) -> None:
        """One of them waits for a message at `offset`; with a time of 0 it does not wait."""
        who = b"\x01" + identifier(number + 1)
        how = struct.pack("<BIBQIBI", 1, partition, POLL_OFFSET, offset, 1, 0, wait_ms)
        self.sockets[number].sendall(frame(ExtensionCode.POLL_AND_WAIT, who + self._where + how))

    def ask_all(self, offsets: Sequence[int], *, partition: int | None = None, wait_ms: int = WAIT_MS) -> None:
        for number in range(WAITERS):
            where = number % PARTITIONS if partition is None else partition
            self.ask(number, where, offsets[where], wait_ms)

    @staticmethod
    def answer(each: socket.socket) -> int:
        """Messages of the answer; RuntimeError for a status. A login has none."""
        head = each.recv(8, socket.MSG_WAITALL)
        status, length = struct.unpack("<II", head)
        payload = each.recv(length, socket.MSG_WAITALL) if length else b""
        if status != 0:
            raise RuntimeError(f"status {status}")
        return int.from_bytes(payload[12:16], "little")

    def begin(self, offsets: Sequence[int], server: Shardd, *, partition: int | None = None) -> None:
        """All of them wait, at the end. Who was answered at once, as the way to another shard was full, asks again."""
        self.ask_all(offsets, partition=partition)
        poller = select.epoll()
        numbers = {each.fileno(): number for number, each in enumerate(self.sockets)}
        for descriptor in numbers:
            poller.register(descriptor, select.EPOLLIN)
        while waits(server) < WAITERS:
            for descriptor, _events in poller.poll(0.1):
                number = numbers[descriptor]
                if self.answer(self.sockets[number]) != 0:
                    raise RuntimeError("a message that nobody has sent")
                self.again += 1
                where = number % PARTITIONS if partition is None else partition
                self.ask(number, where, offsets[where])
        poller.close()

    def answers(self, numbers: Sequence[int]) -> list[float]:
        """When each of these was answered, in the order in which they were."""
        left = {self.sockets[number].fileno(): number for number in numbers}
        poller, times = select.epoll(), []
        for descriptor in left:
            poller.register(descriptor, select.EPOLLIN)
        while left:
            ready = poller.poll(ANSWER_TIMEOUT_S)
            now = time.perf_counter()
            if not ready:
                raise TimeoutError(f"{len(left)} polls are not answered")
            for descriptor, _events in ready:
                if self.answer(self.sockets[left.pop(descriptor)]) != 1:
                    raise RuntimeError("a poll ended without its message")
                poller.unregister(descriptor)
                times.append(now)
        poller.close()
        return times

    def close(self) -> None:
        for each in self.sockets:
            each.close()


class Messages:
    """What was sent to each partition of a stream's first topic."""

    def __init__(self, wire: Wire, stream: int) -> None:
        self._wire, self._stream = wire, stream
        self.offsets = [0] * PARTITIONS  # of the next one

    def send(self, partition: int) -> None:
        where = Partitioning(PartitioningKind.PARTITION, partition)
        request = SendMessages.of(self._stream, 0, where, [NewMessage(b"x" * 100)]).encode()
        self._wire.request(Code.SEND_MESSAGES, request)
        self.offsets[partition] += 1


def percentile(times: Sequence[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def wake_times_ms(crowd: Crowd, messages: Messages, sends: int) -> list[float]:
    """From before a send to the answer of each poll that it ends; who was answered waits again."""
    found: list[float] = []
    for number in range(sends):
        partition = number * 7 % PARTITIONS
        waiting = range(partition, WAITERS, PARTITIONS)
        began = time.perf_counter()
        messages.send(partition)
        found += [(at - began) * 1000 for at in crowd.answers(waiting)]
        for each in waiting:
            crowd.ask(each, partition, messages.offsets[partition])
    return found


def end_waits(crowd: Crowd, messages: Messages) -> None:
    for partition in range(PARTITIONS):
        messages.send(partition)
    crowd.answers(range(WAITERS))


def send_cpu_us(server: Shardd, workers: Workers, stream: int, requests: int) -> float:
    """CPU time of the workers for a send."""
    command = [str(build("load")), "--login", "--port", str(server.port), "--mode", "send", "--connections", "8"]
    command += ["--streams", str(stream), "--requests", str(requests)]
    before = workers.used()
    subprocess.run(command, capture_output=True, check=True)
    return since(before, workers.used())[0] / requests * 1e6


def verdict(text: str, value: float, bound: float) -> bool:
    holds = value <= bound
    print(f"{text:<58} {value:10.3f}  (<= {bound:g}) {'holds' if holds else 'LOST'}", flush=True)
    return holds


def measure(server: Shardd, options: argparse.Namespace) -> bool:
    workers = Workers(server)
    with Wire(server.port) as wire, Wire(server.port) as sender:
        stream, other = wire.create_stream("waited"), wire.create_stream("other")
        wire.create_topic(stream, "t", PARTITIONS)
        wire.create_topic(other, "t", 1)
        messages, crowd = Messages(sender, stream), Crowd(server.port, token(wire), stream)
        for partition in range(PARTITIONS):
            messages.send(partition)
        crowd.ask_all(messages.offsets, wait_ms=0)  # what polls bring into memory stays there, who waits or not
        for each in crowd.sockets:
            crowd.answer(each)
        quiet = idle(workers, options.idle_s)
        before = workers.memory_bytes()
        crowd.begin(messages.offsets, server)
        waiting = idle(workers, options.idle_s)
        held, whole = (now - then for now, then in zip(workers.memory_bytes(), before, strict=True))
        print(f"{WAITERS} connections that do not wait: {quiet.cpu:.4f} of a CPU, {quiet.sleeps_per_s:.0f} sleeps/s")
        print(
            f"{WAITERS} that wait:                    {waiting.cpu:.4f} of a CPU, {waiting.sleeps_per_s:.0f} sleeps/s"
        )
        good = verdict("CPU of the workers while nothing happens", waiting.cpu, IDLE_CPU_MAX)
        good &= verdict("memory for the waits, MB", held / 1e6, MEMORY_BYTES_MAX / 1e6)
        print(f"with buffers that the workers share and use again: {whole / 1e6:.3f} MB")
        times = wake_times_ms(crowd, messages, options.sends)
        print(f"wake-up, ms: p50 {median(times):.3f}, max {max(times):.3f}, of {len(times)}")
        good &= verdict("wake-up, ms: p99", percentile(times, 0.99), WAKE_P99_MS_MAX)
        pairs = []
        for _ in range(options.rounds):
            many = send_cpu_us(server, workers, other, options.requests)
            end_waits(crowd, messages)
            none = send_cpu_us(server, workers, other, options.requests)
            crowd.begin(messages.offsets, server)
            pairs.append(many / none)
        good &= verdict("CPU time of a send, with waits over without", median(pairs), SEND_RATIO_MAX)
        end_waits(crowd, messages)
        crowd.begin(messages.offsets, server, partition=0)
        began = time.perf_counter()
        messages.send(0)
        took = [(at - began) * 1000 for at in crowd.answers(range(WAITERS))]
        print(f"one message for all of them, ms: p50 {median(took):.1f}, p99 {percentile(took, 0.99):.1f}")
        print(f"polls that were answered at once and asked again: {crowd.again}")
        crowd.close()
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle-s", type=float, default=20.0, help="each look at what nothing costs (20)")
    parser.add_argument("--sends", type=int, default=500, help="each ends ten waits (500)")
    parser.add_argument("--rounds", type=int, default=5, help="of sends with and without waits (5)")
    parser.add_argument("--requests", type=int, default=100_000, help="sends of a round (100,000)")
    options = parser.parse_args()
    wanted = WAITERS + 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    settings = {"SHARDD_SERVER_CONNECTIONS_MAX": "12000"}
    with tempfile.TemporaryDirectory(prefix="shardd-waiting-", ignore_cleanup_errors=True) as base:
        server = Shardd(Path(base) / "server", [0, 1], None, settings)
        try:
            return 0 if measure(server, options) else 1
        finally:
            server.stop()


if __name__ == "__main__":
    raise SystemExit(main())
