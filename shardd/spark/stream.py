"""The streaming side of the source: offsets, admission control, AvailableNow. One object
lives on the driver for each query; the tasks get copies that only read."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from shardd.client.errors import ServerError
from shardd.protocol.bounds import PartitionBounds, TopicBounds
from shardd.spark import admission, durable, leases, planner, reading
from shardd.spark.loss import Losses
from shardd.spark.options import SourceOptions
from shardd.spark.positions import EARLIEST, Offsets, Position, TopicName, share
from shardd.spark.reading import SlicePartition, TaskSettings
from shardd.spark.retry import ServerUnreachableError
from shardd.spark.rollbacks import Rollbacks, with_own_archives
from shardd.spark.server import Server

_log = logging.getLogger(__name__)
Bounds = Mapping[TopicName, TopicBounds]


class ShardStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query."""

    def __init__(self, options: SourceOptions, server: Server, names: tuple[str, ...]) -> None:
        self._options = options
        self._server = server
        self._rollbacks = Rollbacks(server)
        self._compared_on = -1  # the connection on which archives were compared with the server
        self._settings = TaskSettings.of(options, names)
        self._until: Offsets | None = None  # AvailableNow: where the query ends
        self._latest: Offsets | None = None
        self._lost = self._no_losses()  # in finished batches
        self._lost_now = self._no_losses()  # in the batch that was planned last
        self._last_batch_s = time.monotonic()
        self._limited = options.max_offsets_per_trigger or options.max_bytes_per_trigger
        if options.starting.default == EARLIEST and not self._limited:
            _log.warning(
                "the stream starts at 'earliest' without maxOffsetsPerTrigger or maxBytesPerTrigger:"
                " its first batch holds all history"
            )

    def _no_losses(self, *, quiet: bool = False) -> Losses:
        return Losses(accepted=not self._options.fail_on_data_loss, quiet=quiet)

    def _compare_archives(self, bounds: Bounds) -> None:
        """Once on each connection: behind a new one the server may have other files."""
        if self._compared_on != self._server.connections:
            connection = self._server.connections  # the comparison may make another one
            self._options = with_own_archives(self._server, self._options, bounds, self._no_losses())
            self._compared_on = connection

    # ---- offsets ----

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        bounds = planner.discover(self._server, self._options)
        self._compare_archives(bounds)
        start = planner.resolve(self._server, self._options, self._options.starting, bounds, ending=False)
        return self._rollbacks.marked(start, None).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._ends(durable.discover(self._server, self._options, begun=True), None)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` itself when there is nothing to read yet."""
        try:
            bounds = planner.discover(self._server, self._options, begun=True)
            self._compare_archives(bounds)
            begin = self._rollbacks.checked(Offsets.from_json(start), bounds)
        except ServerUnreachableError as error:
            if self._until is not None:
                raise
            _log.warning("no new data for now: %s", error)
            return start
        end = self._latest = self._bounded(self._ends(bounds, begin))
        backlog = self._backlog(bounds, begin, end)
        if self._too_few(sum(backlog.values()), limit):
            return start
        end = self._by_time(bounds, begin, self._admit(bounds, begin, end, backlog, limit), end)
        if end.places == begin.places and any(backlog.values()):
            return start
        self._last_batch_s = time.monotonic()
        losses = self._no_losses(quiet=True)  # the progress of the batch is made before its tasks are planned
        planner.check_losses(self._options, bounds, begin, end, losses)
        if end.places != begin.places:
            self._lost, self._lost_now = self._lost + self._lost_now, losses
        end = self._rollbacks.marked(end, begin)
        return planner.with_cuts(self._options, bounds, begin, end).to_json()

    def _ends(self, bounds: Bounds, begin: Offsets | None) -> Offsets:
        """Where reading may go to now; never behind what was read already."""
        places: dict[TopicName, dict[int, Position]] = {}
        for name, topic in bounds.items():
            places[name] = {}
            for each in topic.partitions:
                end = planner.readable_end(self._options, each)
                read = begin.places.get(name, {}).get(each.id) if begin is not None else None
                if read is not None and read.incarnation == each.incarnation and read.offset <= each.end:
                    end = max(end, read.offset)
                places[name][each.id] = Position(each.incarnation, end)
        return Offsets(places)

    def _bounded(self, ends: Offsets) -> Offsets:
        """Under AvailableNow nothing beyond what there was at its beginning, and no partition that came later."""
        if self._until is None:
            return ends
        places: dict[TopicName, dict[int, Position]] = {}
        until: dict[TopicName, dict[int, Position]] = {}
        for name, partitions in ends.places.items():
            known = self._until.places.get(name, {})
            until[name] = {n: _until(place, known[n]) for n, place in partitions.items() if n in known}
            places[name] = {n: _earlier(partitions[n], end) for n, end in until[name].items()}
        self._until = Offsets(until)
        return Offsets(places)

    def _too_few(self, waiting: int, limit: ReadLimit) -> bool:
        """minOffsetsPerTrigger, until maxTriggerDelay has gone by."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._until is not None or (isinstance(limit, ReadAllAvailable) and self._limited):
            return False
        delay_s = self._options.max_trigger_delay_ms / 1000
        return waiting < least and time.monotonic() - self._last_batch_s < delay_s

    def _admit(
        self, bounds: Bounds, begin: Offsets, end: Offsets, backlog: dict[tuple[TopicName, int], int], limit: ReadLimit
    ) -> Offsets:
        """`end`, or as much of the way to it as the limits allow, shared in proportion to what waits."""
        if isinstance(limit, ReadAllAvailable):
            return end
        allowed = sum(backlog.values())
        if isinstance(limit, ReadMaxRows):
            allowed = min(allowed, limit.max_rows)
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes_per_trigger
        if max_bytes is not None:
            allowed = min(allowed, max(max_bytes // _average_bytes(bounds), 1))
        shares = share(allowed, backlog)
        places: dict[TopicName, dict[int, Position]] = {}
        for name, partitions in end.places.items():
            places[name] = {}
            for n, place in partitions.items():
                first = self._begin_of(begin, bounds, name, n, place)
                places[name][n] = (
                    Position(place.incarnation, min(first + shares[name, n], place.offset))
                    if (first < place.offset)
                    else place
                )
        return Offsets(places)

    def _by_time(self, bounds: Bounds, begin: Offsets, offered: Offsets, ends: Offsets) -> Offsets:
        """`offered`, or less of it where the query has a watermark (admission.py)."""
        delay_ms = self._options.watermark_delay_ms
        if delay_ms is None:
            return offered
        of, last = admission.flat(offered), admission.flat(ends)
        found = admission.ends_by_time(
            planner.TimesOf(self._server, self._options, bounds),
            {place: self._begin_of(begin, bounds, *place, end) for place, end in of.items()},
            {place: end.offset for place, end in of.items()},
            {place: end.offset for place, end in last.items()},
            delay_us=delay_ms * 1000,
            now_us=time.time_ns() // 1000,
        )
        places: dict[TopicName, dict[int, Position]] = {name: {} for name in offered.places}
        for (name, n), offset in found.items():
            places[name][n] = Position(of[name, n].incarnation, offset)
        return Offsets(places)

    def _begin_of(self, begin: Offsets, bounds: Bounds, name: TopicName, n: int, end: Position) -> int:
        """Where reading goes on; a new partition, or a new incarnation, from its earliest message."""
        place = begin.places.get(name, {}).get(n)
        if place is not None and place.incarnation == end.incarnation:
            return place.offset
        return planner.earliest(self._options, name, _partition(bounds, name, n))

    def _backlog(self, bounds: Bounds, begin: Offsets, end: Offsets) -> dict[tuple[TopicName, int], int]:
        return {
            (name, n): max(place.offset - self._begin_of(begin, bounds, name, n, place), 0)
            for name, partitions in end.places.items()
            for n, place in partitions.items()
        }

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Stands in the progress of the query: the ends, and what was lost since it started (failOnDataLoss=false)."""
        return (
            None
            if self._latest is None
            else {
                **self._latest.to_json(),
                "lost": (self._lost + self._lost_now).to_json(),
            }
        )

    # ---- batches ----

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        segments = planner.needs_segments(self._options)
        bounds = planner.discover(self._server, self._options, segments=segments, begun=True)
        self._compare_archives(bounds)
        options = self._options
        begin, last = (self._rollbacks.checked(Offsets.from_json(each), bounds) for each in (start, end))
        self._lost_now = self._no_losses()
        planner.check_present(begin, last, bounds, self._lost_now)
        found = planner.slices(options, bounds, begin, last, self._lost_now)
        tasks = planner.tasks(found, last)
        leased = leases.take(self._server, options, tasks)
        return [SlicePartition(*task, leased=each) for task, each in zip(tasks, leased, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return reading.read(self._settings, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Stores the progress for whoever watches the lag; the checkpoint alone decides where reading goes on."""
        consumer = self._options.progress_consumer
        if consumer is None:
            return
        for name, partitions in Offsets.from_json(end).places.items():
            for n, place in partitions.items():
                if place.offset == 0:
                    continue
                try:
                    self._server.store_progress(consumer, name, n, place.offset - 1)
                except ServerError as error:
                    _log.warning("progress of partition %d of '%s' is not stored: %s", n, name, error)
                except ServerUnreachableError as error:
                    _log.warning("the progress is not stored: %s", error)
                    return

    def stop(self) -> None:
        self._server.close()


def _until(place: Position, known: Position) -> Position:
    """Under AvailableNow a partition that is made anew meanwhile ends where it was when that was seen."""
    return known if place.incarnation == known.incarnation else place


def _earlier(place: Position, until: Position) -> Position:
    return Position(place.incarnation, min(place.offset, until.offset))


def _partition(bounds: Bounds, name: TopicName, n: int) -> PartitionBounds:
    return next(each for each in bounds[name].partitions if each.id == n)


def _average_bytes(bounds: Bounds) -> int:
    size = sum(each.size_bytes for topic in bounds.values() for each in topic.partitions)
    messages = sum(each.messages_count for topic in bounds.values() for each in topic.partitions)
    return max(size // messages, 1) if messages else 1
