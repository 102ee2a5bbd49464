"""One measurement of one server."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from shardd.benchmark import engine, machine
from shardd.benchmark.disturb import Disturbance, check_disturbance, disturbed
from shardd.benchmark.kinds import BY_NAME
from shardd.benchmark.metrics import actor_figures, groups_of
from shardd.benchmark.options import BenchError, Options, Output
from shardd.benchmark.plan import make_plan
from shardd.benchmark.report import Findings, Told, report_of
from shardd.benchmark.servers import Server, server_of
from shardd.client.errors import ClientError


def measure(options: Options, output: Output, server: Server | None = None) -> dict[str, Any]:
    """Of the server that the options name, or of another. BenchError."""
    server = server or server_of(options)
    plan = make_plan(options)
    check_disturbance(options, server)
    try:
        server.start(options)
        if options.own and options.kind.needs_data:
            _fill(server, options)
        places = server.prepare(options)
        begun = time.monotonic()
        with closing(_Usage(server, options.warmup_us)) as usage, disturbed(options, server) as beside:

            def begin() -> None:
                beside.load_begun.set()
                usage.begin()

            done = engine.run(plan, server, places, output.watch, begin)
        wall_s = time.monotonic() - begun
        (cpu_s, written), memory = usage.end(), server.memory_bytes()
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
        cpu_s,
        max((each.seconds for each in figures), default=wall_s),
        memory,
        Told(server.name, server.version, server.durability),
        written,
        _beside(options, beside, done),
    )
    return report_of(options, output, found, datetime.now(UTC))


class _Usage:
    """What a server has used between the end of the warm-up and `end`; None: not known. Without a warm-up what logins
    cost is in it."""

    def __init__(self, server: Server, warmup_us: int) -> None:
        self._server = server
        self._timer = threading.Timer(warmup_us / 1e6, self._look) if warmup_us else None
        self._look()

    def _look(self) -> None:
        self._cpu_s, self._written_bytes = self._server.cpu_s(), self._server.written_bytes()

    def begin(self) -> None:
        """The load begins, with its warm-up."""
        if self._timer is not None:
            self._timer.start()

    def close(self) -> None:
        """Looks no more."""
        if self._timer is not None and self._timer.ident is not None:
            self._timer.cancel()
            self._timer.join()

    def end(self) -> tuple[float | None, int | None]:
        """CPU time in seconds, bytes."""
        cpu_s, written_bytes = self._server.cpu_s(), self._server.written_bytes()
        return (
            None if cpu_s is None or self._cpu_s is None else cpu_s - self._cpu_s,
            None if written_bytes is None or self._written_bytes is None else written_bytes - self._written_bytes,
        )


def _beside(options: Options, beside: Disturbance, done: engine.Done) -> dict[str, object]:
    found: dict[str, object] = {"what": options.disturbance, "times": beside.done} if options.disturbance else {}
    return found | (machine.interruptions_of(done.shares) if options.reopens else {})


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
