"""`python -m bench.once` (`make bench-once`): what it costs that nothing is stored twice, on the side of the server.

Batches of an idempotent producer against plain sends of the same messages, and sends to a topic that compares message
ids (a full window of a million) against one that does not. One connection, requests encoded before. Everything takes
turns in one run; the plain line runs twice in each round (A/A), which says what the machine scatters.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from bench.measure import touch_memory
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, ProducerEpoch, send_once_head
from shardd.protocol.topic_settings import SetTopicSettings
from tests.support import wire
from tests.support.server import Server

WINDOW_IDS: Final = 1_000_000
STREAM: Final = "bench"
ENV: Final = {
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
    "SHARDD_SYSTEM_MESSAGE_DEDUPLICATION_MAX_ENTRIES": str(WINDOW_IDS),
    "SHARDD_SYSTEM_MESSAGE_DEDUPLICATION_EXPIRY": "24 h",
}
_ANSWER_HEAD: Final = struct.Struct("<II")
_HEAD_BYTES: Final = 8  # of a frame
_ID_AT: Final = 8  # in a message


@dataclass
class Requests:
    """All requests of a round, one behind the other; what differs is written in place."""

    topic: str
    messages: int
    payload_bytes: int
    count: int
    once: bool = False
    ids: Iterator[int] | None = None
    content: bytearray = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        message = wire.message(bytes(self.payload_bytes))
        send = wire.batch(STREAM, self.topic, wire.to_partition(0), [message] * self.messages)
        head = send_once_head(1, 0, 0) if self.once else b""
        frame = wire.frame(ExtensionCode.SEND_ONCE if self.once else Code.SEND_MESSAGES, head + send)
        self.size = len(frame)
        self.content = bytearray(frame * self.count)
        self._first_id_at = self.size - self.messages * len(message) + _ID_AT
        self._message_bytes = len(message)

    def number(self, who: ProducerEpoch | None) -> None:
        for place in range(self.count):
            begin = place * self.size
            if who is not None:
                at = begin + _HEAD_BYTES
                self.content[at : at + 20] = send_once_head(who.producer, who.epoch, place)
            if self.ids is not None:
                for each in range(self.messages):
                    at = begin + self._first_id_at + each * self._message_bytes
                    struct.pack_into("<QQ", self.content, at, next(self.ids), 1)


class Bench:
    """One server, one connection."""

    def __init__(self, server: Server, root: wire.Wire, in_flight: int) -> None:
        self.root = root
        self.in_flight = in_flight
        self.workers = [psutil.Process(pid) for pid in server.running_workers().values()]

    def topic(self, name: str, **settings: str) -> None:
        self.root.create_topic(STREAM, name, 1)
        if settings:
            chosen = SetTopicSettings(STREAM, name, tuple(settings.items()))
            self.root.request(ExtensionCode.SET_TOPIC_SETTINGS, chosen.encode())

    def purge(self, name: str) -> None:
        self.root.purge_topic(STREAM, name)

    def run(self, requests: Requests) -> tuple[float, float]:
        """(requests in a second, microseconds of CPU of the workers for each)."""
        who = None
        if requests.once:
            answer = self.root.request(ExtensionCode.INIT_PRODUCER, InitProducer().encode())
            who = ProducerEpoch.read(Reader(answer))
        requests.number(who)
        touch_memory(len(requests.content))
        used, began = self._cpu_s(), time.perf_counter()
        self._send_all(requests)
        seconds = time.perf_counter() - began
        return requests.count / seconds, (self._cpu_s() - used) / requests.count * 1e6

    def _cpu_s(self) -> float:
        return float(sum(sum(each.cpu_times()[:2]) for each in self.workers))

    def _send_all(self, requests: Requests) -> None:
        answer_bytes = _ANSWER_HEAD.size + (16 if requests.once else 0)
        half = max(1, self.in_flight // 2)
        view, window = memoryview(requests.content), half * requests.size
        ahead = 0
        for at in range(0, len(view), window):
            part = view[at : at + window]
            self.root.socket.sendall(part)
            ahead += len(part) // requests.size
            if ahead >= self.in_flight:
                self._take(half, answer_bytes, once=requests.once)
                ahead -= half
        self._take(ahead, answer_bytes, once=requests.once)

    def _take(self, count: int, answer_bytes: int, *, once: bool) -> None:
        answers = self.root.receive(count * answer_bytes)
        for at in range(0, len(answers), answer_bytes):
            status, _ = _ANSWER_HEAD.unpack_from(answers, at)
            if status != 0 or (once and answers[at + _ANSWER_HEAD.size] != 1):
                raise RuntimeError(f"status {status}: {answers[at : at + answer_bytes].hex()}")


@dataclass
class Comparison:
    """`plain` against `other`; `plain` runs twice."""

    about: str
    plain: Requests
    other: Requests
    ratios: list[tuple[float, float]] = field(default_factory=list)  # requests, CPU time
    same: list[tuple[float, float]] = field(default_factory=list)

    def round(self, bench: Bench) -> None:
        first, other, second = (bench.run(each) for each in (self.plain, self.other, self.plain))
        rate, cost = (first[0] + second[0]) / 2, (first[1] + second[1]) / 2
        self.ratios.append((other[0] / rate, other[1] / cost))
        self.same.append((second[0] / first[0], second[1] / first[1]))
        for each in (self.plain, self.other):
            bench.purge(each.topic)

    def __str__(self) -> str:
        rates, costs = zip(*self.ratios, strict=True)
        same_rates, same_costs = zip(*self.same, strict=True)
        return (
            f"{self.about}: {_middle(rates)} of the requests, {_middle(costs)} of the CPU time of the workers; "
            f"A/A {_middle(same_rates)} and {_middle(same_costs)}"
        )


def _middle(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}..{max(values):.2f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=20_000, help="of a round, of 10 x 100 B")
    parser.add_argument("--in-flight", type=int, default=1, help="requests on the way")
    given = parser.parse_args()
    ids = iter(range(1, sys.maxsize))
    with (
        tempfile.TemporaryDirectory() as directory,
        Server(Path(directory) / "data", ENV) as server,
        wire.connect(server.address, timeout_s=60.0) as root,
    ):
        root.create_stream(STREAM)
        bench = Bench(server, root, given.in_flight)
        bench.topic("plain")
        bench.topic("compared", message_deduplication="on")
        small, large = (10, 100, given.requests), (100, 1000, given.requests // 20)
        window = Requests("compared", 10, 100, WINDOW_IDS // 10, ids=ids)
        lines = [
            Comparison("idempotent, 10 x 100 B", Requests("plain", *small), Requests("plain", *small, once=True)),
            Comparison("idempotent, 100 x 1 KB", Requests("plain", *large), Requests("plain", *large, once=True)),
        ]
        compared = Comparison(
            f"message ids, window of {WINDOW_IDS:,}, 10 x 100 B",
            Requests("plain", *small, ids=ids),
            Requests("compared", *small, ids=ids),
        )
        for _ in range(given.rounds):
            for line in lines:
                line.round(bench)
            Bench(server, root, 32).run(window)  # a purge forgets it
            compared.round(bench)
        for line in [*lines, compared]:
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
