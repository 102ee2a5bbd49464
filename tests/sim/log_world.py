"""One run of one partition: random operations on the real code, crashes of both kinds, the real recovery after each.

The model knows every message that was ever sent and what became of it; each poll and each recovery is compared with it.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

from shardd.engine import SegmentInfo
from shardd.log import layout
from shardd.log.recovery import open_partition
from shardd.log.segment_reader import segment_starts
from tests.sim.findings import Trace
from tests.sim.log_archive import IDS, Archiving
from tests.sim.log_disk import LogDisk
from tests.sim.log_library import (
    POLL_FIRST,
    POLL_LAST,
    POLL_NEXT,
    POLL_OFFSET,
    POLL_TIMESTAMP,
    Batch,
    LogPartition,
    Producing,
)
from tests.sim.log_model import LogModel, split_records
from tests.sim.log_syncs import Syncs
from tests.sim.log_upkeep import Compressing, Retention
from tests.sim.planted import Planted, trusting_recovery

LEVELS = ("written", "memory", "durable")
OPERATIONS = 220
SEGMENT_SIZES = (600, 1500, 6000)
CONSUMERS = 12  # entries in three sectors
INDEX_CONTRADICTS = 10002
TRASH_NAME = re.compile(r"trash/\S+")  # has a time in it


class LogWorld(Syncs):
    """`root` is a directory of its own on a fast file system; it is removed at the end."""

    producing = Producing()

    def __init__(self, seed: int, root: Path, planted: Planted, trace: Trace) -> None:
        self.rng = random.Random(f"log {seed}")
        self.trace = trace
        self.planted = planted
        self.level = self.rng.choice([0, 1, 2, 2])
        self.segment_size = self.rng.choice(SEGMENT_SIZES)
        self.seed = seed
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        self.root = root
        self.directory = layout.partition_directory(root, *IDS)
        self.disk = LogDisk(root, random.Random(f"log disk {seed}"))
        self.incarnation = 5
        self.retention = Retention(random.Random(f"log retention {seed}"), planted)
        self.compressing = Compressing(self.disk, self.directory, random.Random(f"log compressing {seed}"), planted)
        self.archiving = Archiving(self.disk, random.Random(f"log archive {seed}"), planted, trace)
        self.model = LogModel(trace, LEVELS[self.level], expires=self.retention.expiry_us > 0)
        self.now_us = self.monotonic_us = 1_000_000
        self.delete_died = False
        self.step = 0
        self.next_id = 1
        self.partition = self._opened([], 0)

    # ---- one run ----

    def operations(self) -> list[tuple[int, Callable[[], None]]]:
        """How often, and what."""
        return [
            (40, self._append),
            (16, self._poll),
            (14, self._sync_step),
            (8, self._store_offset),
            (2, self._delete_offset),
            (3, self._flush),
            (3, self._delete_segments),
            (1, self._purge),
            (3, self._fault),
            (3, self._kill),
            (3, self._power),
            (1, self._orderly),
            (2, self._clock),
            (6, self._time_passes),
            (8, self._clean),
            (6, self._compress),
            (12, self._archive),
        ]

    def run(self) -> None:
        operations = self.operations()
        weights = [weight for weight, _ in operations]
        calls = [call for _, call in operations]
        for self.step in range(OPERATIONS):
            self.rng.choices(calls, weights)[0]()
            if self.disk.dead:
                self._kill()
            if self.trace.finding is not None:
                break
            self._look()
        self.disk.errno_share = 0.0
        if self.trace.finding is None:
            self._power()
            self.archiving.finish(self.incarnation, self.model)
        self._let_go(orderly=False)

    def _note(self, kind: str, text: str = "") -> None:
        self.trace.add(self.step, kind, text)

    # ---- operations ----

    def _append(self) -> None:
        batches = [Batch(self._records(self.rng.randint(1, 4))) for _ in range(self.rng.choice([1, 1, 1, 2, 5]))]
        self._tick(self.rng.randrange(1000))
        self.partition.append(batches, self.now_us)
        for batch in batches:
            self._note("append", f"{len(batch.lengths)} at {batch.first_offset}: {batch.status}")
            self.model.appended(batch.stored(), batch.status, batch.first_offset, alive=not self.disk.dead)
        if not self.disk.dead:
            self.model.saved(self.partition.ends())

    def _records(self, count: int) -> list[bytes]:
        found = []
        for _ in range(count):
            body = struct.pack("<Q", self.next_id) + self.rng.randbytes(self.rng.choice([0, 5, 40, 125])) * 4
            self.next_id += 1
            found.append(bytes(48) + struct.pack("<IIQ", 0, len(body), 0) + body)
        return found

    def _poll(self) -> None:
        strategy = self.rng.choice([POLL_OFFSET, POLL_TIMESTAMP, POLL_FIRST, POLL_LAST, POLL_NEXT])
        value = self.rng.randrange(self.model.end + 2)
        if strategy == POLL_TIMESTAMP:
            value = self.now_us - self.rng.randrange(20_000)
        count = self.rng.choice([1, 3, 20, 1000])
        consumer = self.rng.randrange(CONSUMERS)
        wanted = self._wanted()
        status, first, records, data = self.partition.poll(strategy, value, count, consumer)
        if self.disk.dead:
            return
        ends = self.partition.ends()
        self._note("poll", f"{strategy} {value} {count}: {status}, {records} from {first}")
        self.model.expired(ends, wanted)
        seen = self.retention.sees(self.disk, self.now_us)
        self.model.polled(first, split_records(data), ends, wanted if seen else 0)
        if status == 4027:
            self.trace.report(f"a poll at {first + records} finds damage that nobody has done")

    def _store_offset(self) -> None:
        number, value = self.rng.randrange(CONSUMERS), self.rng.randrange(self.model.end + 2)
        status = self.partition.offset_store(1, number, value)
        self._note("offset", f"{number} {value}: {status}")
        self.model.offset_stored(number, value, status, alive=not self.disk.dead)

    def _delete_offset(self) -> None:
        number = self.rng.randrange(CONSUMERS)
        status = self.partition.offset_delete(1, number)
        self._note("offset", f"{number} deleted: {status}")
        self.model.offset_stored(number, None, status, alive=not self.disk.dead)

    def _flush(self) -> None:
        status = self.partition.flush()
        self._note("flush", str(status))
        if not self.disk.dead:
            self.model.saved(self.partition.ends())

    def _delete_segments(self) -> None:
        if self.archiving.on and not self._sync_whole():  # as `PartitionCalls._delete_segments`
            return
        before = segment_starts(self.directory) if self.directory.exists() else []
        status, deleted = self.partition.delete_segments(self.rng.randint(1, 2), self._destination("segment"))
        self._note("delete segments", f"{status} {deleted}")
        self.delete_died |= self.disk.dead
        if not self.disk.dead:
            starts = segment_starts(self.directory) if self.directory.exists() else []
            self.model.deleted(self.partition.ends(), min(starts, default=0))
        self.archiving.removed(self.incarnation, before, self.model.durable_end)

    def _clean(self) -> None:
        wanted = self._wanted()
        status, removed = self.partition.clean(self._destination("cleaned"))
        self._note("clean", f"{status} {removed}")
        if not self.disk.dead:
            self.model.expired(self.partition.ends(), wanted)

    def _destination(self, name: str) -> Path:
        """Of what leaves the log."""
        trash = layout.trash_directory(self.root)
        if not trash.exists():
            self.disk.mkdir(os.fsencode(trash))
        return self.archiving.destination(self.incarnation, trash / f"{self.step}-{name}")

    def _archive(self) -> None:
        done = self.archiving.step(self.incarnation)
        if done:
            self._note("archive", done)

    def _compress(self) -> None:
        done = self.compressing.step(self.partition, self.incarnation, self.model.durable_end)
        if done:
            self._note("compress", done)

    def _wanted(self) -> int:
        return self.retention.wanted(self.model, self.partition, self.now_us, CONSUMERS)

    def _tick(self, us: int) -> None:
        """Of both clocks; back, of the wall clock."""
        self.now_us = max(0, self.now_us + us)
        self.monotonic_us += max(0, us)
        self.partition.clock(self.now_us, self.monotonic_us)

    def _time_passes(self) -> None:
        """To the moment at which a message expires, often; else any time."""
        us = self.rng.choice([1, 3_000, 50_000, 600_000, 1_100_000])
        if self.model.first < self.model.end and self.rng.random() < 0.6:
            offset = self.rng.randrange(self.model.first, self.model.end)
            moment = self.model.timestamp(offset) + self.retention.expiry_us
            us = max(0, moment - self.now_us - self.rng.choice([0, 0, 1]))
        self._note("time passes", str(us))
        self._tick(us)

    def _purge(self, *, unproven: bool = False, by_operator: bool = False) -> None:
        """As `OwnedPartitions.follow`: the metadata has a new incarnation for good, the directory goes to the trash.
        `unproven`: nothing in it tells its incarnation any more. Whoever dies before the rename leaves it as it was,
        read only, and every later start finds it so (docs/formats.md)."""
        if self.running is not None:
            return
        self._let_go(orderly=True)
        if self.disk.dead:
            self.disk.restart()
        trash = layout.trash_directory(self.root)
        lost = self.planted.log == "lost purge" and not by_operator
        share, self.disk.errno_share = self.disk.errno_share, 0.0
        if not lost:
            if not trash.exists():
                self.disk.mkdir(os.fsencode(trash))
            if self.directory.exists() and (self.rng.random() < 0.8 or unproven):  # else it dies before the rename
                self.disk.rename(os.fsencode(self.directory), os.fsencode(trash / f"{self.step}-partition"))
            self.incarnation += 1
        self.disk.errno_share = share
        self._note("purge")
        self.model.purged()
        self._recover()

    def _fault(self) -> None:
        if self.rng.random() < 0.4:
            self.disk.death_after = self.rng.randint(1, 12)
        else:
            self.disk.errno_share = self.rng.choice([0.0, 0.0, 0.02, 0.2])
        self._note("faults", f"{self.disk.errno_share}")

    def _clock(self) -> None:
        self._tick(-self.rng.randrange(5_000))
        self._note("clock goes back")

    # ---- ends and starts ----

    def _kill(self) -> None:
        if self.disk.suspect:  # whether its pages are on the device nobody knows, so the machine goes too
            self._power()
            return
        self._note("kill")
        self._let_go(orderly=False)
        self.model.killed(refused_stay=self.disk.keeps_what_was_refused)
        self.disk.restart()
        self._recover()

    def _power(self) -> None:
        self._note("power cut")
        self._let_go(orderly=False)
        self.disk.cut_power()
        self.model.power_cut()
        self._recover()

    def _orderly(self) -> None:
        if self.disk.suspect or self.running is not None:
            return
        self._note("orderly stop")
        share, self.disk.errno_share = self.disk.errno_share, 0.0
        self._let_go(orderly=True)
        self.disk.errno_share = share
        self.disk.restart()
        self.model.killed()
        self._recover()

    def _let_go(self, *, orderly: bool) -> None:
        self.compressing.forget()
        if not orderly:
            self.disk.dead = True
        self.partition.free(orderly=orderly)
        for descriptor in self.running or []:
            self.disk.close(descriptor)
        self.running = None

    def _recover(self) -> None:
        """The real one, on real files, then the real opening."""
        share, self.disk.errno_share = self.disk.errno_share, 0.0
        if self.planted.log == "recovery trusts un-synced bytes" and self.directory.exists():
            found = trusting_recovery(self.directory)
        else:
            found = open_partition(self.directory, self.incarnation, self.producing.boot_id)
        self.disk.adopt()
        damaged = getattr(found, "damaged", [])
        self._note("recovered", f"{[(each[0], each[2]) for each in found.segments]} {found.state} {damaged}")
        for note in found.notes:
            self._note("recovery", TRASH_NAME.sub("trash", note.replace(str(self.root), "")))
        if found.state and not self.model.power_was_cut:
            self.trace.report(f"recovery takes what a kill has left for damage: {found.notes}")
        if not self._open_again(found.segments, found.state):
            self._note("killed while it opens")
            self._opened_in_vain(found.segments)
            self.disk.restart()
            self.disk.errno_share = share
            self._recover()
            return
        self.partition.poll(POLL_FIRST, 0, 1, 0)  # what has expired is hidden by the first look
        ends = self.partition.ends()
        ahead = [each[0] for each in damaged if each[1] > ends.first]
        readable = max(0, (ahead[0] if ahead else ends.next) - ends.first)
        status, first, count, data = self.partition.poll(POLL_FIRST, 0, readable, 0)
        if status == INDEX_CONTRADICTS and self.model.power_was_cut and list(self.directory.glob("*.index")):
            self._note("index made anew")
            self._opened_in_vain(found.segments)
            self._let_go(orderly=False)
            self.disk.restart()
            for index in self.directory.glob("*.index"):
                index.unlink()
            self._recover()
            return
        hole = bool(status or found.state or damaged)
        if hole and not self.model.power_was_cut:
            self.trace.report(f"after a kill a poll of everything gets status {status} behind {first + count}")
        offsets = {number: self.partition.offset_get(1, number) for number in range(CONSUMERS)}
        records = split_records(data)
        wanted = self.model.end if self.delete_died else self._wanted()
        self.model.recovered(ends, records, offsets, hole=hole, wanted=wanted)
        self.recovered(records, ends.first)
        self.delete_died = False
        if self.retention.sees(self.disk, self.now_us):
            self.model.polled(ends.first, records, ends, self._wanted())
        self.disk.errno_share = share
        if hole:  # later bytes have survived than some before them: it waits for an operator
            self._note(f"{LEVELS[self.level]}: hole behind the durable end")
            self._purge(unproven=any("marker is damaged" in note for note in found.notes), by_operator=True)

    def recovered(self, records: list[bytes], first: int) -> None:
        """What is there after a crash."""

    def _opened_in_vain(self, segments: list[SegmentInfo]) -> None:
        last = segments[-1] if segments else None
        self.model.opened(0 if last is None else last.start_offset + last.records + last.absent)

    def _open_again(self, segments: list[SegmentInfo], state: int) -> bool:
        """False: the process died on the way."""
        if self.rng.random() < 0.1:
            self.disk.death_after = self.rng.randint(1, 12)
        try:
            self.partition = self._opened(segments, state)
        except OSError:
            if not self.disk.dead:
                raise
            return False
        if self.disk.dead:
            self._let_go(orderly=False)
            return False
        self.disk.death_after = -1
        return True

    def _opened(self, segments: list[SegmentInfo], state: int) -> LogPartition:
        ids, producing = self.seed + self.step, self.producing
        opened = LogPartition(
            self.disk, self.directory, self.incarnation, self.level, self.segment_size, state, ids, producing, segments
        )
        opened.clock(self.now_us, self.monotonic_us)
        self.retention.tell(opened)
        return opened

    def _look(self) -> None:
        self.model.check(self.partition.ends())
