"""One benchmark from its options to its report."""

from __future__ import annotations

import shutil
import time
import webbrowser
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from shardd.benchmark import engine, machine
from shardd.benchmark.metrics import actor_figures, groups_of
from shardd.benchmark.options import BenchError, Options, Output, check
from shardd.benchmark.page import page_of
from shardd.benchmark.plan import make_plan
from shardd.benchmark.prepare import prepare
from shardd.benchmark.report import Findings, directory_name, report_of, write_report
from shardd.benchmark.table import lines_of
from shardd.client.errors import ClientError
from shardd.client.sync import SyncClient

_SERVER_LOGS: Final = 5
"""Of a snapshot."""


def benchmark(options: Options, output: Output, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs it, and writes what is wanted. BenchError; an interrupted run leaves no directory."""
    check(options)
    if output.directory is None:
        report = measure(options, output)
        _say_all(report, say)
        return report
    directory = Path(output.directory) / directory_name(options, output, machine.cpu_name())
    try:
        directory.mkdir(parents=True, exist_ok=True)
        report = measure(options, output)
        _write(directory, report, options)
    except OSError as error:
        raise BenchError(f"{directory}: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    _say_all(report, say)
    say(f"Written to {directory}")
    if output.open_charts:
        webbrowser.open((directory.absolute() / "report.html").as_uri())
    return report


def _say_all(report: dict[str, Any], say: Callable[[str], None]) -> None:
    for line in lines_of(report):
        say(line)


def measure(options: Options, output: Output) -> dict[str, Any]:
    """BenchError."""
    plan = make_plan(options)
    try:
        with SyncClient(settings=options.settings()) as client:
            places = prepare(client, options)
            process_id = client.stats().process_id
        local = bool(options.unix_path) or options.server_address.startswith(("127.", "localhost:", "[::1]"))
        before = machine.server_usage(process_id, local=local).cpu_s
        begun = time.monotonic()
        done = engine.run(plan, places)
        wall_s = time.monotonic() - begun
        after = machine.server_usage(process_id, local=local).cpu_s
        with SyncClient(settings=options.settings()) as client:
            stats = client.stats()
    except ClientError as error:
        raise BenchError(str(error)) from error
    figures = [
        actor_figures(actor, records, options.sampling_us, options.window)
        for actor, records in zip(plan.actors, done.records, strict=True)
    ]
    found = Findings(
        figures,
        groups_of(figures),
        stats,
        machine.hardware(output.identifier),
        machine.client_figures(done.shares),
        None if before is None or after is None else after - before,
        max((each.seconds for each in figures), default=wall_s),
    )
    return report_of(options, output, found, datetime.now(UTC))


def _write(directory: Path, report: dict[str, Any], options: Options) -> None:
    write_report(report, directory / "report.json")
    (directory / "report.html").write_text(page_of(report))
    (directory / "bench.log").write_text("\n".join(lines_of(report)) + "\n")
    try:
        with SyncClient(settings=options.settings()) as client:
            (directory / "server_logs.zip").write_bytes(client.snapshot((_SERVER_LOGS,)))
    except ClientError as error:
        (directory / "bench.log").open("a").write(f"no server_logs.zip: {error}\n")
