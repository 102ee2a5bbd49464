"""Archive before deletion in the simulated partition: what retention and DELETE_SEGMENTS take away goes to the spool,
where it is archived and acknowledged, step by step, with crashes of both kinds between and within the steps.

The real code of the spool works on the simulated disk: its renames, unlinks and syncs are calls of that disk, which may
fail, die, and lose what was not synced."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from shardd.log import layout, spool
from shardd.log.segment_reader import opened_log
from shardd.log.spool import Acknowledgement, SpoolManifest, UnfitError
from shardd.log.trash import move_to_trash
from shardd.runtime.throttle import Throttle
from tests.sim.findings import Trace
from tests.sim.log_disk import LogDisk
from tests.sim.log_model import LogModel, split_records
from tests.sim.planted import Planted

IDS = (1, 2, 3)
NAMES = ("s", "t")
ROUNDS_MAX = 200  # until everything that has left the log is archived


class Archiving:
    """Of a seed: half of the partitions have `archive = required`. This is the archive, too: what it has is durable."""

    def __init__(self, disk: LogDisk, rng: random.Random, planted: Planted, trace: Trace) -> None:
        self._disk, self._rng, self._planted, self._trace = disk, rng, planted, trace
        self.on = rng.random() < 0.5
        self._undurable: set[tuple[int, int]] = set()  # segments that left before they were on the device
        self._given_up: set[tuple[int, int]] = set()
        self._taken: dict[tuple[int, int], bytes] = {}  # by incarnation and offset
        self._spool = spool.spool_directory(disk.root)
        layout.incoming_directory(disk.root).mkdir(parents=True)  # as the start of a server makes it
        disk.adopt()

    def destination(self, incarnation: int, trash: Path) -> Path:
        """How the names begin that files of a segment get when they leave the log."""
        if not self.on or (self._planted.log == "past the archive" and self._rng.random() < 0.3):
            return trash
        return Path(spool.incoming_prefix(self._disk.root, IDS, incarnation))

    def removed(self, incarnation: int, starts: list[int], durable_end: int) -> None:
        """DELETE_SEGMENTS has taken these, up to the last of `starts`, which stays. What was not on the device a power
        loss may damage wherever it is."""
        self._undurable |= {(incarnation, start) for start, end in itertools.pairwise(starts) if end > durable_end}

    def step(self, incarnation: int) -> str:
        """What was done; empty: nothing."""
        if not self.on:
            return ""
        step = self._rng.choice([self._take_in, self._take_in, self._archive, self._remove])
        try:
            with self._through_the_disk():
                return step(incarnation)
        except OSError as error:
            return f"{step.__name__}: {error.strerror}"
        except ValueError as error:
            self._trace.report(f"{step.__name__} of the archive cannot go on: {error}")
            return ""

    def _take_in(self, incarnation: int) -> str:
        for segment in spool.incoming(self._disk.root):
            if segment.incarnation != incarnation:  # purged, and so is what is on its way
                spool.forget(self._disk.root, segment)
                continue
            try:
                made = spool.make_entry(self._disk.root, segment, NAMES, "required", Throttle())
            except UnfitError:
                if (incarnation, segment.start) not in self._undurable:
                    raise
                spool.forget(self._disk.root, segment)  # as an operator does who gives it up
                self._given_up.add((incarnation, segment.start))
                return f"{segment.start} is given up"
            return f"{segment.start} is {'in the spool' if made else 'in its partition'}"
        return ""

    def _archive(self, _: int) -> str:
        waiting = [each for each in self._known() if spool.read_acknowledgement(*each) is None]
        if not waiting:
            return ""
        entry, manifest = self._rng.choice(waiting)
        spool.verify(entry, manifest)
        with opened_log(entry, manifest.start) as log:
            records = split_records(os.pread(log, manifest.log_bytes, 0))
        for record in records:
            place = (manifest.incarnation, int.from_bytes(record[24:32], "little"))
            if self._taken.setdefault(place, record) != record:
                self._trace.report(f"offset {place[1]} comes to the archive a second time, with another message")
        if len(records) != manifest.records:
            self._trace.report(f"{entry.name} has {len(records)} messages and says {manifest.records}")
        spool.acknowledge(entry, Acknowledgement(manifest.digest, manifest.records, "simulated"))
        return f"{manifest.start} is archived"

    def _remove(self, _: int) -> str:
        for entry, manifest in self._known():
            if spool.read_acknowledgement(entry, manifest) is not None:
                move_to_trash(entry, layout.trash_directory(self._disk.root), durable=False)
                return f"{manifest.start} leaves the spool"
        return ""

    def _known(self) -> list[tuple[Path, SpoolManifest]]:
        return [(entry, spool.read_entry(entry)) for entry in spool.entries(self._spool)]

    def finish(self, incarnation: int, model: LogModel) -> None:
        """Without faults. Everything that has left the log of this incarnation is in the archive in the end."""
        if not self.on:
            return
        for _ in range(ROUNDS_MAX):
            self.step(incarnation)
            left = spool.incoming(self._disk.root)
            if not left and all(spool.read_acknowledgement(*each) is not None for each in self._known()):
                break
        else:
            self._trace.report(f"the archive does not come to an end: {left} are left")
        home = layout.partition_directory(self._disk.root, *IDS)
        kept = [int(path.stem) for path in home.glob("*.*") if path.suffix in (".log", ".blocks")]
        lost = {start for known, start in self._given_up if known == incarnation}
        for offset in range(min(kept, default=0)):
            record = model.log[offset]
            if record and not lost and self._taken.get((incarnation, offset)) != record:
                self._trace.report(f"offset {offset} has left the log and is not in the archive")
                return

    @contextmanager
    def _through_the_disk(self) -> Iterator[None]:
        disk = self._disk

        def real(path: Path | str) -> Path:
            """Some name a directory by its descriptor."""
            return Path(os.path.realpath(Path(path).parent)) / Path(path).name

        def done(result: int) -> None:
            if result < 0:
                raise OSError(-result, os.strerror(-result))

        def rename(path: Path, target: Path) -> Path:
            disk.see()
            done(disk.rename(os.fsencode(real(path)), os.fsencode(real(target))))
            return Path(target)

        def unlink(path: Path, missing_ok: bool = False) -> None:
            disk.see()
            if missing_ok and not path.exists():
                return
            done(disk.unlink(os.fsencode(real(path))))

        def sync(descriptor: int) -> None:
            disk.see()
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            result = disk.sync_of(path)
            if result < 0 and path.suffix == layout.TEMPORARY_SUFFIX:
                disk.forget(path)
            done(result)

        try:
            with (
                mock.patch.object(Path, "rename", rename),
                mock.patch.object(Path, "replace", rename),
                mock.patch.object(Path, "unlink", unlink),
                mock.patch.object(os, "fsync", sync),
                mock.patch.object(os, "fdatasync", sync),
            ):
                yield
        finally:
            disk.see()
