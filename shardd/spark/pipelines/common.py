"""What the pipelines share: the place of a run, its summary, its progress on a terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from shardd.protocol.bounds import TopicBounds
from shardd.spark import durable, planner
from shardd.spark.options import SourceOptions, parse
from shardd.spark.pipelines.following import until_sigterm
from shardd.spark.positions import TopicName
from shardd.spark.server import Server
from shardd.spark.source import make_server

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_TICK_S: Final = 0.5
_LOOK_S: Final = 1  # between two looks at a query; Spark keeps the progress of 100 batches


class PipelineError(RuntimeError):
    """The pipeline cannot do what was asked; one sentence for the user."""


@dataclass(slots=True)
class Source:
    """A topic to read, and how: the options of format("shardd")."""

    topic: str
    options: Mapping[str, str] = field(default_factory=dict)

    def parsed(self) -> SourceOptions:
        return parse({"subscribe": self.topic, **self.options}, streaming=False)

    def server(self) -> Server:
        return make_server(self.parsed())

    def bounds(self, *, segments: bool = False) -> dict[TopicName, TopicBounds]:
        options, server = self.parsed(), self.server()
        try:
            return planner.discover(server, options, segments=segments)
        finally:
            server.close()

    def durable_bounds(self) -> dict[TopicName, TopicBounds]:
        """For a plan: when all that is there now is on the device. `NotDurableError`."""
        options, server = self.parsed(), self.server()
        try:
            return durable.discover(server, options, segments=planner.needs_segments(options))
        finally:
            server.close()


class Meter:
    """Rows and bytes of a run; on a terminal a bar with both rates, lag and time left, twice a second."""

    def __init__(self, title: str, total_rows: int | None, watch: Callable[[], tuple[int, int]] | None = None) -> None:
        """`watch` gives (rows, bytes) done so far."""
        self._title = title
        self._total = total_rows
        self._watch = watch
        self._console = Console(stderr=True)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._done = (0, 0)
        self.started_s = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_s

    def advance(self, rows: int, size_bytes: int) -> None:
        self._done = (self._done[0] + rows, self._done[1] + size_bytes)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task(self._title, total=self._total, figures="")
            while not self._stop.wait(_TICK_S):
                rows, size_bytes = self._watch() if self._watch is not None else self._done
                rate = size_bytes / 1e6 / max(self.seconds, 1e-3)
                lag = "" if self._total is None else f", {max(self._total - rows, 0):,} behind"
                progress.update(task, completed=rows, figures=f"{rows:,} rows, {rate:.1f} MB/s{lag}")


@dataclass(slots=True)
class Counted:
    """Of a streaming query: rows that were read, and those of them that came behind the watermark."""

    rows: int = 0
    late: int = 0


def follow_query(query: StreamingQuery, counted: Counted, *, late_allowed: bool = False) -> None:
    """Waits for the end of a streaming query; SIGTERM stops it. `counted` goes on, on the way, as Spark keeps the last
    100 batches alone. `PipelineError` when rows came behind the watermark, unless that is allowed."""
    last, ended = -1, False
    with until_sigterm() as told:
        while not ended:
            try:
                ended = bool(query.awaitTermination(_LOOK_S))
                if told.is_set():
                    query.stop()
            except KeyboardInterrupt:
                query.stop()
                raise
            for each in query.recentProgress:
                batch, found = int(each["batchId"]), int(each["numInputRows"])
                if batch > last and found:  # a batch that waits tells of itself with no rows before
                    counted.rows, last = counted.rows + found, batch
                    counted.late += sum(int(state["numRowsDroppedByWatermark"]) for state in each["stateOperators"])
            if counted.late and not late_allowed:
                query.stop()
                raise PipelineError(
                    f"{counted.late} messages came later than the watermark allows and were left out; a longer delay"
                    " (--within, --watermark) takes them in, with a new --state-dir; --allow-late only counts them"
                )


def summary(pipeline: str, meter: Meter, rows: int, size_bytes: int, **more: Any) -> dict[str, Any]:
    """What a run prints at its end as JSON."""
    seconds = meter.seconds
    return {
        "pipeline": pipeline,
        "rows": rows,
        "bytes": size_bytes,
        "seconds": round(seconds, 3),
        "mb_per_s": round(size_bytes / 1e6 / seconds, 1) if seconds else 0.0,
        **more,
    }
