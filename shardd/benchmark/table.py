"""A report as a person reads it."""

from __future__ import annotations

from typing import Any, Final

_COLUMNS: Final = ("", "MB/s", "messages/s", "avg", "p50", "p95", "p99", "p99.9 ms")


def lines_of(report: dict[str, Any]) -> list[str]:
    params, own = report["params"], report["shardd"]
    hardware = report["hardware"]
    lines = [
        params["pretty_name"],
        f"{hardware['cpu_name']}, {hardware['cpu_cores']} CPUs, {hardware['os_name']} {hardware['os_version']}; "
        f"server {report['server_stats']['iggy_server_version']} at {params['server_address']}; "
        f"{own['loop']} loop, depth {own['depth']}"
        + (f", limited to {params['rate_limit']}" if params["rate_limit"] else ""),
        "",
    ]
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
        + (f", {client['empty_polls']:,} empty polls." if client["empty_polls"] else ".")
    )
    if server.get("cpu_us_per_message") is not None:
        lines.append(f"Server: {server['cpu_seconds']:.2f} s of CPU, {server['cpu_us_per_message']:.2f} us a message.")
    if own["loop"] == "open":
        corrected, service = own["latency_ms_by_percentile"], own["service_ms_by_percentile"]
        lines.append(
            f"Latency since a request was due: p99 {corrected['99']:.3f} ms; since it was sent: {service['99']:.3f} ms."
        )
    if client["limit"]:
        lines.append(f"Note: {client['limit']}.")
    return lines
