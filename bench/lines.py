"""What is measured: one `Line` per row of the table, with the target it is held against."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from shardd import engine
from shardd.protocol.namespaces import namespace
from shardd.protocol.record_layout import INDEX_ENTRY, RECORD_HEAD

RECORD_HEADER_BYTES = RECORD_HEAD.size
KEYED_PARTITIONS = 12
GROUP_PARTITIONS = 24
BALANCED_PARTITIONS = 6
CLIENT_THREADS = max(2, len(os.sched_getaffinity(0)))  # of the lines that are driven as a client of a user does


class Placement(Enum):
    """Where the partitions live."""

    HASH = "hash"  # streams as they are created, one for each connection: the hash decides
    EVEN = "even"  # streams chosen so that every shard owns the same number
    ONE = "one"  # one partition for all connections
    GROUP = "group"  # one topic of 24 partitions; the connections are the members of a group, with auto-commit
    SPREAD = "spread"  # one topic with one partition on each shard, a random key in each request
    KEYED = "keyed"  # one topic of 12 partitions, a random key in each request: mostly forwarded
    BALANCED = "balanced"  # one topic of 6 partitions; the server chooses one for each request
    EIGHT = "8p"  # as KEYED, over 8 partitions
    THOUSAND = "1000p"  # as KEYED, over 1,000 partitions


class Setup(Enum):
    """What servers a line runs on: each has its own in a run."""

    WRITTEN = ""
    DURABLE = "durable"  # shardd at level durable, the floor with an fdatasync for each request
    BUSY = "busy"  # a worker looks for the next request for a while before it sleeps; the floor sleeps at once

    @property
    def settings(self) -> dict[str, str]:
        """Of shardd."""
        return {
            Setup.WRITTEN: {},
            Setup.DURABLE: {"SHARDD_SYSTEM_PARTITION_ACK": "durable"},
            Setup.BUSY: {"SHARDD_SYSTEM_SHARDING_BUSY_POLL": "200us"},
        }[self]


@dataclass(frozen=True)
class Line:
    """`ratio_min`: shardd's requests/s over the floor's; `p50_ratio_max`: shardd's median latency over the floor's,
    `p99_ratio_max`: its 99th percentile over the floor's; `quartile_min`: the lower quartile of the ratios of rounds;
    `epoll_ratio_min`: requests/s of shardd on epoll over those of shardd on io_uring; None: not measured on epoll.
    `ring_ratio_min`: requests/s of shardd over those of the floor on io_uring; None: not measured on that floor.

    `against`: the name of a line of shardd that stands in the floor's place, for what the floor cannot do."""

    mode: str  # send, poll, commit (polls with auto-commit), store (offsets), or both (bench/together.py)
    batch: int  # messages of a request
    payload_bytes: int  # of a message
    connections: int
    placement: Placement
    ratio_min: float
    p50_ratio_max: float | None = None
    setup: Setup = Setup.WRITTEN
    against: str | None = None
    epoll_ratio_min: float | None = None
    depth: int = 1  # requests in flight on each connection
    threads: int = 1  # of the client
    p99_ratio_max: float | None = None
    quartile_min: float | None = None
    ring_ratio_min: float | None = None

    @property
    def name(self) -> str:
        tail = "" if self.placement is Placement.HASH else f"-{self.placement.value}"
        tail = tail if self.depth == 1 else f"-d{self.depth}{tail}"
        tail = tail if self.threads == 1 else f"-t{self.threads}{tail}"
        head = f"{self.setup.value}-" if self.setup.value else ""
        return f"{head}{self.mode}-{self.batch}x{self.payload_bytes}-c{self.connections}{tail}"

    @property
    def request_bytes(self) -> int:
        """Bytes of records and index of one request, about what crosses the socket."""
        return self.batch * (RECORD_HEADER_BYTES + INDEX_ENTRY.size + self.payload_bytes)


def _single_partition() -> list[Line]:
    lines = []
    for mode, least in (("send", 1.0), ("poll", 0.95)):
        lines.append(Line(mode, 1, 100, 1, Placement.HASH, 0.7, 1.3))
        for batch in (1, 10):
            for connections in (8, 32):
                epoll = 0.8 if (batch, connections) == (1, 32) else None
                lines.append(
                    Line(
                        mode, batch, 100, connections, Placement.HASH, least,
                        epoll_ratio_min=epoll, p99_ratio_max=1.0, ring_ratio_min=0.9,
                    )
                )  # fmt: skip
        lines.append(Line(mode, 10, 100, 8, Placement.EVEN, least, p99_ratio_max=1.0))
        for placement in (Placement.HASH, Placement.EVEN):
            for batch in (100, 1000):
                lines.append(Line(mode, batch, 1000, 8, placement, 0.9, p99_ratio_max=1.5, quartile_min=0.8))
    return lines


def _balanced() -> list[Line]:
    """What the server has to forward, against the same load on partitions that are where their connections are."""
    lines = []
    for batch, payload_bytes in ((10, 100), (100, 1000), (1000, 1000)):
        for connections in (1, 8, 32):
            placement = Placement.HASH if connections == 1 else Placement.EVEN
            local = Line("send", batch, payload_bytes, connections, placement, 0.7)
            lines += [local] if connections != 8 else []  # those with 8 are there
            least = 0.6 if connections == 1 else 0.85
            lines.append(Line("send", batch, payload_bytes, connections, Placement.BALANCED, least, against=local.name))
    return lines


def _scale() -> list[Line]:
    few = Line("send", 10, 100, 64, Placement.EIGHT, 0.7)
    return [few, Line("send", 10, 100, 64, Placement.THOUSAND, 0.8, against=few.name)]


def _durable() -> list[Line]:
    lines = []
    for placement in (Placement.ONE, Placement.HASH):
        lines.append(Line("send", 1, 100, 32, placement, 3.0, setup=Setup.DURABLE))
        lines.append(Line("send", 100, 1000, 8, placement, 1.0, setup=Setup.DURABLE))
    return lines


def _busy() -> list[Line]:
    """The lowest latency that there is, on a CPU of its own."""
    return [Line(mode, 1, 100, 1, Placement.HASH, 0.7, 0.8, setup=Setup.BUSY) for mode in ("send", "poll")]


def _pipelined() -> list[Line]:
    one = Line("send", 1, 100, 1, Placement.HASH, 1.8, depth=32)
    alone = Line("send", 1, 100, 1, Placement.HASH, 0.7, setup=Setup.DURABLE)
    return [
        one,
        Line("send", 1, 100, 8, Placement.HASH, 1.5, depth=16),
        Line("send", 1, 100, 1, Placement.SPREAD, 0.8, against=one.name, depth=32),
        Line("send", 1, 100, 1, Placement.KEYED, 0.5, against=one.name, depth=32),
        alone,
        Line("send", 1, 100, 1, Placement.HASH, 8.0, setup=Setup.DURABLE, against=alone.name, depth=32),
    ]


def _offsets() -> list[Line]:
    """Lines that keep the place of a consumer, against reading alone."""
    return [
        Line("commit", 10, 100, 8, Placement.HASH, 0.7, against="poll-10x100-c8"),
        Line("commit", 10, 100, 32, Placement.HASH, 0.7, against="poll-10x100-c32"),
        Line("store", 1, 100, 8, Placement.HASH, 0.7, against="poll-1x100-c8"),
        Line("store", 1, 100, 32, Placement.HASH, 0.7, against="poll-1x100-c32"),
    ]


def _threaded() -> list[Line]:
    """As a client with a thread for each core, left to the scheduler, drives both servers."""
    return [
        Line("send", batch, payload_bytes, connections, placement, 0.9, threads=CLIENT_THREADS, p99_ratio_max=1.3)
        for batch, payload_bytes in ((10, 100), (100, 1000))
        for placement, connections in ((Placement.BALANCED, 4), (Placement.KEYED, 8), (Placement.EVEN, 8))
    ] + [
        Line("both", batch, payload_bytes, 8, Placement.HASH, 0.9, threads=CLIENT_THREADS, p99_ratio_max=1.3)
        for batch, payload_bytes in ((10, 100), (100, 1000))
    ]


LINES = (
    *_single_partition(),
    Line("send", 10, 100, 8, Placement.KEYED, 0.85, p99_ratio_max=1.0),
    Line("send", 10, 100, 32, Placement.KEYED, 0.85, p99_ratio_max=1.0),
    Line("poll", 10, 100, 8, Placement.GROUP, 0.3, against="poll-10x100-c8"),
    *_durable(),
    *_busy(),
    *_balanced(),
    *_scale(),
    *_pipelined(),
    *_offsets(),
    *_threaded(),
)
REBALANCES = {"rebalance-1000x100": (1_000, 100.0), "rebalance-20000x100": (20_000, 50.0)}  # partitions, target in ms
STARTS = ("start-first", "start-later", "start-killed-worker", "start-memory")  # bench/start.py
NAMES = (*(line.name for line in LINES), *REBALANCES, *STARTS)


def select(patterns: Sequence[str]) -> list[Line]:
    """Lines whose name matches one of the shell patterns, and what they are held against; ValueError when a pattern
    matches nothing."""
    for pattern in patterns:
        if not chosen(NAMES, [pattern]):
            raise ValueError(f"no line is called {pattern!r}; there are: {', '.join(NAMES)}")
    names = set(chosen(NAMES, patterns))
    names |= {line.against for line in LINES if line.name in names and line.against is not None}
    return [line for line in LINES if line.name in names]


def chosen(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Those that the patterns choose."""
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def owner(stream: int, shards: int, partition: int = 0) -> int:
    """Shard of a partition of topic 0 (docs/ARCHITECTURE.md, identities)."""
    return engine.owner(namespace(stream, 0, partition), shards)


def share(streams: Sequence[int], shards: int, partitions: int = 1) -> str:
    """Partitions for each shard, such as `7:1`."""
    owners = [owner(stream, shards, partition) for stream in streams for partition in range(partitions)]
    return ":".join(str(owners.count(shard)) for shard in range(shards))
