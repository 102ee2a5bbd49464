"""Backups of the running server, one on top of the other: each is verified, some are restored and served."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from shardd.backup.backups_directory import complete_backups
from shardd.backup.restore import restore_backup
from shardd.backup.verify import verify_backup
from tests.support import wire
from tests.support.checker import identity_of
from tests.support.server import Server
from tests.vopr.plan import SETTINGS
from tests.vopr.subject import Subject, read

PAUSE_S: Final = 1.0
# As `shardd backup create`, which gives way to all others: beside this load it would take minutes.
CREATE: Final = """
import sys
from pathlib import Path
from shardd.backup.create import create_backup
from shardd.backup.format import BackupError
try:
    create_backup(Path(sys.argv[1]), Path(sys.argv[2]))
except (BackupError, OSError) as error:
    sys.exit(str(error))
"""
RESTORES: Final = 0.25  # of the backups
KEPT_MAX: Final = 6
TIMEOUT_S: Final = 120.0


class Known(NamedTuple):
    """Of a partition before a backup began: its life (-1: one that may be over), what has to be in it by offset, and
    where it began."""

    life: int
    numbers: dict[int, int]
    start: int


class Backups(threading.Thread):
    """`environment`: of the program that makes them."""

    def __init__(
        self,
        root: Path,
        server: Server,
        subjects: Sequence[Subject],
        seed: int,
        find: Callable[[str], None],
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(name="backups", daemon=True)
        self.root, self.server, self.subjects, self.find = root, server, subjects, find
        self.directory = root / "backups"
        self.environment = environment
        self.dice = random.Random(f"{seed} backups")
        self.stopping = threading.Event()
        self.counts: Counter[str] = Counter()
        self.longest_s = 0.0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.wait(PAUSE_S):
                self.one(restores=self.dice.random() < RESTORES)
        except BaseException as problem:
            self.failure = problem
            traceback.print_exc()

    def one(self, *, restores: bool) -> None:
        before, began_s = self._known(), time.monotonic()
        if not self._create():
            return
        after = {place: each.life for place, each in self._known().items()}
        backup = complete_backups(self.directory)[-1]
        if damage := verify_backup(backup).damage:
            self.find(f"backup {backup.name}: made with status 0, and damaged: {damage}")
            return
        self.counts["verified"] += 1
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        if restores:
            self._restore(backup, {place: each for place, each in before.items() if after[place] == each.life})
        if len(complete_backups(self.directory)) >= KEPT_MAX:
            shutil.rmtree(self.directory)  # the next one stands on no other

    def _known(self) -> dict[tuple[int, int], Known]:
        known = {}
        for topic, subject in enumerate(self.subjects):
            with subject.lock:
                for partition, ledger in enumerate(subject.ledgers):
                    numbers = {
                        offset: seen.number
                        for offset, seen in ledger.seen.items()
                        if ledger.sent.get(seen.number) and ledger.sent[seen.number].acknowledged
                    }
                    known[topic, partition] = Known(ledger.life if subject.is_settled else -1, numbers, ledger.start)
        return known

    def _create(self) -> bool:
        """A backup that ends with a sentence was none: the server's disk may be full, or fail."""
        done = subprocess.run(
            [sys.executable, "-c", CREATE, str(self.server.data_dir), str(self.directory)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, **self.environment},
        )
        self.counts["made" if done.returncode == 0 else "refused"] += 1
        if "Traceback" in done.stderr:
            self.find(f"backup create: {done.stderr[-500:]}")
        return done.returncode == 0

    def _restore(self, backup: Path, known: Mapping[tuple[int, int], Known]) -> None:
        target = self.root.parent / "restored" / "data"  # not on the disk that may be full by now
        shutil.rmtree(target.parent, ignore_errors=True)
        target.parent.mkdir()
        restore_backup(backup, target)
        with Server(target, SETTINGS) as server, wire.connect(server.address) as connection:
            for (topic, partition), each in known.items():
                if each.life >= 0:
                    self._judge(connection, backup, self.subjects[topic], partition, each)
        self.counts["restored"] += 1

    def _judge(self, connection: wire.Wire, backup: Path, subject: Subject, partition: int, known: Known) -> None:
        """What was acknowledged before is in it, up to what retention has taken while it was made."""
        ledger, there = subject.ledgers[partition], read(connection, str(subject.target.topic), partition)
        expires = subject.kind.expiry_s > 0  # the restored server lets it expire at once
        missing = [
            offset for offset in known.numbers if offset >= max(there.start, known.start) and offset >= there.end
        ]
        if missing and not (expires and not there.messages):
            ledger.find(
                f"backup {backup.name}: lost {len(missing)} offsets from {min(missing)} on; it ends at {there.end}"
            )
        for each in there.messages:
            identity = identity_of(each.payload)
            due = known.numbers.get(each.offset)
            if due is not None and (identity is None or identity[1] != due):
                ledger.find(f"backup {backup.name}: offset {each.offset} is {identity}, not {due}")
