"""Looks after the door that is being fuzzed and the workers: processes, their memory, what the log tells."""

from __future__ import annotations

import re
import time
from typing import Final

import psutil

from tests.fuzz.lanes import FindingError
from tests.support.server import Server

LOOK_EVERY_S: Final = 1.0
_SIGNS: Final = (b"Traceback", b" CRITICAL ", b" ERROR ", b"is given up", b"ended with")

_HEAD: Final = rb"Traceback \(most recent call last\):\n(?:  .*\n)*"
_UNFINISHED: Final = re.compile(_HEAD + rb"(?:  .*|[^ \n][^\n]*)?\Z")
_CLIENT_GONE: Final = re.compile(_HEAD + rb"grpc\._cython\.cygrpc\.ExecuteBatchError.*\n")


class DoorWatch:
    """`check` raises a FindingError. `growth_max_bytes`: of the door, above what it had at the beginning, and of all
    workers together."""

    def __init__(
        self, server: Server, door: psutil.Process, growth_max_bytes: int, workers_growth_max_bytes: int
    ) -> None:
        self._server = server
        self._workers = server.worker_pids()
        self._log_at = len(server.log_path.read_bytes())
        self._bounds = [
            ("the door", [door.pid], growth_max_bytes, self._resident_bytes([door.pid])),
            ("the workers", self._workers, workers_growth_max_bytes, self._resident_bytes(self._workers)),
        ]
        self.grown_most_bytes: dict[str, int] = {}
        self._next_s = 0.0

    def check(self) -> None:
        """Looks at most once a second."""
        if time.monotonic() >= self._next_s:
            self.look()
            self._next_s = time.monotonic() + LOOK_EVERY_S

    def look(self) -> None:
        running = self._server.running_workers()
        if [running[shard] for shard in sorted(running)] != self._workers:
            raise FindingError(f"a worker died: {self._workers} became {sorted(running.values())}\n{self._tail()}")
        for line in self._news().splitlines():
            if any(sign in line for sign in _SIGNS):
                raise FindingError(f"the log says: {line.decode(errors='replace')}\n{self._tail()}")
        for name, pids, growth_max_bytes, first_bytes in self._bounds:
            grown = self._resident_bytes(pids) - first_bytes
            self.grown_most_bytes[name] = max(self.grown_most_bytes.get(name, 0), grown)
            if grown > growth_max_bytes:
                raise FindingError(f"{name} grew by {grown >> 20} MiB, more than {growth_max_bytes >> 20} MiB")

    def _news(self) -> bytes:
        """What the log says since the last time, but for a traceback that is not whole yet, and for those of gRPC that
        a client was gone when its error was to be sent."""
        with self._server.log_path.open("rb") as log:
            log.seek(self._log_at)
            new = log.read()
        unfinished = _UNFINISHED.search(new)
        new = new[: unfinished.start()] if unfinished else new
        self._log_at += len(new)
        return _CLIENT_GONE.sub(b"", new)

    def _resident_bytes(self, pids: list[int]) -> int:
        try:
            return sum(int(psutil.Process(pid).memory_info().rss) for pid in pids)
        except psutil.NoSuchProcess as error:
            raise FindingError(f"process {error.pid} died\n{self._tail()}") from None

    def _tail(self) -> str:
        return "\n".join(self._server.log().splitlines()[-40:])
