"""One benchmark from its options to its report."""

from __future__ import annotations

import shutil
import time
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from shardd.benchmark import engine, machine
from shardd.benchmark.kinds import BY_NAME
from shardd.benchmark.metrics import actor_figures, groups_of
from shardd.benchmark.options import BenchError, Options, Output, check
from shardd.benchmark.page import page_of
from shardd.benchmark.plan import make_plan
from shardd.benchmark.report import Findings, Told, directory_name, report_of, write_report
from shardd.benchmark.servers import Server, server_of
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


def measure(options: Options, output: Output, server: Server | None = None) -> dict[str, Any]:
    """Of the server that the options name, or of another. BenchError."""
    server = server or server_of(options)
    plan = make_plan(options)
    try:
        server.start(options)
        if options.own and options.kind.needs_data:
            _fill(server, options)
        places = server.prepare(options)
        before = server.cpu_s()
        begun = time.monotonic()
        done = engine.run(plan, server, places)
        wall_s = time.monotonic() - begun
        after, memory = server.cpu_s(), server.memory_bytes()
        stats = server.stats(options)
    except (ClientError, OSError) as error:
        raise BenchError(str(error)) from error
    finally:
        server.stop()
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
        memory,
        Told(server.name, server.version, server.durability),
    )
    return report_of(options, output, found, datetime.now(UTC))


def _fill(server: Server, options: Options) -> None:
    """What a kind that reads alone is to read: by the kind that writes it."""
    kind = BY_NAME["balanced-producer" if options.kind.groups is not None else "pinned-producer"]
    partitions = max(2, options.partitions) if options.kind.groups is not None else 1
    writing = replace(
        options,
        kind=kind,
        producers=options.consumers,
        consumers=0,
        partitions=partitions,
        rate_limit_bytes=None,
        warmup_us=0,
        depth=1,
        open_loop=False,
    )
    engine.run(make_plan(writing), server, server.prepare(writing))


def _write(directory: Path, report: dict[str, Any], options: Options) -> None:
    write_report(report, directory / "report.json")
    (directory / "report.html").write_text(page_of(report))
    (directory / "bench.log").write_text("\n".join(lines_of(report)) + "\n")
    if options.own:
        return  # that server is gone
    try:
        with SyncClient(settings=options.settings()) as client:
            (directory / "server_logs.zip").write_bytes(client.snapshot((_SERVER_LOGS,)))
    except ClientError as error:
        (directory / "bench.log").open("a").write(f"no server_logs.zip: {error}\n")
