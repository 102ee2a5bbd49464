"""`make fault`, the metadata's part: every errno at every call of its disk seam (shardd/runtime/disk.py).

    python -m tests.crash.fault_sites [--short]

One scripted life of the metadata log: reserve, birth, records, reads, snapshot, cut, records, orderly end, a torn tail,
reopening, records, a second snapshot and cut. It is lived once to count the calls, then again for each of them, which
fails once, for ever after (all calls with its name), or is cut short. What must hold: callers see only the errors that
are documented; what was acknowledged is there after the next start, in one unbroken chain of digests, and nothing that
was never submitted; the next start works.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from shardd.metadata import State, commands
from shardd.metadata.apply import replay
from shardd.metadata.errors import LogError
from shardd.metadata.load import load_state, read_stored
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.records import Record
from shardd.metadata.reserve import Reserve
from shardd.metadata.snapshot import snapshot_path, write_snapshot
from shardd.metadata.wal import AppendError, MetadataLog
from shardd.protocol.errors import Status
from shardd.runtime.disk import OsDisk
from tests.support.metadata_chain import chain

ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
SHORT_ERRNOS = (errno.EIO, errno.ENOSPC)
STATUSES = (Status.CANNOT_WRITE_TO_FILE, Status.CANNOT_SYNC_FILE)
RECORDS = 16
TORN = b"torn record"
SHOWN_MAX = 20
LIE = -1  # instead of an errno: a write says that it was done and was not


def _encode() -> list[tuple[bytes, Record]]:
    history: list[commands.Command] = [commands.CreateUser("iggy", "$argon2id$x", True, None)]
    history += [commands.CreateStream(f"stream {number}") for number in range(RECORDS - 1)]
    return chain(history)


ENCODED = _encode()


def state_at(index: int) -> State:
    return replay(record for _, record in ENCODED[:index])


class FaultyDisk(OsDisk):
    """Fails call number `victim` (from 1; 0: none) with `code`; with `for_ever` all later ones of its name, too. With
    `short` the call takes or gives a part first, where it can."""

    def __init__(self, victim: int = 0, code: int = 0, *, for_ever: bool = False, short: bool = False) -> None:
        self.victim, self.code, self.for_ever, self.short = victim, code, for_ever, short
        self.names: list[str] = []
        self._failing = ""

    @property
    def reached(self) -> bool:
        return 0 < self.victim <= len(self.names)

    def _is_hit(self, name: str) -> bool:
        self.names.append(name)
        if len(self.names) == self.victim:
            self._failing = name
            return True
        return self.for_ever and name == self._failing

    def _step(self, name: str) -> None:
        if self._is_hit(name):
            raise OSError(self.code, os.strerror(self.code))

    def open(self, path: Path, flags: int) -> int:
        self._step("open")
        return super().open(path, flags)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self._step("close")

    def size(self, descriptor: int) -> int:
        self._step("size")
        return super().size(descriptor)

    def pread(self, descriptor: int, length: int, position: int) -> bytes:
        if self._is_hit("pread"):
            if not self.short:
                raise OSError(self.code, os.strerror(self.code))
            length = max(1, length // 2)
        return super().pread(descriptor, length, position)

    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        if self._is_hit("pwrite"):
            if self.code == LIE:
                return len(data)
            written = super().pwrite(descriptor, data[: max(1, len(data) // 2)], position)
            if not self.short:  # half of it is there all the same
                raise OSError(self.code, os.strerror(self.code))
            return written
        return super().pwrite(descriptor, data, position)

    def ftruncate(self, descriptor: int, size: int) -> None:
        self._step("ftruncate")
        super().ftruncate(descriptor, size)

    def fdatasync(self, descriptor: int) -> None:
        self._step("fdatasync")
        super().fdatasync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._step("unlink")
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._step("sync_directory")
        super().sync_directory(path)


@dataclass
class Life:
    """One life in `directory`; `acknowledged` and `written` are indexes of records."""

    directory: Path
    disk: FaultyDisk
    acknowledged: int = 0
    attempted: int = 0
    failed_syncs: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.directory / FILE_NAME

    def live(self) -> None:
        """Ends early when the log cannot be opened; that is then the end of shard 0."""
        reserve = Reserve(self.directory, self.disk)
        reserve.make()
        with contextlib.suppress(LogError):
            log = self._open(reserve)
            self._append(log, 6)
            self._read(log)
            self._compact(log, 4)
            self._append(log, 3)
            log.close()
            if self.path.exists() and not self.failed_syncs:
                with self.path.open("ab") as file:  # what a crash leaves of the next record
                    file.write(TORN)
            load_state(self.path, self.disk)
            log = self._open(reserve)
            self._append(log, 3)
            self._compact(log, self.acknowledged - 1)
            self._append(log, 2)
            self._read(log)
            log.close()

    def _open(self, reserve: Reserve) -> MetadataLog:
        log, _ = MetadataLog.open(self.path, self.disk, reserve)
        if log.index < self.acknowledged or log.index > self.attempted:
            self.findings.append(f"opened with {log.index} records, {self.acknowledged} were acknowledged")
        self.acknowledged = log.index  # it was synced by opening
        return log

    def _append(self, log: MetadataLog, count: int) -> None:
        stopped = False
        for _ in range(count):
            if log.index >= RECORDS:
                return
            data, record = ENCODED[log.index]
            self.attempted = max(self.attempted, record.index)
            try:
                log.append(data)
            except AppendError as refusal:
                if refusal.status not in STATUSES:
                    self.findings.append(f"append: status {refusal.status}")
                stopped |= refusal.status == Status.CANNOT_SYNC_FILE
                self.failed_syncs += refusal.status == Status.CANNOT_SYNC_FILE
                continue
            if stopped:
                self.findings.append(f"record {record.index} is acknowledged behind a failed sync")
            self.acknowledged = log.index

    def _read(self, log: MetadataLog) -> None:
        with contextlib.suppress(OSError):
            if log.read_after(log.base, 1 << 20) != [data for data, _ in ENCODED[log.base : log.index]]:
                self.findings.append("other records are read than were written")

    def _compact(self, log: MetadataLog, index: int) -> None:
        """As shardd/metadata/compaction.py does it: without a snapshot the log is not cut."""
        index = min(index, log.index)
        if index <= log.base:
            return
        try:
            write_snapshot(snapshot_path(self.path), state_at(index), [], self.disk)
            cut = log.prepare_cut(index)
        except (OSError, LogError):
            return
        log.adopt(cut)

    def judge(self) -> None:
        """After the next start, on a disk without faults."""
        try:
            log, _ = MetadataLog.open(self.path)
            log.close()
            found = read_stored(self.path).content.index
            state = load_state(self.path)
        except LogError as error:
            self.findings.append(f"the next start fails: {error}")
            return
        if not self.acknowledged <= found <= self.attempted:
            self.findings.append(
                f"{self.acknowledged} records were acknowledged, {self.attempted} tried, {found} are there"
            )
        elif state != state_at(found):
            self.findings.append(f"the state after {found} records is another one")


def one_life(disk: FaultyDisk) -> Life:
    with tempfile.TemporaryDirectory(prefix="shardd-fault-", dir=_place()) as directory:
        life = Life(Path(directory), disk)
        try:
            life.live()
        except Exception as problem:  # no caller is prepared for it
            life.findings.append(f"{type(problem).__name__} escapes: {problem}")
        life.judge()
        return life


def _place() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass
class Sweep:
    calls: Counter[str] = field(default_factory=Counter)
    pairs: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, disk: FaultyDisk) -> None:
        life = one_life(disk)
        self.pairs += disk.reached
        how = f"{'for ever' if disk.for_ever else 'once'}{', short' if disk.short else ''}"
        what = "a lie" if disk.code == LIE else errno.errorcode[disk.code]
        name = disk.names[disk.victim - 1] if disk.reached else "never"
        self.findings += [f"call {disk.victim} ({name}), {what} {how}: {text}" for text in life.findings]


def sweep(codes: tuple[int, ...] = ERRNOS) -> Sweep:
    """All call sites, all errnos."""
    found, clean = Sweep(), FaultyDisk()
    life = one_life(clean)
    found.findings += life.findings
    if life.acknowledged < RECORDS - 2:
        found.findings.append(f"the clean life has only {life.acknowledged} records")
    found.calls = Counter(clean.names)
    for victim, name in enumerate(clean.names, 1):
        for code in codes:
            found.add(FaultyDisk(victim, code))
            found.add(FaultyDisk(victim, code, for_ever=True))
        if name in ("pread", "pwrite"):
            found.add(FaultyDisk(victim, errno.EIO, short=True))
    return found


def sweep_lies() -> Sweep:
    """Canary: every write in turn is acknowledged and not done."""
    found, clean = Sweep(), FaultyDisk()
    one_life(clean)
    for victim, name in enumerate(clean.names, 1):
        if name == "pwrite":
            found.add(FaultyDisk(victim, LIE))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Every errno at every call of the metadata's disk seam.")
    parser.add_argument("--short", action="store_true", help="two errnos only")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found, lies = sweep(SHORT_ERRNOS if given.short else ERRNOS), sweep_lies()
    print("metadata, calls of the disk: " + ", ".join(f"{name} {count}" for name, count in sorted(found.calls.items())))
    for finding in found.findings[:SHOWN_MAX]:
        print(f"FINDING {finding}")
    print(f"fault: {found.pairs} pairs of call site and errno in the metadata, {len(found.findings)} findings")
    print(f"canary: {len(lies.findings)} findings for {lies.pairs} writes that were lies")
    return 1 if found.findings or not lies.findings else 0


if __name__ == "__main__":
    sys.exit(main())
