"""How a load goes on, while it does: one line of a terminal that is written again and again."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shardd.benchmark.options import Progress

_BARS: Final = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_KEPT: Final = 40


def sparkline(values: list[float]) -> str:
    top = max(values, default=0.0)
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] if top > 0 else " " for value in values)


class LiveView:
    """A `Watch` of options.py, for a terminal; nothing where there is none."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._before = Progress(0.0, 0, 0, 0.0, 0.0)
        self._rates: deque[float] = deque(maxlen=_KEPT)
        self._worst: deque[float] = deque(maxlen=_KEPT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self(None)

    def __call__(self, progress: Progress | None) -> None:
        if progress is None:
            if self._live is not None:
                self._live.stop()
            self._live, self._before = None, Progress(0.0, 0, 0, 0.0, 0.0)
            self._rates.clear()
            self._worst.clear()
            return
        if not self._console.is_terminal:
            return
        if self._live is None:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(self.shown(progress), refresh=True)

    def shown(self, progress: Progress) -> Table:
        """And what is kept for the next look."""
        seconds = progress.seconds - self._before.seconds
        rate = (progress.bytes - self._before.bytes) / 1e6 / seconds if seconds > 0 else 0.0
        messages = (progress.messages - self._before.messages) / seconds if seconds > 0 else 0.0
        self._before = progress
        self._rates.append(rate)
        self._worst.append(progress.worst_ms)
        table = Table.grid(padding=(0, 2))
        table.add_row(f"{progress.share:4.0%}", f"{progress.seconds:6.1f} s", f"{messages:,.0f} messages/s")
        table.add_row("", "MB/s", f"{rate:,.1f}", Text(sparkline(list(self._rates)), style="blue"))
        table.add_row("", "longest ms", f"{progress.worst_ms:,.2f}", Text(sparkline(list(self._worst)), style="red"))
        return table
