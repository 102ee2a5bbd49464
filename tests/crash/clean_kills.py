"""`make crash-clean`: kill -9 at each step of cleaning (segments sealed by age, the log start written, files that
leave) and of compressing (temporary files, digests, renames, the plain file that leaves).

    python -m tests.crash.clean_kills [--kills N] [--seed N] [--lanes N] [--engine io_uring|epoll]

fault_preload.c kills the worker at the n-th call of one kind on files with one name: before it, in the middle of a
write, or after a sync or a rename. What the engine on io_uring gives to its ring counts as such a call when it is
submitted. A lane is a server with one topic, which one thread fills and reads until the kill comes; then the server is
started again, on the other engine (without --engine), or its supervisor goes on. What is read is judged all the time:
nothing that was acknowledged and has not expired is missing, nothing expired is served, no message is another one. At
the end of a lane the digests of all segments are compared with their bytes; with everything expired nothing is left
but one empty segment.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import xxhash

from shardd.log import layout
from shardd.log.manifest import read_manifest
from shardd.log.segment_layout import COMPRESSED
from shardd.log.segment_reader import layout_of, opened_log, segment_starts, stored_file
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.crash import faults
from tests.crash.fault_control import AFTER, AFTER_OF, DIE, TORN, FaultControl
from tests.crash.kill_figures import ENGINES, Figures, engines_of_this_run, report
from tests.support import wire
from tests.support.expiry_observer import ExpiryObserver
from tests.support.server import IO_ENGINE_VARIABLE, ONE_SHARD, Server

STREAM, TOPIC = "s", "t"
BATCH: Final = 8
SENDS_BETWEEN_LOOKS: Final = 4
STEP_WAIT_S: Final = 45.0  # compressing begins 10 s after a start
SERVED_S: Final = 300.0  # until somebody is served on a machine where much else runs
ATTEMPTS: Final = 2  # for each kill: a step need not come
WORKER_KILLS_MAX: Final = 3  # under one supervisor, which waits longer before each further restart
RECORDS: Final = (".log", ".blocks", ".blocks.tmp")
SEGMENT_FILES: Final = ("log", "index", "manifest")
BESIDE: Final = (*(f".{each}" for each in SEGMENT_FILES), ".blocks", ".tmp")
SETTINGS: Final = ONE_SHARD | {
    "SHARDD_SYSTEM_SEGMENT_SIZE": "32 KiB",
    "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "20 ms",
    "SHARDD_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms",
    "SHARDD_SYSTEM_MEMORY_POOL_SIZE": "128 MiB",
}


@dataclass(frozen=True, slots=True)
class Step:
    """Where a worker dies: a call of one kind on such a file, one of the first `at_max`. DIE: before it, or after it,
    where that can be."""

    about: str
    operation: str
    path_part: str
    at_max: int = 3
    how: int = DIE


SERVING: Final = (  # on io_uring these are entries of the ring
    Step("what was sent is synced", "sync", ".log$", 4),
    Step("a log is read", "read", ".log$"),
)
CLEANING: Final = (
    *SERVING,
    Step("the next segment: its log is made", "open", ".log$", 4),
    Step("the next segment: its manifest is written", "write", ".manifest.tmp$"),
    Step("the next segment: half of its manifest is written", "write", ".manifest.tmp$", how=TORN),
    Step("the next segment: its manifest gets its name", "rename", ".manifest.tmp$"),
    Step("the log start is written", "write", ".manifest$"),
    Step("the log start is half written", "write", ".manifest$", how=TORN),
    Step("the log start is synced", "sync", ".manifest$"),
    Step("names are synced", "sync", "/partitions/0$"),
    Step("a log leaves", "rename", ".log$"),
    Step("an index leaves", "rename", ".index$"),
    Step("a manifest leaves", "rename", ".manifest$"),
    Step("the trash is emptied", "unlink", "/trash/"),
)
COMPRESSING: Final = (
    *SERVING,
    Step("blocks are read", "read", ".blocks$"),
    Step("the file of blocks is made", "open", ".blocks.tmp$"),
    Step("blocks are written", "write", ".blocks.tmp$"),
    Step("half of the blocks are written", "write", ".blocks.tmp$", how=TORN),
    Step("the file of blocks is synced", "sync", ".blocks.tmp$"),
    Step("the manifest with its digest is made", "open", ".manifest.tmp$", 2),
    Step("half of the manifest with its digest is written", "write", ".manifest.tmp$", 2, TORN),
    Step("the manifest with its digest is synced", "sync", ".manifest.tmp$", 2),
    Step("the file of blocks gets its name", "rename", ".blocks.tmp$"),
    Step("the manifest with its digest gets its name", "rename", ".manifest.tmp$"),
    Step("both names are synced", "sync", "/partitions/0$"),
    Step("the plain log leaves", "rename", ".log$"),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a lane does. `expiry_us` 0: nothing expires and what is sent is sealed, then compressed; `kept`: the limit
    by count, for each partition."""

    name: str
    steps: tuple[Step, ...]
    expiry_us: int = 0
    kept: int | None = None
    compression: str = ""
    pause_s: float = 0.01


KINDS: Final = (
    Kind("expiry", CLEANING, expiry_us=1_500_000),
    Kind("compression", COMPRESSING, compression="zstd:1"),
    Kind("count", CLEANING, kept=300),
    Kind("compression by lz4", COMPRESSING, compression="lz4"),
    Kind("expiry and compression", CLEANING + COMPRESSING, 14_000_000, compression="gzip:1", pause_s=0.03),
)


class Observed(Protocol):
    """What judges a lane."""

    polls: int
    served: int
    findings: list[str]

    @property
    def acknowledged(self) -> int: ...


class Lane:
    """A server, its topic, and what is known about it."""

    def __init__(self, root: Path, kind: Kind, seed: int, engines: Sequence[str] = ENGINES) -> None:
        root.mkdir(parents=True)
        self.kind, self.random, self.figures = kind, random.Random(f"{kind.name} {seed}"), Figures()
        self.control = FaultControl(root)
        self.root = root
        self.server = Server(root / "data", SETTINGS | self.control.environment | self.settings())
        self.observer = ExpiryObserver(kind.expiry_us, kind.kept)
        self.directory = layout.partition_directory(self.server.data_dir, 0, 0, 0)
        self.number = self.worker_kills = 0
        self.engines = self.random.sample(engines, len(engines))
        self.engine = ""

    # ---- life ----

    def start(self) -> None:
        self.engine = self.engines[self.figures.counts["starts"] % len(self.engines)]
        self.server.change({IO_ENGINE_VARIABLE: self.engine})
        self.server.start(SERVED_S)
        self.figures.counts["starts"] += 1
        self.worker_kills = 0

    def make_topic(self) -> None:
        with wire.connect(self.server.address) as root:
            root.create_stream(STREAM)
            fixed = (1).to_bytes(4, "little") + b"\1" + self.kind.expiry_us.to_bytes(8, "little") + bytes(9)
            root.request(Code.CREATE_TOPIC, wire.identifier(STREAM) + fixed + wire.str8(TOPIC))
            chosen = tuple((key, value) for key, value in self.chosen().items() if value)
            if chosen:
                root.request(ExtensionCode.SET_TOPIC_SETTINGS, SetTopicSettings(STREAM, TOPIC, chosen).encode())

    def observed(self) -> Observed:
        return self.observer

    def settings(self) -> dict[str, str]:
        """Of the server, beside `SETTINGS`."""
        return {}

    def chosen(self) -> dict[str, str]:
        """Settings of the topic; "": the default."""
        return {"compression": self.kind.compression, "partition_messages_max": str(self.kind.kept or "")}

    def send(self, connection: wire.Wire, batches: int = 1) -> None:
        for _ in range(batches):
            numbers = range(self.number, self.number + BATCH)
            self.number += BATCH
            payloads = [b"%08d " % number + b"of which much is the same " * 24 for number in numbers]
            self.observer.send(connection, STREAM, TOPIC, payloads)

    def look(self, connection: wire.Wire) -> None:
        self.observer.look(connection, STREAM, TOPIC)

    # ---- one kill ----

    def work(self, connection: wire.Wire) -> None:
        """Until the step comes, or does not: then OSError or TimeoutError."""
        deadline = time.monotonic() + STEP_WAIT_S
        grows = self.kind.expiry_us or self.kind.kept
        while time.monotonic() < deadline:
            if grows:
                self.send(connection, SENDS_BETWEEN_LOOKS)
            elif len(list(self.directory.glob("*.log"))) < 3:
                self.send(connection, 4 * BATCH)
            self.look(connection)
            time.sleep(self.kind.pause_s if grows else 0.2)
        raise TimeoutError("the step did not come")

    def arm(self, step: Step) -> None:
        after = step.how == DIE and step.operation in AFTER_OF and self.random.random() < 0.5
        how = AFTER if after else step.how
        self.control.arm(step.operation, step.path_part, self.random.randint(1, step.at_max), 5, how=how)

    def kill_at(self, step: Step) -> None:
        """Everything that the lane does until it is served again."""
        with wire.connect(self.server.address) as connection:
            self.look(connection)
            self.arm(step)
            try:
                self.work(connection)
            except (OSError, wire.StatusError) as problem:  # TimeoutError is an OSError
                last = problem
        _, killed, _ = self.control.disarm()
        if not killed and not isinstance(last, TimeoutError):
            self.figures.findings.append(f"{step.about}: {last!r} without a kill")
        self.go_on_after(step, killed)

    def go_on_after(self, step: Step, killed: int) -> None:
        if not killed:
            self.figures.did_not_come[step.about] += 1
            return
        self.figures.killed[step.about] += 1
        self.figures.engines[self.engine] += 1
        self.figures.on_ring[step.about] += self.control.was_on_ring
        self.worker_kills += 1
        if self.worker_kills > WORKER_KILLS_MAX or self.random.random() < 0.6:
            self.server.kill_supervisor()
            self.start()
        faults.wait_until_served(self.server.address, STREAM, TOPIC, [0], SERVED_S)
        with wire.connect(self.server.address) as connection:
            self.look(connection)
            self.send(connection)
            self.look(connection)

    def run(self, kills: int, stopping: threading.Event) -> Figures:
        """So many kills, at each step in turn, from one that the seed chooses on; less where steps do not come. What it
        could not do is no finding and no proof: the run is cut short."""
        try:
            self._run(kills, stopping)
        except Exception as problem:  # the figures of the other lanes count, and those of this one up to here
            place = traceback.extract_tb(problem.__traceback__)[-1]
            self.figures.cut.append(f"{self.kind.name}: {problem!r:.300} ({place.name}, line {place.lineno})")
        finally:
            self.server.stop()
        observer, counts = self.observed(), self.figures.counts
        counts["acknowledged"], counts["polls"], counts["served"] = (
            observer.acknowledged, observer.polls, observer.served,
        )  # fmt: skip
        self.figures.findings += observer.findings
        return self.figures

    def _run(self, kills: int, stopping: threading.Event) -> None:
        first = self.random.randrange(len(self.kind.steps))
        self.start()
        self.make_topic()
        for number in range(kills * ATTEMPTS):
            if self.observed().findings or stopping.is_set() or self.figures.killed.total() == kills:
                break
            self.kill_at(self.kind.steps[(first + number) % len(self.kind.steps)])
        if (done := self.figures.killed.total()) < kills:
            self.figures.cut.append(f"{self.kind.name}: {done} of {kills} kills")
        self.check()

    # ---- what must hold in the end ----

    def check(self) -> None:
        self.server.stop()
        self.check_digests()
        self.start()
        self.expire_all()
        self.check_left()

    def check_digests(self) -> None:
        """The server is stopped. Each segment that says what it holds holds that."""
        for start in segment_starts(self.directory)[:-1]:
            manifest = read_manifest(self.directory, start)
            if manifest is None or manifest.sealed is None:
                continue
            with opened_log(self.directory, start) as log:
                plain = os.pread(log, manifest.sealed.log_bytes + 1, 0)
            compressed = layout_of(self.directory, start) is COMPRESSED
            self.figures.counts["digests"] += 1
            self.figures.counts["compressed"] += compressed
            if xxhash.xxh3_128_digest(plain) != manifest.sealed.digest:
                self.figures.findings.append(f"segment {start}: its bytes are not those of its digest")
            if compressed and stored_file(self.directory, start) != manifest.stored:
                self.figures.findings.append(f"segment {start}: its file of blocks is not that of its digest")

    def expire_all(self) -> None:
        """With everything expired one segment is left."""
        self.observer.expiry_us = 1000
        with wire.connect(self.server.address) as root:
            fixed = b"\1" + (1000).to_bytes(8, "little") + bytes(9)
            place = wire.identifier(STREAM) + wire.identifier(TOPIC)
            root.request(Code.UPDATE_TOPIC, place + fixed + wire.str8(TOPIC))
            time.sleep(0.002)
            self.look(root)
            try:
                faults.wait_until(lambda: len(self.names(*RECORDS)) == 1, "one segment is left", SERVED_S)
            except TimeoutError:
                self.figures.findings.append(f"files are left: {self.names()}")

    def check_left(self) -> None:
        """The next start removes what kills have left of removed segments. Nothing is beside the one that is left."""
        self.server.stop()
        self.start()
        self.figures.counts["swept"] += self.server.log().count("left of a segment that was removed, moved to the")
        if len(self.names(*BESIDE)) > len(SEGMENT_FILES):
            self.figures.findings.append(f"files are left: {self.names()}")

    def names(self, *suffixes: str) -> list[str]:
        """Of files of segments; all without a suffix."""
        names = sorted(path.name for path in self.directory.iterdir() if path.name[:1].isdigit())
        return [name for name in names if not suffixes or name.endswith(suffixes)]


def run(
    root: Path,
    kills: int,
    seed: int,
    lanes: int,
    kinds: Sequence[Kind] = KINDS,
    lane_of: type[Lane] = Lane,
    stopping: threading.Event | None = None,
    engines: Sequence[str] | None = None,
) -> Figures:
    """`lanes` at once; each kind has its share of the kills. `stopping`: no more kills; what was done is judged.
    `engines`: a lane takes them in turns."""
    chosen = engines_of_this_run() if engines is None else engines
    figures, stop = Figures(), stopping or threading.Event()
    shares = [kills // lanes + (lane < kills % lanes) for lane in range(lanes)]
    made = [lane_of(root / f"lane-{lane}", kinds[lane % len(kinds)], seed + lane, chosen) for lane in range(lanes)]
    with ThreadPoolExecutor(lanes) as pool:
        for done in pool.map(lambda pair: pair[0].run(pair[1], stop), zip(made, shares, strict=True)):
            figures.add(done)
    return figures


def main(name: str, kinds: Sequence[Kind], lane_of: type[Lane]) -> int:
    """SIGTERM and SIGINT: no more kills, and what was done so far is judged and told."""
    parser = argparse.ArgumentParser(description=f"{name}: kills of -9, one at each step.")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--lanes", type=int, default=5)
    parser.add_argument("--engine", choices=ENGINES, default=None, help="default: both, in turns")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else secrets.randbelow(2**32)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shardd-clean-", ignore_cleanup_errors=True) as directory:
        engines = None if given.engine is None else (given.engine,)
        figures = run(Path(directory), given.kills, seed, given.lanes, kinds, lane_of, stopping, engines)
    lines, status = report(name, figures, (time.monotonic() - began) / 60, seed)
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main("crash-clean", KINDS, Lane))
