"""One chain of power cuts: a server on a file system that forgets, under load; the power goes, the server is killed, a
new one starts on what is left and is judged, and from there it goes on to the next cut."""

from __future__ import annotations

import contextlib
import random
import shutil
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.topic_settings import SetTopicSettings
from tests.power import hands
from tests.power.disk import Disk
from tests.power.ledger import DURABLE, EpochLedger, Finding, LogLedger, MetadataLedger, OffsetLedger, Tally
from tests.power.once import TOPIC as ONCE
from tests.power.once import OnceLedger, OnceProducer
from tests.support import wire
from tests.support.server import Server

PARTITIONS: Final = 3
PROGRESS_S: Final = 60.0  # logins are slow on a busy machine: passwords are checked at a low priority
READ_S: Final = 60.0  # a segment that is found damaged in the middle of an answer ends its connection once
ARMED_S: Final = 2.0
COMPRESSING_S: Final = 11.0  # it begins 10 s after a start
# `boot_id` is that of a machine that has been started after the cut
NEW_BOOT: Final = ("unshare", "--mount", "--propagation", "private", "sh", "-c",
                   'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"')  # fmt: skip
KINDS: Final = ("wsen", "wsen", "n", "s", "e", "w")


class Found(Exception):  # noqa: N818 - it is the result of a check, not an error of this program
    """What must not be."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("; ".join(map(str, findings[:20])))


@dataclass(slots=True)
class Figures:
    """Over all chains, by level. `pages` etc. are the counts of forgetful.c, summed."""

    cuts: Counter[str] = field(default_factory=Counter)
    engines: Counter[str] = field(default_factory=Counter)
    in_recovery: int = 0
    orderly_stops: int = 0
    disk: Counter[str] = field(default_factory=Counter)
    tallies: dict[str, Tally] = field(default_factory=dict)
    changes: int = 0
    told: Counter[str] = field(default_factory=Counter)  # producers known, and unknown, by level
    findings: list[str] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        for mine, theirs in ((self.cuts, other.cuts), (self.engines, other.engines), (self.disk, other.disk),
                             (self.told, other.told)):  # fmt: skip
            mine.update(theirs)
        for level, tally in other.tallies.items():
            self.tallies.setdefault(level, Tally()).add(tally)
        self.in_recovery += other.in_recovery
        self.orderly_stops += other.orderly_stops
        self.changes += other.changes
        self.findings += other.findings


class Chain:
    """Power cuts of one data directory."""

    def __init__(
        self, base: Path, seed: str, level: str, engine: str, figures: Figures, *, lying: bool = False
    ) -> None:
        """`lying`: syncs under load do nothing, which the judge has to find out."""
        self.base = base
        self.seed = seed
        self.rng = random.Random(seed)
        self.figures = figures
        self.level = level
        self.engine = engine
        self.lying = lying
        self.names = self.rng.choice(("strict", "strict", "strict", "ext4"))
        self.delay_us = self.rng.choice((0, 500, 3000))
        self.settings = {
            "SHARDD_SYSTEM_PARTITION_ACK": self.level,
            "SHARDD_SYSTEM_IO_ENGINE": self.engine,
            "SHARDD_SYSTEM_SEGMENT_SIZE": self.rng.choice(("16 KiB", "64 KiB", "1 MiB")),
            "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": self.rng.choice(("50 ms", "300 ms")),
            "SHARDD_MESSAGE_SAVER_INTERVAL": "100 ms",
            "SHARDD_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms",
            "SHARDD_SYSTEM_COMPRESSION_DEFAULT_ALGORITHM": self.rng.choice(("none", "gzip:1", "lz4", "zstd:1")),
            "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": self.rng.choice(("1", "2", "2")),
            "SHARDD_SYSTEM_MEMORY_POOL_SIZE": "256 MiB",
        }
        self.compresses = 0.15 * (self.settings["SHARDD_SYSTEM_COMPRESSION_DEFAULT_ALGORITHM"] != "none")
        self.disk: Disk | None = None
        self.server: Server | None = None
        self.survivors = base / "0"
        self.logs = [LogLedger(f"log/{n}", self.level) for n in range(PARTITIONS)]
        self.offsets = [OffsetLedger(f"log/{n}", self.level) for n in range(PARTITIONS)]
        self.epochs = EpochLedger(LogLedger("purged/0", self.level))
        self.trimmed = LogLedger("trimmed/0", self.level)
        self.limited = LogLedger("limited/0", self.level)
        self.once = OnceLedger(LogLedger(f"{ONCE}/0", self.level))
        self.metadata = MetadataLedger()
        self.tally = figures.tallies.setdefault(self.level, Tally())

    def about(self) -> str:
        words = (self.level, self.engine, f"names {self.names}", f"syncs of {self.delay_us} us")
        return f"seed {self.seed}: {', '.join(words)}, {self.settings}"

    def run(self, cuts: int) -> None:
        """Raises Found at the first cut that leaves anything wrong."""
        try:
            self._mount()
            self._start()
            self._create()
            for number in range(1, cuts + 1):
                self._load_and_cut(number)
                self._recover(number)
                self._judge()
        finally:
            self._off()

    # ---- power on, power off ----

    def _mount(self) -> None:
        (self.base / "boot_id").write_text(f"{uuid.UUID(int=self.rng.getrandbits(128))}\n")
        seed = self.rng.getrandbits(60)
        self.disk = Disk(self.survivors, self.base / "mount", names=self.names, sync_delay_us=self.delay_us, seed=seed)

    def _start(self) -> None:
        self.server = self._new_server()
        try:
            self.server.start()
        except RuntimeError as problem:
            raise Found([Finding("start", "server", "\n".join(str(problem).splitlines()[-8:]))]) from problem

    def _new_server(self) -> Server:
        launcher = (*NEW_BOOT, str(self.base / "boot_id"))
        server = Server(self.base / "mount" / "data", self.settings, launcher=launcher)
        server.log_path = self.base / "server.log"
        return server

    def _create(self) -> None:
        assert self.server is not None
        with wire.connect(self.server.address, deadline_s=hands.CONNECT_S, timeout_s=hands.CONNECT_S) as connection:
            connection.create_stream(hands.STREAM)
            connection.create_topic(hands.STREAM, "log", PARTITIONS)
            connection.create_topic(hands.STREAM, "purged", 1)
            connection.create_topic(hands.STREAM, "trimmed", 1)
            connection.create_topic(hands.STREAM, "limited", 1)
            connection.create_topic(hands.STREAM, ONCE, 1)
            limit = (("partition_messages_max", str(hands.LIMITED_MESSAGES)),)
            settings = SetTopicSettings(hands.STREAM, "limited", limit)
            connection.request(ExtensionCode.SET_TOPIC_SETTINGS, settings.encode())

    def _off(self) -> None:
        if self.server is not None and self.server.started:
            kill_all(self.server)
        self.server = None
        if self.disk is not None:
            self.disk.close()
        self.disk = None

    # ---- one cut ----

    def _hands(self, number: int) -> list[hands.Hand]:
        assert self.server is not None
        address, seed = self.server.address, f"{self.seed}/{number}"
        found: list[hands.Hand] = [
            hands.Producer(address, f"{seed}/{n}", n, self.logs[n], self.offsets[n]) for n in range(PARTITIONS)
        ]
        found.append(hands.Reader(address, f"{seed}/reader", self.logs))
        found.append(hands.Purger(address, f"{seed}/purger", self.epochs))
        found.append(hands.Trimmer(address, f"{seed}/trimmer", self.trimmed))
        found.append(hands.Limited(address, f"{seed}/limited", self.limited))
        if self.level != "memory":  # which takes no idempotent producer
            found.append(OnceProducer(address, f"{seed}/once", self.once))
        found.append(hands.Changer(address, f"{seed}/changer", self.metadata))
        return found

    def _load_and_cut(self, number: int) -> None:
        assert self.disk is not None and self.server is not None
        workers, target = self._hands(number), self.base / str(number)
        if self.lying:
            self.disk.lie()
        for hand in workers:
            hand.start()
        errors: list[str] = []
        in_order = False
        try:
            self._wait_for_progress(workers)
            time.sleep(COMPRESSING_S if self.rng.random() < self.compresses else self.rng.random() * 0.4)
            seed, counts = self.rng.getrandbits(60), None
            what = self.rng.random()
            if what < 0.12 and not self.lying:
                self._stop_in_order(workers)
                in_order = True
            elif what < 0.75:
                self.disk.arm(self.rng.choice(KINDS), self.rng.randint(1, 60), seed, target)
                counts = self.disk.went(ARMED_S)
            if counts is None:
                errors = [hand.error for hand in workers if hand.error is not None]
                counts = self.disk.cut(seed, target)
        finally:
            kill_all(self.server)
            for hand in workers:
                hand.stop()
        if errors:
            raise Found([Finding("stuck", "load", "; ".join(errors))])
        self.figures.disk.update(counts)
        self.once.power_cut(in_order=in_order)
        self._next_disk(target)

    def _stop_in_order(self, workers: list[hands.Hand]) -> None:
        """The server ends by SIGTERM: at every level everything acknowledged is due after the cut that follows."""
        assert self.server is not None
        for hand in workers:
            hand.stop()
        status = self.server.stop(timeout_s=30)
        if status != 0:
            raise Found([Finding("stop", "server", f"exit status {status}:\n{self.server.log()[-2000:]}")])
        for log in (*self.logs, self.epochs.log, self.trimmed, self.limited, self.once.log):
            log.synced = log.acknowledged
        for offsets in self.offsets:
            offsets.synced = offsets.acknowledged
        self.figures.orderly_stops += 1

    def _next_disk(self, survivors: Path) -> None:
        self._off()
        shutil.rmtree(self.survivors)
        self.survivors = survivors
        self._mount()

    @staticmethod
    def _wait_for_progress(workers: list[hands.Hand]) -> None:
        """Every partition takes sends again, the metadata takes changes."""
        deadline = time.monotonic() + PROGRESS_S
        while any(hand.steps < 2 for hand in workers):
            errors = [hand.error for hand in workers if hand.error is not None]
            if errors or time.monotonic() > deadline:
                errors += [f"{hand.name}: {hand.steps} answers" for hand in workers if hand.steps < 2]
                raise Found([Finding("stuck", "load", "; ".join(errors))])
            time.sleep(0.01)

    def _recover(self, number: int) -> None:
        """Starts the server; sometimes the power goes again on the way, once or twice."""
        for again in range(2):
            if self.rng.random() > 0.3:
                break
            assert self.disk is not None
            target = self.base / f"{number}-{again}"
            self.disk.arm("wsen", self.rng.randint(1, 120), self.rng.getrandbits(60), target)
            self.server = self._new_server()
            counts, deadline = None, time.monotonic() + ARMED_S + 1
            with contextlib.suppress(OSError):  # it removes a file of the last run: that may be the armed operation
                process = self.server.spawn()
                while counts is None and process.poll() is None and time.monotonic() < deadline:
                    counts = self.disk.went(0.02)
            if counts is None:
                counts = self.disk.cut(self.rng.getrandbits(60), target)
            self.figures.in_recovery += 1
            self.once.power_cut(in_order=False)
            self._next_disk(target)
        self._start()

    # ---- what is left ----

    def _judge(self) -> None:
        assert self.server is not None
        findings: list[Finding] = []
        self.figures.changes += self.metadata.changes
        self.metadata.changes = 0
        for number, (log, offsets) in enumerate(zip(self.logs, self.offsets, strict=True)):
            messages, end = self._read("log", number)
            findings += log.judge(messages, self.tally, end)
            with wire.connect(self.server.address, deadline_s=hands.CONNECT_S, timeout_s=hands.CONNECT_S) as connection:
                stored = connection.get_offset(hands.STREAM, "log", number, hands.CONSUMER)
            findings += offsets.judge(stored, end - 1 if end else None, self.tally)
        findings += self._judge_one(self.epochs, "purged")
        findings += self._judge_one(self.trimmed, "trimmed")
        findings += self._judge_one(self.limited, "limited")
        findings += self._judge_one(self.once, ONCE)
        self.figures.told.update({f"{self.level} {kind}": count for kind, count in self.once.told.items()})
        self.once.told.clear()
        with wire.connect(self.server.address, deadline_s=hands.CONNECT_S, timeout_s=hands.CONNECT_S) as connection:
            durable = self.level == DURABLE
            if not durable:
                forget_messages(self.metadata)
            try:
                found = hands.observed(connection, messages=durable)
            except wire.StatusError as problem:
                raise Found([Finding("unreadable", "metadata or its topics", str(problem))]) from problem
            findings += self.metadata.judge(found)
        self.figures.cuts[self.level] += 1
        self.figures.engines[self.engine] += 1
        if findings:
            raise Found(findings)

    def _judge_one(self, ledger: EpochLedger | LogLedger | OnceLedger, topic: str) -> list[Finding]:
        messages, end = self._read(topic, 0)
        return ledger.judge(messages, self.tally, end)

    def _read(self, topic: str, partition: int) -> tuple[list[wire.Message], int]:
        assert self.server is not None
        deadline = time.monotonic() + READ_S
        while True:
            try:
                with wire.connect(
                    self.server.address, deadline_s=hands.CONNECT_S, timeout_s=hands.CONNECT_S
                ) as connection:
                    return read_everything(connection, topic, partition)
            except (OSError, wire.StatusError) as problem:
                if time.monotonic() > deadline:
                    raise Found([Finding("unreadable", f"{topic}/{partition}", str(problem))]) from problem
                time.sleep(0.05)


def read_everything(connection: wire.Wire, topic: str, partition: int) -> tuple[list[wire.Message], int]:
    """All messages that the partition gives, whatever it withholds (4027) in between, and the offset behind its last
    one, 0 when it does not tell."""
    end = connection.partitions(hands.STREAM, topic)[partition].current_offset
    found: list[wire.Message] = []
    at = 0
    while at <= end:
        try:
            messages = connection.poll(hands.STREAM, topic, partition, value=at, count=1000).messages
        except wire.StatusError as problem:
            if problem.status != hands.DAMAGED:
                raise
            at += 1
            continue
        if not messages:
            break
        found += messages
        at = messages[-1].offset + 1
    return found, (end + 1 if found or end else 0)


def forget_messages(ledger: MetadataLedger) -> None:
    """Below `durable` the messages of the changer's topics may be lost."""
    ledger.facts = frozenset(fact for fact in ledger.facts if fact[0] != "message")
    if ledger.pending is not None:
        ledger.pending = frozenset(fact for fact in ledger.pending if fact[0] != "message")


def kill_all(server: Server) -> None:
    """kill -9 of the supervisor and its workers."""
    try:
        workers = server.processes()[1:]
    except psutil.NoSuchProcess:
        workers = []
    server.kill_supervisor()
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    psutil.wait_procs(workers, timeout=10)
