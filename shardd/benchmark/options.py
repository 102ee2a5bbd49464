"""What a benchmark is asked for, in values; `BenchError` for what makes no sense."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from shardd.benchmark.kinds import Kind
from shardd.client.settings import Settings
from shardd.config.schema import ACK_LEVELS
from shardd.config.units import parse_duration_us, parse_size_bytes

BATCH_MAX: Final = 1_000_000
ACTORS_MAX: Final = 10_000
DEPTH_MAX: Final = 1024
ROUNDS: Final = 5
ROUNDS_MAX: Final = 1000
PARTITIONINGS: Final = ("partition", "balanced", "key", "random")
"""By the numbers of native/load/frames.h."""
DIALECTS: Final = ("0.8", "0.9")
DURABILITIES: Final = ACK_LEVELS
MEMORY_BYTES_MAX: Final = 2 << 30
"""Of all requests that actors hold ready."""


class BenchError(Exception):
    """A sentence for the person who asked."""


class Span(NamedTuple):
    """A number, or a random one of a range, both ends included."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}..{self.most}"

    @property
    def report(self) -> int | str:
        return self.least if self.least == self.most else str(self)


_THOUSAND: Final = Span(1000, 1000)


def parse_span(text: str, least: int, most: int, what: str) -> Span:
    first, dots, second = text.partition("..")
    try:
        span = Span(int(first), int(second if dots else first))
    except ValueError:
        raise BenchError(f"{what} is a number or a range like 100..1000, not {text!r}") from None
    if not least <= span.least <= span.most <= most:
        raise BenchError(f"{what} is between {least} and {most}, not {text}")
    return span


def parse_bytes(text: str | None, what: str) -> int | None:
    if text is None:
        return None
    try:
        size = parse_size_bytes(text.removesuffix("/s"))
    except ValueError as error:
        raise BenchError(f"{what}: {error}") from None
    if size <= 0:
        raise BenchError(f"{what} is more than 0 bytes")
    return size


def parse_us(text: str, what: str) -> int:
    try:
        return parse_duration_us(text)
    except ValueError as error:
        raise BenchError(f"{what}: {error}") from None


class Progress(NamedTuple):
    """Of all actors since the measurement began; `worst_ms`: the longest latency since the last look. `share`: of what
    is to be done, 0 to 1."""

    seconds: float
    messages: int
    bytes: int
    worst_ms: float
    share: float


Watch: TypeAlias = Callable[[Progress | None], None]
"""Is told now and then while a load runs, and None at its end."""


@dataclass(frozen=True)
class Output:
    """`directory` None: nothing is written."""

    directory: str | None = None
    identifier: str = field(default_factory=socket.gethostname)
    remark: str | None = None
    extra_info: str | None = None
    gitref: str | None = None
    gitref_date: str | None = None
    open_charts: bool = False
    watch: Watch | None = None


class Tls(NamedTuple):
    """As iggy-bench has it: nothing is verified unless it is asked for."""

    domain: str = "localhost"
    ca_file: str = ""
    verify: bool = False
    certificate_file: str = ""
    key_file: str = ""


@dataclass(frozen=True)
class Options:
    """Names as iggy-bench has them. `rate_limit_bytes`: user bytes each second, of all actors. `processes` 0: one for
    each CPU, as far as there are actors."""

    kind: Kind
    streams: int
    partitions: int
    producers: int
    consumers: int
    groups: int
    message_size: Span = _THOUSAND
    batch: Span = _THOUSAND
    batches: int = 1000
    total_data_bytes: int | None = None
    rate_limit_bytes: int | None = None
    rate_limit_text: str | None = None
    warmup_us: int = 0
    sampling_us: int = 10_000
    window: int = 20
    username: str = "iggy"
    password: str = "iggy"
    reuse_streams: bool = False
    max_topic_size_bytes: int | None = None
    expiry_us: int | None = None
    read_amplification: float = 1.0
    depth: int = 1
    open_loop: bool = False
    processes: int = 0
    nodelay: bool = False
    unix_path: str = ""
    server_address: str = "127.0.0.1:8090"
    command: str = ""
    tls: Tls | None = None
    websocket: bool = False
    partitioning: str = ""
    hot_percent: int = 0
    profile: str = ""
    disturbance: str = ""
    dialect: str = "0.8"
    own: bool = False
    durability: str = "written"
    directory: str = ""
    server_cpus: str = ""
    client_cpus: str = ""
    server_settings: tuple[str, ...] = ()

    @property
    def reopens(self) -> bool:
        """A connection that breaks is opened again: it was this tool that broke it."""
        return self.disturbance == "kill"

    @property
    def transport(self) -> str:
        return "unix" if self.unix_path else "websocket" if self.websocket else "tcp"

    @property
    def address(self) -> str:
        if self.own:
            return "127.0.0.1"
        return f"unix:{self.unix_path}" if self.unix_path else self.server_address

    @property
    def is_local(self) -> bool:
        """Whether a server that runs is on this machine, as far as its address says."""
        return bool(self.unix_path) or self.server_address.startswith(("127.", "localhost:", "[::1]"))

    @property
    def actors(self) -> int:
        """Connections."""
        return self.producers + self.consumers if len(self.kind.actors) == 2 else max(self.producers, self.consumers)

    def settings(self) -> Settings:
        who = {"username": self.username, "password": self.password}
        if self.unix_path:
            return Settings(unix_path=self.unix_path, **who)  # type: ignore[arg-type]
        host, colon, port = self.server_address.rpartition(":")
        if not colon or re.fullmatch(r"\d{1,5}", port, re.ASCII) is None or int(port) >= 1 << 16:
            raise BenchError(f"--server-address is host:port, not {self.server_address!r}")
        return Settings(host.strip("[]"), int(port), **who)  # type: ignore[arg-type]

    @staticmethod
    def cpus_of(text: str) -> list[int]:
        """Of a list like 0,2-3. BenchError."""
        found: set[int] = set()
        count = os.cpu_count() or 1
        for part in text.split(","):
            matched = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part, re.ASCII)
            first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched is not None else (1, 0)
            if first > last:
                raise BenchError(f"CPUs are a list like 0,2-3, not {text!r}")
            if last >= count:
                raise BenchError(f"this machine has no CPU {max(first, count)}")
            found |= set(range(first, last + 1))
        return sorted(found)

    def processes_used(self) -> int:
        cpus = len(self.cpus_of(self.client_cpus)) if self.client_cpus else len(os.sched_getaffinity(0))
        wanted = self.processes or cpus
        return max(1, min(wanted, self.actors))


def check(options: Options) -> None:
    """BenchError for what this kind cannot do."""
    kind, name = options.kind, options.kind.name
    if min(options.streams, options.partitions, options.groups, options.actors, options.batches) < 1:
        raise BenchError("streams, partitions, actors, groups and batches are 1 or more")
    if name == "pinned-producer" and options.streams != options.producers:
        raise BenchError(f"{name} has as many streams as producers")
    if name == "pinned-consumer" and options.streams != options.consumers:
        raise BenchError(f"{name} has as many streams as consumers")
    if name == "pinned-producer-and-consumer":
        if options.partitions != 1:
            raise BenchError(f"{name} has one partition in each stream")
        if options.streams != options.producers:
            raise BenchError(f"{name} has as many streams as producers")
    if name == "balanced-producer" and options.partitions < 2:
        raise BenchError(f"{name} has two partitions or more")
    if kind.groups is not None and options.groups < options.streams:
        raise BenchError(f"{name} has a group or more for each stream")
    if name == "balanced-producer-and-consumer-group" and options.partitions < options.consumers:
        raise BenchError(f"{name} has a partition or more for each consumer")
    if name.startswith("end-to-end") and options.streams > options.producers:
        raise BenchError(f"{name} has no more streams than producers")
    _check_own(options)


def _check_own(options: Options) -> None:
    for cpus in filter(None, (options.client_cpus, options.server_cpus)):
        options.cpus_of(cpus)
    for pair in options.server_settings:
        if not re.fullmatch(r"(SHARDD|IGGY)_[A-Z0-9_]+=.*", pair):
            raise BenchError(f"--set is SHARDD_NAME=VALUE, not {pair!r}")
    if options.dialect not in DIALECTS:
        raise BenchError(f"--dialect is {', '.join(DIALECTS)}, not {options.dialect!r}")
    if options.partitioning and options.partitioning not in PARTITIONINGS:
        raise BenchError(f"--partitioning is {', '.join(PARTITIONINGS)}, not {options.partitioning!r}")
    if options.hot_percent and options.partitioning != "random":
        raise BenchError("--hot-percent goes with --partitioning random")
    if options.open_loop and options.rate_limit_bytes is None:
        raise BenchError("--open-loop needs --rate-limit: it says when a request is due")
    if options.open_loop and not options.kind.sends:
        raise BenchError("--open-loop is for kinds that send")
    if options.actors > ACTORS_MAX:
        raise BenchError(f"there are at most {ACTORS_MAX} actors")
    senders = options.producers if options.kind.sends else 0
    one = 128 + options.batch.most * (80 + options.message_size.most)
    if one > 1 << 30:
        raise BenchError("a batch has more than 1 GiB: let it have fewer or smaller messages")
    copies = 2 if options.reopens else 1
    if senders * options.depth * one * copies > MEMORY_BYTES_MAX:
        raise BenchError("the requests of all producers would take more than 2 GiB of memory")
