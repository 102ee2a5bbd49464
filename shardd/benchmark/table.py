"""A report as a person reads it."""

from __future__ import annotations

from typing import Any, Final

_COLUMNS: Final = ("", "MB/s", "messages/s", "avg", "p50", "p95", "p99", "p99.9 ms")


def facts_of(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What the figures depend on: name, value."""
    params, hardware = report["params"], report["hardware"]
    own = report.get("shardd") or {}
    server, pinning = own.get("server") or {}, own.get("pinning") or {}
    loop = f"{own.get('loop', 'closed')} loop, depth {own.get('depth', 1)}"
    way = f" over {params.get('transport', 'tcp')}{' with TLS' if own.get('tls') else ''}"
    limit = f", limited to {params['rate_limit']}" if params["rate_limit"] else ""
    return [
        ("machine", f"{hardware['cpu_name']}, {hardware['cpu_cores']} CPUs, {own.get('memory', '')}".rstrip(", ")),
        ("kernel", f"{hardware['os_name']} {hardware['os_version']}"),
        ("pinning", f"client {pinning.get('client', 'none')}, server {pinning.get('server', 'its own')}"),
        ("server", f"{server.get('version') or params['gitref']} at {params['server_address']}{way}"),
        ("durability", str(server.get("durability") or "")),
        ("configuration", " ".join(own.get("configuration") or ())),
        ("load", f"{loop}{limit}; shardd bench {own.get('tool', '')}".rstrip()),
        ("time", str(report["timestamp"])),
    ]


def lines_of(report: dict[str, Any], *, header: bool = True) -> list[str]:
    params, own = report["params"], report["shardd"]
    lines = [params["pretty_name"], *[f"{name}: {value}" for name, value in facts_of(report) if value], ""]
    lines = lines if header else []
    rows = [list(_COLUMNS), *[_row(group["summary"]) for group in report["group_metrics"]]]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_COLUMNS))]
    lines += [
        "  ".join(cell.ljust(widths[at]) if at == 0 else cell.rjust(widths[at]) for at, cell in enumerate(row)).rstrip()
        for row in rows
    ]
    lines += ["", *_below(own)]
    return lines


def _row(summary: dict[str, Any]) -> list[str]:
    percentiles = [summary[f"average_{name}_latency_ms"] for name in ("p50", "p95", "p99", "p999")]
    return [
        summary["kind"].replace("_", " "),
        f"{summary['total_throughput_megabytes_per_second']:,.1f}",
        f"{summary['total_throughput_messages_per_second']:,.0f}",
        *[f"{value:.3f}" for value in (summary["average_latency_ms"], *percentiles)],
    ]


def _below(own: dict[str, Any]) -> list[str]:
    client, server = own["client"], own["server"]
    longest = own["latency_ms_by_percentile"]["100"]
    lines = [
        f"All of it: {own['megabytes_per_second']:,.1f} MB/s over {own['seconds']:.2f} s, longest {longest:.3f} ms."
    ]
    lines.append(
        f"Client: {client['processes']} processes, the busiest used {client['busiest_cpu']:.0%} of a CPU"
        + (f", {client['cpu_us_per_message']:.2f} us a message" if "cpu_us_per_message" in client else "")
        + (f", {client['bytes_per_message']:,.0f} bytes a message" if "bytes_per_message" in client else "")
        + (f", {client['empty_polls']:,} empty polls." if client["empty_polls"] else ".")
    )
    if server.get("cpu_us_per_message") is not None:
        memory, written = server.get("memory_bytes"), server.get("written_bytes_per_message")
        lines.append(
            f"Server: {server['cpu_seconds']:.2f} s of CPU, {server['cpu_us_per_message']:.2f} us a message"
            + (f", {server['cpu_ns_per_byte']:.3g} ns a byte" if "cpu_ns_per_byte" in server else "")
            + (f", {written:,.0f} bytes a message to disk" if written else "")
            + (f"; {memory / 2**20:,.0f} MiB of memory at the end." if memory else ".")
        )
    if own["loop"] == "open":
        corrected, service = own["latency_ms_by_percentile"], own["service_ms_by_percentile"]
        lines.append(
            f"Latency since a request was due: p99 {corrected['99']:.3f} ms; since it was sent: {service['99']:.3f} ms."
        )
    lines += _beside(own.get("beside") or {})
    if client["limit"]:
        lines.append(f"Note: {client['limit']}.")
    return lines


def _beside(found: dict[str, Any]) -> list[str]:
    if "broken_connections" not in found:
        return [f"Beside it: {found['what']}, {found['times']:,} times."] if found else []
    broken, refused, again = (found[name] for name in ("broken_connections", "refused_requests", "requests_sent_again"))
    return [
        f"Killed: {found['times']:,} workers; {broken:,} connections broke, {refused:,} requests were refused.",
        f"Sent again: {again:,} requests; longest interruption {found['longest_interruption_ms']:,.1f} ms.",
    ]
