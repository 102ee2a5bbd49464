"""One measurement of one server."""

from __future__ import annotations

import time
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
        before, written_before = server.cpu_s(), server.written_bytes()
        begun = time.monotonic()
        with disturbed(options, server) as beside:
            done = engine.run(plan, server, places, output.watch, beside.load_begun)
        wall_s = time.monotonic() - begun
        after, written, memory = server.cpu_s(), server.written_bytes(), server.memory_bytes()
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
        None if written_before is None or written is None else written - written_before,
        _beside(options, beside, done),
    )
    return report_of(options, output, found, datetime.now(UTC))


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
