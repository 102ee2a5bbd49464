"""What this server can do beyond the classic protocol, and its figures (docs/extensions.md)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from shardd import __version__
from shardd.metadata import Metadata
from shardd.protocol.catalogue import EXTENSIONS
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import (
    ExtensionList,
    ExtensionRequest,
    FigureKind,
    Metrics,
    ShardMetrics,
)
from shardd.runtime.bus import Bus
from shardd.runtime.channel import BusError, Senders
from shardd.runtime.control_messages import Standing
from shardd.runtime.crowds import SharedRoom
from shardd.runtime.metrics import ShardFigures
from shardd.runtime.patience import AT_ONCE
from shardd.security import Rule
from shardd.service import base
from shardd.service.identity import Identity

METHOD_METRICS: Final = "metrics"
METRICS_MAX: Final = 8  # that are asked for at a time at a worker; of a user at most as many as are left
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ShardFigures)


class ExtensionService:
    """Asks the other shards over the bus. Lives on the loop thread. `own`: the figures of this worker."""

    def __init__(self, metadata: Metadata, bus: Bus, own: Callable[[], ShardFigures], started_at_us: int) -> None:
        self._metadata = metadata
        self._bus = bus
        self._asking = SharedRoom(METRICS_MAX, of_addresses=False)
        self._own = own
        self._started_at_us = started_at_us
        self._known: dict[int, ShardFigures] = {}  # the last answer of each shard
        bus.serve(METHOD_METRICS, Senders.ANY_SHARD, self._serve_metrics)

    async def _serve_metrics(self, sender: int, payload: bytes) -> bytes:
        return _encoder.encode(self._own())

    async def list_extensions(self, identity: Identity, request: ExtensionRequest) -> ExtensionList:
        """Every user who has logged in may ask."""
        return ExtensionList(__version__, EXTENSIONS)

    async def get_metrics(self, identity: Identity, request: ExtensionRequest) -> Metrics:
        """41 without the right to read the server. Users take turns: each shard makes its figures for each request."""
        base.require(self._metadata.state, identity, Rule.READ_SERVER)
        async with self._asking.place(identity.user, ""):
            try:
                answers = await self._bus.gather(METHOD_METRICS, b"", patience_s=AT_ONCE)
            except BusError as error:
                raise ShardError(Status.SHARD_COMMUNICATION_ERROR, str(error)) from error
            return self._merged(answers)

    def _merged(self, answers: list[bytes]) -> Metrics:
        figures = [_decoder.decode(answer) for answer in answers]
        self._known |= {each.shard: each for each in figures}
        missing = self._bus.patience.standing.keys() - {each.shard for each in figures}
        figures += [self._standing_still(self._bus.patience.standing[shard]) for shard in sorted(missing)]
        return merge(figures, time.time_ns() // 1000, self._started_at_us, self._bus.shards)

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
