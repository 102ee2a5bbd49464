"""report.json, as iggy-bench writes it; what only this tool knows is under `shardd`."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from shardd import __version__
from shardd.benchmark.hdr import encoded
from shardd.benchmark.metrics import PERCENTILES, ActorFigures, Distribution, GroupFigures, Series, percentile
from shardd.benchmark.options import Options, Output
from shardd.client.values import Stats
from shardd.config.units import format_size

_CURVE = (0.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.999, 100.0)
_DISPLAYED = {"tcp": "TCP", "unix": "Unix", "websocket": "WebSocket"}


class Told(NamedTuple):
    """What a server says of itself."""

    name: str
    version: str
    durability: str


@dataclass(frozen=True)
class Findings:
    """`client`: of `machine.client_figures`. `beside`: what went on meanwhile, if anything. `stats` and figures of
    the server: None when they are not known."""

    actors: Sequence[ActorFigures]
    groups: Sequence[GroupFigures]
    stats: Stats | None
    hardware: dict[str, object]
    client: dict[str, object]
    server_cpu_s: float | None
    seconds: float
    server_memory_bytes: int | None
    told: Told
    server_written_bytes: int | None
    beside: dict[str, object]


def report_of(options: Options, output: Output, found: Findings, now: datetime) -> dict[str, Any]:
    stamp = now.astimezone(UTC).isoformat()
    return {
        "uuid": str(uuid.uuid4()),
        "timestamp": stamp,
        "server_stats": _stats(found.stats, found.told),
        "hardware": found.hardware,
        "params": _params(options, output, found, stamp),
        "group_metrics": [_group(group) for group in found.groups],
        "individual_metrics": [
            _individual(each, options) for each in sorted(found.actors, key=lambda x: (x.actor.role, x.actor.number))
        ],
        "shardd": _own(options, found),
    }


def _semver(version: str) -> int | None:
    numbers = version.partition("-")[0].partition("+")[0].split(".")
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        return None
    major, minor, patch = map(int, numbers)
    return major * 1_000_000 + minor * 1_000 + patch


def _stats(stats: Stats | None, told: Told) -> dict[str, Any]:
    if stats is None:
        return {"iggy_server_version": told.version}
    return {
        "process_id": stats.process_id,
        "cpu_usage": round(stats.cpu_percent, 3),
        "total_cpu_usage": round(stats.total_cpu_percent, 3),
        "memory_usage": stats.memory_bytes,
        "total_memory": stats.total_memory_bytes,
        "available_memory": stats.available_memory_bytes,
        "run_time": stats.run_time_us,
        "start_time": stats.start_time_us,
        "read_bytes": stats.read_bytes,
        "written_bytes": stats.written_bytes,
        "messages_size_bytes": stats.messages_size_bytes,
        "streams_count": stats.streams_count,
        "topics_count": stats.topics_count,
        "partitions_count": stats.partitions_count,
        "segments_count": stats.segments_count,
        "messages_count": stats.messages_count,
        "clients_count": stats.clients_count,
        "consumer_groups_count": stats.groups_count,
        "hostname": stats.hostname,
        "os_name": stats.os_name,
        "os_version": stats.os_version,
        "kernel_version": stats.kernel_version,
        "iggy_server_version": stats.protocol_version,
        "iggy_server_semver": _semver(stats.protocol_version),
        "cache_metrics": {},
    }


def volume_of(options: Options) -> str:
    return str(options.batches) if options.total_data_bytes is None else format_size(options.total_data_bytes)


def _params(options: Options, output: Output, found: Findings, stamp: str) -> dict[str, Any]:
    kind = options.kind
    transport = _DISPLAYED[options.transport]
    parts = (kind.title, transport, output.remark or "no_remark", options.batch, volume_of(options))
    parts += (options.message_size, options.producers, options.consumers, options.streams)  # type: ignore[assignment]
    parts += (options.partitions, options.groups if kind.groups else 0)  # type: ignore[assignment]
    sides = [(options.producers, "producers", kind.sends), (options.consumers, "consumers", kind.polls)]
    people = ", ".join(f"{count} {name}" for count, name, there in sides if there and count)
    return {
        "benchmark_kind": kind.report_name,
        "transport": options.transport,
        "server_address": options.address,
        "remark": output.remark,
        "extra_info": output.extra_info,
        "gitref": output.gitref or found.told.version,
        "gitref_date": output.gitref_date or stamp,
        "messages_per_batch": options.batch.report,
        "message_batches": sum(each.batches for each in found.actors),
        "message_size": options.message_size.report,
        "producers": options.producers,
        "consumers": options.consumers,
        "streams": options.streams,
        "partitions": options.partitions,
        "consumer_groups": options.groups if kind.groups else 0,
        "rate_limit": options.rate_limit_text,
        "pretty_name": f"{kind.title} over {transport} ({people}, {options.batch} x {options.message_size} B)",
        "bench_command": command_of(options),
        "params_identifier": "_".join(map(str, parts)),
    }


def command_of(options: Options) -> str:
    """With the local variables of Iggy when the server is on this machine."""
    names = sorted(name for name in os.environ if name.startswith("IGGY_") and "PASSWORD" not in name)
    return " ".join([f"{name}={os.environ[name]}" for name in names if options.is_local] + [options.command])


def _points(series: Series) -> dict[str, Any]:
    return {"points": [{"time_s": round(time_s, 3), "value": round(value, 3)} for time_s, value in series]}


def _distribution(found: Distribution | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "bins": [{"edge_ms": round(edge, 3), "density": round(density, 3)} for edge, density in found.bins],
        "log_normal_params": {"mu": round(found.mu, 3), "sigma": round(found.sigma, 3)},
        "percentiles": {f"{name}_ms": round(value, 3) for name, value in found.percentiles_ms.items()},
    }


def _latencies(figures: ActorFigures | GroupFigures, prefix: str) -> dict[str, float]:
    values = {f"{prefix}{name}_latency_ms": value for name, value in figures.percentiles_ms.items()}
    names = ("average_latency_ms", "average_median_latency_ms") if prefix else ("avg_latency_ms", "median_latency_ms")
    values |= dict(zip(names, (figures.avg_ms, figures.median_ms), strict=True))
    values |= {"min_latency_ms": figures.min_ms, "max_latency_ms": figures.max_ms}
    values["std_dev_latency_ms"] = figures.std_dev_ms
    return {name: round(value, 3) for name, value in values.items()}


def _group(group: GroupFigures) -> dict[str, Any]:
    speeds = {
        "total_throughput_megabytes_per_second": group.megabytes_per_s,
        "total_throughput_messages_per_second": group.messages_per_s,
        "average_throughput_megabytes_per_second": group.megabytes_per_s / max(1, group.actors),
        "average_throughput_messages_per_second": group.messages_per_s / max(1, group.actors),
    }
    found = {
        "summary": {
            "kind": group.kind,
            **{name: round(value, 3) for name, value in speeds.items()},
            **_latencies(group, "average_"),
        },
        "avg_throughput_mb_ts": _points(group.megabytes),
        "avg_throughput_msg_ts": _points(group.rate),
        "avg_latency_ts": _points(group.latency),
    }
    spread = _distribution(group.distribution)
    return found if spread is None else {**found, "latency_distribution": spread}


def _individual(figures: ActorFigures, options: Options) -> dict[str, Any]:
    return {
        "summary": {
            "benchmark_kind": options.kind.report_name,
            "actor_kind": figures.actor.role,
            "actor_id": figures.actor.number,
            "total_time_secs": round(figures.seconds, 3),
            "total_user_data_bytes": figures.user_bytes,
            "total_bytes": figures.total_bytes,
            "total_messages": figures.messages,
            "total_message_batches": figures.batches,
            "throughput_megabytes_per_second": round(figures.megabytes_per_s, 3),
            "throughput_messages_per_second": round(figures.messages_per_s, 3),
            **_latencies(figures, ""),
        },
        "throughput_mb_ts": _points(figures.megabytes),
        "throughput_msg_ts": _points(figures.rate),
        "latency_ts": _points(figures.latency),
    }


def curve_of(ordered: Sequence[float]) -> dict[str, float]:
    return {f"{percent:g}": round(percentile(ordered, percent), 4) for percent in _CURVE}


def _own(options: Options, found: Findings) -> dict[str, Any]:
    messages = sum(each.messages for each in found.actors)
    user_bytes = sum(each.user_bytes for each in found.actors)
    server: dict[str, Any] = {"cpu_seconds": None if found.server_cpu_s is None else round(found.server_cpu_s, 3)}
    if found.server_cpu_s is not None and messages:
        server["cpu_us_per_message"] = round(found.server_cpu_s * 1e6 / messages, 4)
        server["cpu_ns_per_byte"] = round(found.server_cpu_s * 1e9 / user_bytes, 4) if user_bytes else 0.0
    server |= {**found.told._asdict(), "memory_bytes": found.server_memory_bytes}
    server["written_bytes"] = found.server_written_bytes
    if found.server_written_bytes is not None and messages:
        server["written_bytes_per_message"] = round(found.server_written_bytes / messages, 2)
    client = dict(found.client)
    if messages:
        client["cpu_us_per_message"] = round(float(str(client["cpu_seconds"])) * 1e6 / messages, 4)
        moved = int(str(client["sent_bytes"])) + int(str(client["received_bytes"]))
        client["bytes_per_message"] = round(moved / messages, 2)
    latencies = sorted(value for each in found.actors for value in each.latencies_ms)
    hdr = encoded(latencies)
    services = sorted(value for each in found.actors for value in each.service_ms)
    return {
        "loop": "open" if options.open_loop else "closed",
        "depth": options.depth,
        "dialect": options.dialect,
        "tls": options.tls is not None,
        "partitioning": options.partitioning or ("balanced" if options.partitions > 1 else "partition"),
        "tool": __version__,
        "memory": f"{found.hardware['total_memory_mb']} MiB",
        "configuration": list(options.server_settings) if options.own else [],
        "pinning": {
            "client": options.client_cpus or "none",
            "server": (options.server_cpus if options.own else "") or "its own",
        },
        "seconds": round(found.seconds, 3),
        "megabytes_per_second": round(user_bytes / 1e6 / found.seconds, 3) if found.seconds else 0.0,
        "messages_per_second": round(messages / found.seconds, 3) if found.seconds else 0.0,
        "latency_ms_by_percentile": curve_of(latencies),
        "service_ms_by_percentile": curve_of(services),
        "client": client,
        "server": server,
        **({"hdr_histogram": hdr} if hdr else {}),
        **({"profile": options.profile} if options.profile else {}),
        **({"beside": found.beside} if found.beside else {}),
    }


def directory_name(options: Options, output: Output, cpu: str) -> str:
    actors = options.actors
    parts = [options.kind.report_name, actors, options.message_size, options.batch]
    parts += [volume_of(options).replace(" ", ""), options.transport]
    parts += [part for part in (output.remark, output.gitref, output.identifier) if part]
    parts.append(cpu.lower().replace(" ", "_"))
    return "_".join(map(str, parts)).replace("/", "-")


def write_report(report: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(report, separators=(",", ":"), ensure_ascii=False) + "\n")


__all__ = ["PERCENTILES", "Findings", "command_of", "directory_name", "report_of", "write_report"]
