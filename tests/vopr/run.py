"""One run: a server, its topics, backups and faults, all at once, until the time is over; then everything is judged."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

from tests.crash.fault_control import FaultControl
from tests.crash.faults import wait_until_none_is_left
from tests.support import wire
from tests.support.load import Target
from tests.support.server import IO_ENGINE_VARIABLE, Server
from tests.support.wall_clock import WallClock
from tests.vopr import planted
from tests.vopr.archive import Archive
from tests.vopr.backups import Backups
from tests.vopr.faults import Faults, small_disk
from tests.vopr.plan import KINDS, PAUSE_S, SETTINGS, Kind
from tests.vopr.subject import STREAM, Subject

DISK: Final = "512m"
STUCK_S: Final = 120.0
START_S: Final = 120.0
ENGINES: Final = ("epoll", "io_uring")  # the second one reads and syncs the log inside the kernel: none of that fails


@dataclass
class Outcome:
    """`skipped`: what this machine does not let be done."""

    seed: int
    findings: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        return f"{len(self.findings)} findings; {counts}; {self.faults.total()} faults: {faults}"


class Run:
    """`log`: gets a line for whatever is done. `fault_names`: only these (None: all). After a finding the log has what
    was done to that partition, and `root` the data as they are then."""

    def __init__(
        self,
        root: Path,
        seed: int,
        log: TextIO,
        *,
        kinds: Sequence[Kind] = KINDS,
        fault_names: Sequence[str] | None = None,
        backs_up: bool = True,
        plant: str = "",
        engine: str = ENGINES[0],
    ) -> None:
        self.engine = engine
        self.root, self.seed, self.log = root, seed, log
        self.outcome = Outcome(seed)
        self._began_s = time.monotonic()
        self._found = threading.Lock()
        self.calm = threading.Lock()
        self.kinds, self.fault_names, self.backs_up, self.plant = kinds, fault_names, backs_up, plant
        self.dice = random.Random(f"{seed} faults")

    def find(self, sentence: str) -> None:
        with self._found:
            for subject in self.subjects:
                subject.stopping.set()
            self.outcome.findings.append(sentence)
            self.tell(f"FINDING {sentence}")

    def tell(self, sentence: str, at_s: float | None = None) -> None:
        """`at_s`: when it was; None: now."""
        at_s = time.monotonic() if at_s is None else at_s
        print(f"{at_s - self._began_s:8.2f} {sentence}", file=self.log, flush=True)

    def run(self, seconds: float) -> Outcome:
        """Ends early at a finding."""
        with small_disk(self.root / "disk", DISK) as has_own_disk:
            if not has_own_disk:
                self.outcome.skipped.append("full disks: no tmpfs can be mounted here")
            self._prepare(has_own_disk=has_own_disk)
            try:
                self._work(seconds)
                self._end()
            finally:
                for thread in self.subjects:
                    thread.stopping.set()
                self.backups.stopping.set()
                self.server.stop()
                if self.backups.is_alive():  # with a server of its own
                    self.backups.join(STUCK_S * 2)
                self._keep_log()
                if self.outcome.findings:
                    self._keep_data()
        return self.outcome

    def _prepare(self, *, has_own_disk: bool) -> None:
        disk, root = self.root / "disk", self.root
        control, clock = FaultControl(root), WallClock(root, planted.clocks(self.plant))
        environment = SETTINGS | control.environment | clock.env | planted.environment(self.plant)
        environment["LD_PRELOAD"] = f"{control.environment['LD_PRELOAD']}:{clock.library}"
        environment[IO_ENGINE_VARIABLE] = self.engine
        environment["SHARDD_SYSTEM_ARCHIVE_DIRECTORY"] = str(root / "archive")
        self.server = Server(disk / "data", environment)
        self.server.start(START_S)
        with wire.connect(self.server.address) as connection:
            connection.create_stream(STREAM)
            token = connection.create_token("vopr")
        archive = Archive(self.server.data_dir, root / "archive")
        self.subjects = [
            Subject(
                self._target(kind.name, number, token),
                kind,
                number,
                self.seed,
                archive,
                self.calm,
                self.find,
            )
            for number, kind in enumerate(self.kinds)
        ]
        backs_up = planted.environment(self.plant)
        self.backups = Backups(disk, self.server, self.subjects, self.seed, self.find, backs_up)
        self.faults = Faults(self.server, control, clock, self.dice, self._revive, has_own_disk=has_own_disk)
        if self.fault_names is not None:
            self.faults.weights = {name: self.faults.weights[name] for name in self.fault_names}

    def _target(self, name: str, number: int, token: str) -> Target:
        return Target(self.server.address, STREAM, f"{name}-{number}", token=token, answer_timeout_s=20.0)

    def _revive(self) -> None:
        """The next supervisor. On a full or failing disk a start may end with a sentence: it is tried again."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.server.start(START_S)
                break
            except RuntimeError:
                if time.monotonic() > deadline or "Traceback" in self.server.log()[-3000:]:
                    raise
                self.outcome.counts["refused starts"] += 1
                time.sleep(0.3)
                if (self.root / "disk" / "ballast").exists():
                    (self.root / "disk" / "ballast").unlink()
        for subject in self.subjects:
            subject.target.address = self.server.address

    def _work(self, seconds: float) -> None:
        for thread in self.subjects:
            thread.start()
        if self.backs_up:
            self.backups.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.outcome.findings:
            time.sleep(self.dice.uniform(*PAUSE_S))
            if self.faults.weights:
                with self.calm:
                    self.tell(self.faults.one())
            self._require_progress()

    def _require_progress(self) -> None:
        """Whatever was done: every topic goes on."""
        before = [(each, each.counts["steps"]) for each in self.subjects]

        def left() -> list[Subject]:
            for each in self.subjects:
                if each.failure is not None:
                    raise each.failure
            if self.outcome.findings:
                return []
            return [each for each, steps in before if each.counts["steps"] == steps]

        try:
            wait_until_none_is_left(left, STUCK_S)
        except TimeoutError:
            self.find(f"stuck for {STUCK_S:.0f} s: " + "; ".join(f"{each.name}: {each.last_error}" for each in left()))

    def _end(self) -> None:
        """No more faults: everything is read, before an orderly restart and after it. After a finding nothing more is
        done: what is there shows how it came."""
        if not self.outcome.findings:
            self._stop()
            for restart in (False, True):
                if restart:
                    self.server.stop()
                    self._revive()
                self._look_at_all()
            if self.backs_up and not self.outcome.findings:
                self.backups.one(restores=True)
        self._count()

    def _stop(self) -> None:
        if self.backs_up:
            self.backups.stopping.set()
            self.backups.join(STUCK_S * 2)
            if self.backups.failure is not None:
                raise self.backups.failure
        for subject in self.subjects:
            subject.stopping.set()
        for subject in self.subjects:
            subject.finish(STUCK_S)

    def _look_at_all(self) -> None:
        with wire.connect(self.server.address) as connection:
            for subject in self.subjects:
                while not subject.is_settled:  # else a purge without an answer would be a loss
                    self._until_answered(lambda subject=subject: subject.step(connection))  # type: ignore[misc]
                if not self.outcome.findings:
                    self._until_answered(lambda subject=subject: subject.look(connection))  # type: ignore[misc]

    def _until_answered(self, ask: Callable[[], None]) -> None:
        deadline = time.monotonic() + STUCK_S
        while True:
            try:
                return ask()
            except wire.StatusError:  # a partition that is opened yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _count(self) -> None:
        self.outcome.faults = self.faults.done
        for subject in self.subjects:
            self.outcome.counts += subject.counts
            self.outcome.counts["errors"] += subject.errors
        self.outcome.counts += Counter({f"backups {name}": count for name, count in self.backups.counts.items()})

    def _keep_log(self) -> None:
        """The log of the server goes with its disk otherwise."""
        with contextlib.suppress(OSError):
            (self.root / "server.log").write_text(self.server.log())

    def _keep_data(self) -> None:
        for subject in self.subjects:
            for ledger in subject.ledgers:
                if ledger.found:
                    self.tell(f"---- {subject.name}, partition {ledger.partition} ----")
                    for at_s, sentence in ledger.journal:
                        self.tell(sentence, at_s)
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(self.server.data_dir, self.root / "found", ignore=shutil.ignore_patterns("*.sock"))
