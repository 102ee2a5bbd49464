"""One benchmark from its options to its report."""

from __future__ import annotations

import json
import shutil
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from shardd.benchmark import against, hdr, machine
from shardd.benchmark.duel_page import duel_page_of
from shardd.benchmark.measure import measure
from shardd.benchmark.options import BenchError, Options, Output, check
from shardd.benchmark.page import page_of
from shardd.benchmark.report import directory_name, write_report
from shardd.benchmark.servers.wire import Wire
from shardd.benchmark.table import lines_of
from shardd.client.errors import ClientError

_SERVER_LOGS: Final = 5
"""Of a snapshot."""


def benchmark(options: Options, output: Output, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs it, and writes what is wanted. BenchError; an interrupted run leaves no directory."""
    check(options)
    with _written(options, output, say) as directory:
        report = measure(options, output)
        if directory is not None:
            _write(directory, report, options)
        _say_all(lines_of(report), say)
    return report


def benchmark_against(
    options: Options, output: Output, names: Sequence[str], rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """The same beside others (against.py); its table, and what --json prints."""
    with _written(options, output, say) as directory:
        duel = against.run(options, output, names, rounds, say)
        found, lines = against.as_json(duel), against.lines_of(duel)
        if directory is not None:
            (directory / "against.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")
            (directory / "against.html").write_text(duel_page_of(duel))
            (directory / "bench.log").write_text("\n".join(lines) + "\n")
            write_report(duel.first.reports[-1], directory / "report.json")
            (directory / "report.html").write_text(page_of(duel.first.reports[-1]))
        _say_all(["", *lines], say)
    return found


@contextmanager
def _written(options: Options, output: Output, say: Callable[[str], None]) -> Iterator[Path | None]:
    """The directory of this run, if one is wanted."""
    if output.directory is None:
        yield None
        return
    directory = Path(output.directory) / directory_name(options, output, machine.cpu_name())
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield directory
    except OSError as error:
        raise BenchError(f"{directory}: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    say(f"Written to {directory}")
    if output.open_charts:
        webbrowser.open((directory.absolute() / "report.html").as_uri())


def _say_all(lines: Sequence[str], say: Callable[[str], None]) -> None:
    for line in lines:
        say(line)


def _write(directory: Path, report: dict[str, Any], options: Options) -> None:
    write_report(report, directory / "report.json")
    (directory / "report.html").write_text(page_of(report))
    histogram = report["shardd"].get("hdr_histogram")
    if histogram is not None:
        (directory / "latency.hgrm").write_text(hdr.percentiles_of(histogram))
        (directory / "latency.hlog").write_text(hdr.log_of(histogram, report["shardd"]["seconds"]))
    (directory / "bench.log").write_text("\n".join(lines_of(report)) + "\n")
    if options.own:
        return  # that server is gone
    try:
        (directory / "server_logs.zip").write_bytes(Wire().snapshot(options, (_SERVER_LOGS,)))
    except ClientError as error:
        (directory / "bench.log").open("a").write(f"no server_logs.zip: {error}\n")
