"""Extension commands: LIST_EXTENSIONS and GET_METRICS (docs/extensions.md)."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from shardd import __version__
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import (
    EXTENSIONS,
    ExtensionList,
    ExtensionRequest,
    FigureKind,
    Metrics,
    ShardMetrics,
)
from shardd.runtime.channel import BusError, Senders
from shardd.runtime.control_messages import Standing
from shardd.runtime.metrics import ShardFigures
from shardd.runtime.patience import AT_ONCE
from shardd.security import Rule
from shardd.service import base
from shardd.service.base import Caller
from shardd.service.context import ShardContext

METHOD_METRICS: Final = "metrics"
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ShardFigures)


class ExtensionService:
    """Asks the other shards over the bus. Lives on the loop thread."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._known: dict[int, ShardFigures] = {}  # the last answer of each shard
        context.bus.serve(METHOD_METRICS, Senders.ANY_SHARD, self._serve_metrics)

    async def _serve_metrics(self, sender: int, payload: bytes) -> bytes:
        context = self._context
        return _encoder.encode(context.metrics.read(context.shard, context.engine.generation))

    async def list_extensions(self, context: ShardContext, caller: Caller, request: ExtensionRequest) -> bytes:
        """Every user who has logged in may ask."""
        return ExtensionList(__version__, EXTENSIONS).encode()

    async def get_metrics(self, context: ShardContext, caller: Caller, request: ExtensionRequest) -> bytes:
        """41 without the right to read the server, as GET_STATS."""
        base.require(context, caller, Rule.READ_SERVER)
        try:
            answers = await context.bus.gather(METHOD_METRICS, b"", patience_s=AT_ONCE)
        except BusError as error:
            raise ShardError(Status.SHARD_COMMUNICATION_ERROR, str(error)) from error
        figures = [_decoder.decode(answer) for answer in answers]
        self._known |= {each.shard: each for each in figures}
        missing = context.bus.patience.standing.keys() - {each.shard for each in figures}
        figures += [self._standing_still(context.bus.patience.standing[shard]) for shard in sorted(missing)]
        return merge(figures, time.time_ns() // 1000, context.started_at_us, context.shards).encode()

    def _standing_still(self, standing: Standing) -> ShardFigures:
        """What is known of a shard that cannot answer now: its last figures, and for how long it has been so."""
        clock_us = time.monotonic_ns() // 1000
        known = self._known.get(standing.shard, ShardFigures(standing.shard, 0, clock_us, {}, {}, []))
        now_ms = {f"stalls.{standing.cause}_now_ms": (clock_us - standing.since_us) // 1000}
        return msgspec.structs.replace(known, clock_us=clock_us, gauges=known.gauges | now_ms)


def merge(figures: list[ShardFigures], time_us: int, started_at_us: int, shards_count: int) -> Metrics:
    """One table of all shards; a figure that a shard does not have is 0 there."""
    names = [(FigureKind.COUNTER, name) for name in dict.fromkeys(name for each in figures for name in each.counters)]
    names += [(FigureKind.GAUGE, name) for name in dict.fromkeys(name for each in figures for name in each.gauges)]
    buckets = max((len(each.latency) for each in figures), default=0)
    shards = tuple(
        ShardMetrics(
            each.shard,
            each.generation,
            each.clock_us,
            tuple((each.counters if kind is FigureKind.COUNTER else each.gauges).get(name, 0) for kind, name in names),
            tuple(each.latency) + (0,) * (buckets - len(each.latency)),
        )
        for each in figures
    )
    return Metrics(time_us, started_at_us, shards_count, tuple(names), buckets, shards)
