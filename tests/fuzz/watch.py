"""Looks after a server that is being fuzzed: workers, their memory, reports of the sanitizers, the log, PING."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import psutil

from tests.fuzz.lanes import FindingError
from tests.support import wire
from tests.support.server import Server

LOOK_EVERY_S: Final = 1.0
PING_TIMEOUT_S: Final = 60.0
# what a log line or a report must not hold
_SIGNS: Final = (b"AddressSanitizer", b"runtime error:", b"Traceback", b" CRITICAL ", b"is read only", b"ended with")


class Watch:
    """`check` raises a FindingError. `resident_max_bytes`: of all workers, above what they had at the beginning."""

    def __init__(self, server: Server, resident_max_bytes: int, reports: Path | None = None) -> None:
        self._server, self._reports = server, reports
        self._workers = server.worker_pids()
        self._control = wire.connect(server.address, timeout_s=PING_TIMEOUT_S)
        self._log_at = len(server.log_path.read_bytes())
        self._resident_max_bytes = resident_max_bytes
        self.resident_first = self.resident_peak = self.resident = self._resident()
        self._next_s = 0.0

    def close(self) -> None:
        self._control.close()

    def check(self) -> None:
        """Looks at most once a second."""
        if time.monotonic() < self._next_s:
            return
        self.look()
        self._next_s = time.monotonic() + LOOK_EVERY_S

    def look(self) -> None:
        running = self._server.running_workers()
        if [running[shard] for shard in sorted(running)] != self._workers:
            raise FindingError(
                f"a worker died: {self._workers} became {sorted(running.values())}\n{self._tail_of_log()}"
            )
        self._read_log()
        if self._reports is not None:
            reports = sorted(self._reports.parent.glob(f"{self._reports.name}*"))
            if reports:
                raise FindingError(f"a sanitizer reports:\n{reports[0].read_text(errors='replace')[:4000]}")
        self.resident = self._resident()
        self.resident_peak = max(self.resident_peak, self.resident)
        if self.resident - self.resident_first > self._resident_max_bytes:
            raise FindingError(f"the workers have grown from {self.resident_first >> 20} to {self.resident >> 20} MiB")
        try:
            self._control.ping()
        except OSError as error:
            raise FindingError(f"no answer to a PING within {PING_TIMEOUT_S} s: {error!r}") from error

    def _read_log(self) -> None:
        with self._server.log_path.open("rb") as log:
            log.seek(self._log_at)
            new = log.read()
        self._log_at += len(new)
        for line in new.splitlines():
            if any(sign in line for sign in _SIGNS):
                raise FindingError(f"the log says: {line.decode(errors='replace')}\n{self._tail_of_log()}")

    def _tail_of_log(self) -> str:
        return "\n".join(self._server.log().splitlines()[-40:])

    def _resident(self) -> int:
        total = 0
        for worker in self._workers:
            try:
                total += psutil.Process(worker).memory_info().rss
            except psutil.NoSuchProcess:
                raise FindingError(f"worker {worker} is gone\n{self._tail_of_log()}") from None
        return total
