"""What is done to one simulated partition beside its requests: messages expire, segments are cleaned away, sealed and
compressed, step by step, with crashes between any two of them."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

from shardd.log import layout
from shardd.log.blocks import Codec
from shardd.log.compressing import Outcome, prepare
from shardd.log.manifest import DamagedManifestError
from shardd.log.sealing import seal_segment
from shardd.log.segment_layout import COMPRESSED, PLAIN
from shardd.log.segment_reader import layout_of, segment_starts
from shardd.protocol.record_layout import LAYOUT_COMPRESSED
from shardd.runtime.throttle import Throttle
from tests.sim.log_disk import LogDisk
from tests.sim.log_library import LogPartition
from tests.sim.log_model import LogModel
from tests.sim.planted import Planted

CONSUMER_KIND = 1
LOOK_AGAIN_US = 100_000  # the partition looks again then, after an index could not be read
CODECS = (Codec("lz4", 1), Codec("zstd", 1), Codec("gzip", 1))


class Retention:
    """Of a seed: half of the partitions have an expiry, some of them hold messages back for stored offsets."""

    def __init__(self, rng: random.Random, planted: Planted) -> None:
        self.expiry_us = rng.choice([0, 0, 0, 3_000, 40_000, 400_000])
        self.held_us = rng.choice([0, 2_000, 300_000]) if self.expiry_us else 0
        wrong = {"expires early": -1, "expires late": 1}.get(planted.log, 0)
        self._told_us = max(1, self.expiry_us + wrong) if self.expiry_us else 0
        self._read_faults = 0
        self._blind_until_us = 0

    def tell(self, partition: LogPartition) -> None:
        if self.expiry_us:
            partition.limit(self._told_us, self.held_us)

    def wanted(self, model: LogModel, partition: LogPartition, now_us: int, consumers: int) -> int:
        """Below it nothing is served: all has expired, and no stored offset holds it."""
        if not self.expiry_us:
            return 0
        end = model.expired_end(self.expiry_us, now_us)
        stored = [partition.offset_get(CONSUMER_KIND, number) for number in range(consumers)]
        known = [value for value in stored if value is not None]
        if known:
            end = min(end, max(min(known) + 1, model.expired_end(self.expiry_us + self.held_us, now_us)))
        return end

    def sees(self, disk: LogDisk, now_us: int) -> bool:
        """Whether the partition could read what tells it: a failed read of an index makes it wait."""
        faults = sum(count for what, count in disk.injected.items() if what.endswith((" pread", " open")))
        if faults != self._read_faults:
            self._read_faults, self._blind_until_us = faults, now_us + LOOK_AGAIN_US
        return now_us >= self._blind_until_us


class Compressing:
    """One segment after the other; a step is what comes between two crashes."""

    def __init__(self, disk: LogDisk, directory: Path, rng: random.Random, planted: Planted) -> None:
        self._disk, self._directory, self._rng, self._planted = disk, directory, rng, planted
        self._start: int | None = None  # of the segment whose files have their names

    def forget(self) -> None:
        """After a crash; also when the partition is purged."""
        self._start = None

    def step(self, partition: LogPartition, incarnation: int, durable_end: int) -> str:
        """What was done; empty: nothing."""
        if self._start is not None:
            start, self._start = self._start, None
            return self._switch(partition, start)
        starts = segment_starts(self._directory) if self._directory.exists() else []
        ready = [
            start
            for start, end in itertools.pairwise(starts)
            if end <= durable_end and layout_of(self._directory, start) is PLAIN
        ]
        return self._put_in_place(self._rng.choice(ready), incarnation) if ready else ""

    def _put_in_place(self, start: int, incarnation: int) -> str:
        for suffix in ("log", "index"):
            if not self._sync(layout.segment_file(self._directory, start, suffix)):
                return ""
        try:
            seal_segment(self._directory, start, incarnation, Throttle())
            found = prepare(self._directory, start, incarnation, self._rng.choice(CODECS), Throttle())
        except DamagedManifestError:  # a power cut has left it, and the segment is not whole
            return f"{start} is damaged"
        finally:
            self._disk.adopt()
        if found.outcome is not Outcome.READY:
            return f"{start} {found.outcome.value}"
        if self._planted.log == "blocks of others":
            self._change(layout.segment_file(self._directory, start, COMPRESSED.suffix + layout.TEMPORARY_SUFFIX))
        for suffix in (COMPRESSED.suffix, "manifest"):
            target = layout.segment_file(self._directory, start, suffix)
            fresh = layout.segment_file(self._directory, start, suffix + layout.TEMPORARY_SUFFIX)
            if self._disk.rename(os.fsencode(fresh), os.fsencode(target)) != 0:
                return f"{start} has half of its names"
        self._start = start
        return f"{start} has its names"

    def _switch(self, partition: LogPartition, start: int) -> str:
        """The names are synced, the partition reads the new file, the plain one leaves."""
        if not layout.segment_file(self._directory, start, COMPRESSED.suffix).exists():
            return ""  # deleted meanwhile
        if not self._sync(self._directory) or not partition.change_layout(start, LAYOUT_COMPRESSED):
            return f"{start} stays as it is"
        trash = layout.trash_directory(self._disk.root)
        if not trash.exists():
            self._disk.mkdir(os.fsencode(trash))
        log = layout.segment_log(self._directory, start)
        self._disk.rename(os.fsencode(log), os.fsencode(trash / f"compressed-{self._disk.calls}-{start}.log"))
        return f"{start} is compressed"

    def _sync(self, path: Path) -> bool:
        flags = os.O_RDONLY | (os.O_DIRECTORY if path.is_dir() else 0)
        descriptor = self._disk.open(os.fsencode(path), flags)
        if descriptor < 0:
            return False
        result = self._disk.fdatasync(descriptor)
        self._disk.close(descriptor)
        return result == 0

    def _change(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        self._disk.adopt()
