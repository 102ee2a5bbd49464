"""Connections that broke are opened again, beside the loop that uses them (native/load/run.c)."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from shardd.benchmark import _load
from shardd.benchmark.options import BenchError
from shardd.benchmark.servers.connection import Connection
from shardd.client.errors import ClientError

REOPEN_TIMEOUT_S: Final = 30.0
REOPEN_PAUSE_S: Final = 0.01
"""Between two attempts."""
REOPENED_AT_ONCE: Final = 8
_INDEX: Final = struct.Struct("<I")


class Reopening:
    """Of the actors of one process. `connections` and `channels` are kept up to date, by index. `fault`: a sentence
    when one could not be opened; `stop` ends the run then.

    The loop writes indexes into `broken_fd` and takes what was opened out of `opened_fd`."""

    def __init__(
        self,
        open_one: Callable[[int], Connection],
        connections: list[Connection],
        channels: list[object],
        stop: Callable[[], None],
    ) -> None:
        self.fault = ""
        self._open_one, self._stop = open_one, stop
        self._connections, self._channels = connections, channels
        self._ended = threading.Event()
        self._asked_fd, self.broken_fd = os.pipe()
        self.opened_fd, self._answer_fd = os.pipe()
        os.set_blocking(self.broken_fd, False)
        os.set_blocking(self.opened_fd, False)
        self._pool = ThreadPoolExecutor(REOPENED_AT_ONCE)
        self._listener = threading.Thread(target=self._listen, name="reopening")

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        os.close(self.broken_fd)
        os.close(self.opened_fd)
        self._listener.join()
        self._pool.shutdown()
        os.close(self._asked_fd)
        os.close(self._answer_fd)

    def _listen(self) -> None:
        while index := os.read(self._asked_fd, _INDEX.size):
            self._pool.submit(self._reopen, *_INDEX.unpack(index))

    def _reopen(self, index: int) -> None:
        try:
            self._connections[index].close()
            deadline = time.monotonic() + REOPEN_TIMEOUT_S
            made = self._attempt(index)
            while isinstance(made, str) and time.monotonic() < deadline and not self._ended.wait(REOPEN_PAUSE_S):
                made = self._attempt(index)
            if isinstance(made, str):
                raise BenchError(made)
            capsule = getattr(made, "capsule", None)
            self._connections[index], self._channels[index] = made, capsule
            session = getattr(made, "session", (0, 0, 0, 0))
            _load.opened(self._answer_fd, index, made.fileno(), capsule, session)
        except (BenchError, OSError) as error:
            if not self._ended.is_set():
                self.fault = f"a connection could not be opened again within {REOPEN_TIMEOUT_S:.0f} s: {error}"
                self._stop()

    def _attempt(self, index: int) -> Connection | str:
        """Ready for a request, or why not."""
        try:
            made = self._open_one(index)
        except (BenchError, ClientError, OSError) as error:
            return str(error)
        try:
            made.setblocking(False)
        except (BenchError, OSError) as error:
            with contextlib.suppress(OSError):
                made.close()
            return str(error)
        return made
