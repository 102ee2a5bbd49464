"""Syncs of one simulated partition, step by step."""

from __future__ import annotations

import errno
import random
from pathlib import Path

from shardd.log import layout
from tests.sim.findings import Trace
from tests.sim.log_disk import LogDisk
from tests.sim.log_library import LogPartition
from tests.sim.log_model import LogModel
from tests.sim.planted import Planted

SYNC_STEPS_MAX = 60


class Syncs:
    """What a world does about syncs: a part of LogWorld."""

    rng: random.Random
    disk: LogDisk
    model: LogModel
    partition: LogPartition
    planted: Planted
    trace: Trace
    running: list[int] | None = None  # descriptors of the sync under way
    sync_error = 0

    def _note(self, kind: str, text: str = "") -> None:
        raise NotImplementedError

    def _flush(self) -> None:
        raise NotImplementedError

    def _sync_step(self) -> None:
        """Begins a sync, or does one of its files, or ends it: other operations come between."""
        if self.running is None:
            everything = self.rng.random() < 0.3
            most = self.rng.choice([1, 2, 64])
            failures = self.disk.injected.total()
            self.running = self.partition.sync_begin(everything=everything, most=most)
            if self.disk.keeps_what_was_refused and self.disk.injected.total() == failures:
                self.trace.report("what is left of a write that was refused stays, and the disk would let it go")
            self.sync_error = 0
            self.model.sync_begins(self.partition.ends())
            self._note("sync begins", str(len(self.running)))
        for _ in range(self.rng.choice([1, 1, 64])):
            if not self.running or self.disk.dead:
                break
            descriptor = self.running.pop(0)
            skipped = self._is_skipped(descriptor)
            result = 0 if skipped else self._synced(descriptor)
            self.disk.close(descriptor)
            self.sync_error = self.sync_error or -result
        if not self.running and not self.disk.dead:
            covered = self.partition.sync_done(self.sync_error)
            self._note("sync ends", f"{covered} {self.sync_error}")
            self.model.sync_ends(covered=covered, ends=self.partition.ends())
            self.running = None

    def _sync_whole(self) -> bool:
        self._flush()
        for _ in range(SYNC_STEPS_MAX):
            self._sync_step()
            if self.disk.dead or (self.running is None and self.model.durable_end == self.model.end):
                break
        return not self.disk.dead and self.model.durable_end == self.model.end

    def _is_skipped(self, descriptor: int) -> bool:
        """A planted fault: whoever waits is told that it is on the device, and it is not."""
        if self.planted.log == "stored offsets outside the sync":
            return Path(f"/proc/self/fd/{descriptor}").readlink().name == layout.CONSUMER_OFFSETS
        return self.planted.log == "answer before fsync" and self.rng.random() < 0.5

    def _synced(self, descriptor: int) -> int:
        result = -errno.EINTR
        while result == -errno.EINTR:
            result = self.disk.fdatasync(descriptor)
        return result
