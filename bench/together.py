"""Lines of producers with consumers at once, by the load engine of `shardd bench` with a process for each core: half of
the connections send to their streams, half read them.

Requests a second are those of the slower side, latencies those of the producers.
"""

from __future__ import annotations

from dataclasses import replace

from bench.lines import Line
from bench.targets import Floor, Target
from shardd.benchmark.kinds import BY_NAME
from shardd.benchmark.measure import measure
from shardd.benchmark.options import Options, Output, Span
from shardd.benchmark.plan import Actor
from shardd.benchmark.servers.base import Places, same_places
from shardd.benchmark.servers.connection import Connection, Control, reach
from shardd.benchmark.servers.wire import Wire, control, log_in

STREAMS_MAX = 33
LARGE_REQUEST_BYTES = 64 << 10
REQUESTS_EACH_MS = 40  # about what a small machine does, so that a line takes as long as others
LARGE_REQUESTS_EACH_MS = 6


class RunningFloor(Wire):
    """A floor that somebody else has started: it has no commands but those that it measures."""

    name = "floor"

    def start(self, options: Options) -> None:
        self.version = "the bare server in C"

    def prepare(self, options: Options) -> Places:
        return same_places(options)

    def stats(self, options: Options) -> None:
        return None

    def open(self, options: Options, actor: Actor) -> Connection:
        made = reach(options)
        log_in(Control(made), options)
        return made


def requests_of(line: Line, duration_ms: int, bytes_max: int) -> int:
    """Of all producers."""
    each_ms = LARGE_REQUESTS_EACH_MS if line.request_bytes >= LARGE_REQUEST_BYTES else REQUESTS_EACH_MS
    return max(line.connections, min(duration_ms * each_ms, bytes_max // line.request_bytes))


def drop(target: Target) -> None:
    """Streams of a round."""
    if isinstance(target, Floor):
        target.drop_streams(list(range(1, STREAMS_MAX)))
        return
    with control(_options(target)) as client:
        for stream in client.streams():
            if stream.name.startswith("bench-stream-"):
                client.delete_stream(stream.name)


def _options(target: Target) -> Options:
    address = f"127.0.0.1:{target.port}"
    return Options(BY_NAME["pinned-producer-and-consumer"], 1, 1, 1, 1, 1, nodelay=True, server_address=address)


def run(target: Target, line: Line, duration_ms: int, bytes_max: int) -> dict[str, float]:
    """The figures of a round, named as those of the load client. BenchError."""
    side = line.connections // 2
    options = replace(
        _options(target),
        streams=side,
        producers=side,
        consumers=side,
        message_size=Span(line.payload_bytes, line.payload_bytes),
        batch=Span(line.batch, line.batch),
        batches=max(1, requests_of(line, duration_ms, bytes_max) // (2 * side)),  # each side moves that of both
        processes=line.threads,
    )
    report = measure(options, Output(), RunningFloor() if isinstance(target, Floor) else Wire())
    sides = {group["summary"]["kind"]: group["summary"] for group in report["group_metrics"]}
    found = [each["summary"] for each in report["individual_metrics"]]
    rates = {}
    for kind in ("producer", "consumer"):
        members = [each for each in found if each["actor_kind"] == kind]
        seconds = max(each["total_time_secs"] for each in members)
        rates[kind] = sum(each["total_messages"] for each in members) / seconds / line.batch
    producers = sides["producers"]
    return {
        "requests_per_s": min(rates.values()),
        "mb_per_s": min(rates.values()) * line.batch * line.payload_bytes / 1e6,
        "answered": float(sum(each["total_message_batches"] for each in found)),
        "p50_us": producers["average_p50_latency_ms"] * 1e3,
        "p99_us": producers["average_p99_latency_ms"] * 1e3,
        "p999_us": producers["average_p999_latency_ms"] * 1e3,
        "consumer_p99_us": sides["consumers"]["average_p99_latency_ms"] * 1e3,
    }
