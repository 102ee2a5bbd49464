"""kill -9 while something is made, purged, deleted or rolled: `python -m tests.crash.delete_kills --kills 200`.

A round makes a stream, sends a change of it (or of its topics, partitions, segments) while others send, and kills a
worker, shard 0, the supervisor or all at a random moment of the change, drawn from its measured duration; sometimes the
victim is stopped (SIGSTOP) at that moment and killed later, while the others go on. Afterwards: the server starts; what
was acknowledged as deleted or purged is gone, what was acknowledged as made is there, what was not answered is wholly
done or wholly not; whoever gets the ids next sees nothing old; no directory is left that nobody knows. In the end the
load that went on all the time is judged and the trash is empty.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.crash import faults
from tests.crash.delete_changes import ALL, SEGMENT_SIZE, Scenario
from tests.crash.delete_subject import Change, FindingError, Sender, Subject, check_directories, names_in
from tests.support import load, wire
from tests.support.checker import History
from tests.support.server import Server

USUAL_S: Final = 0.02  # of a change that was not measured
WORKER_KILLS_MAX: Final = 4  # under one supervisor, which waits longer before each further restart
SERVED_WAIT_S: Final = 90.0  # for workers that start again, on a machine that may be busy with other things
TRASH_WAIT_S: Final = 120.0
DISTURBED_MAX: Final = 5
SILENT: Final = "gives no sign of life"
KEEP_PARTITIONS: Final = 2
# A process of its own, which is ready before the moment comes and tells when it was: delay, pause, process ids.
KILLER: Final = """
import os, signal, sys, time
for line in sys.stdin:
    delay_us, pause_us, *pids = map(int, line.split())
    time.sleep(delay_us / 1e6)
    def give(number):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
    at = time.monotonic()
    if pause_us:
        give(signal.SIGSTOP)
        time.sleep(pause_us / 1e6)
    give(signal.SIGKILL)
    print(at, flush=True)
"""


class Killer:
    """Kills at a moment, precisely."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", KILLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def kill(self, delay_s: float, pause_s: float, pids: list[int]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{int(delay_s * 1e6)} {int(pause_s * 1e6)} {' '.join(map(str, pids))}\n")
        self._process.stdin.flush()

    def killed_at_s(self) -> float:
        """When the last kill came (monotonic); waits for it."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


class Battery:
    """A server that lives through all rounds, the load beside them, and the figures."""

    def __init__(self, data: Path, seed: int, level: str) -> None:
        self.random = random.Random(seed)
        data.parent.mkdir(parents=True, exist_ok=True)
        self.server = Server(data, {"SHARDD_SYSTEM_SEGMENT_SIZE": SEGMENT_SIZE, "SHARDD_SYSTEM_PARTITION_ACK": level})
        self.killer = Killer()
        self.figures: Counter[str] = Counter()
        self.durations_s: defaultdict[str, list[float]] = defaultdict(list)
        self.starts_s: list[float] = []
        self.worker_kills = 0
        self.rounds = 0

    # ---- life

    def start(self) -> None:
        began = time.monotonic()
        try:
            self.server.start()
        except RuntimeError as error:
            raise FindingError("start", str(error)) from error
        self.starts_s.append(time.monotonic() - began)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        try:
            with wire.connect(self.server.address) as connection:
                connection.create_topic(connection.create_stream("keep"), "keep", KEEP_PARTITIONS)
            self.target = load.Target(self.server.address, "keep", "keep", batch_count=3)
            self.history = History()
            self.producers = [
                load.Producer(self.target, self.history, number, number, pause_s=0.02)
                for number in range(KEEP_PARTITIONS)
            ]
            for producer in self.producers:
                producer.start()
            yield
        finally:
            for producer in getattr(self, "producers", ()):
                producer.stopping.set()
            self.killer.close()
            self.server.stop()

    def connect(self) -> wire.Wire:
        return wire.connect(self.server.address, deadline_s=SERVED_WAIT_S)

    # ---- one kill

    def victim(self) -> tuple[str, list[int]]:
        workers = self.server.worker_pids(SERVED_WAIT_S)
        kind = self.random.choice(["worker"] * 5 + ["shard 0"] * 3 + ["supervisor"] * 2 + ["all"] * 2)
        if self.worker_kills >= WORKER_KILLS_MAX:
            kind = "all"
        self.worker_kills = 0 if kind in ("supervisor", "all") else self.worker_kills + 1
        return kind, {
            "worker": [self.random.choice(workers)],
            "shard 0": [workers[0]],
            "supervisor": [self.server.pid],
            "all": [self.server.pid, *workers],
        }[kind]

    def kill_during(self, change: Change) -> Counter[str]:
        """Sends the change and kills somebody at a moment of it, then waits until all is served again."""
        kind, victims = self.victim()
        stopped = self.random.random() < 0.3
        usual_s = statistics.median(self.durations_s[change.name] or [USUAL_S])
        with self.connect() as connection:
            worker = threading.Thread(target=change.execute, args=(connection,), daemon=True)
            self.killer.kill(
                self.random.uniform(0.0, 1.1 * usual_s), self.random.uniform(0.005, 0.1) if stopped else 0.0, victims
            )
            worker.start()
            killed_s = self.killer.killed_at_s()
            if kind in ("supervisor", "all"):
                self.restart()
            else:
                faults.wait_until(lambda: not faults.is_running(victims[0]), "the victim is gone", SERVED_WAIT_S)
                self.server.worker_pids(SERVED_WAIT_S)
            worker.join(SERVED_WAIT_S)
            if worker.is_alive():
                raise FindingError("usable", f"a {change.name} got no answer and no end within {SERVED_WAIT_S} s")
        inside = change.answered_s is None or change.answered_s > killed_s
        happened = {"kills": True, kind: True, "inside": inside, "stopped first": stopped}
        return Counter(name for name, so in (happened | {"answered": change.acknowledged}).items() if so)

    def directory_is_free(self) -> bool:
        """Whether nobody holds its lock: not even a worker that was being started when the supervisor was killed."""
        with (self.server.data_dir / ".lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def restart(self) -> None:
        self.server.wait(SERVED_WAIT_S)
        faults.wait_until(self.directory_is_free, "the workers are gone", SERVED_WAIT_S)
        self.start()
        self.target.address = self.server.address

    def measure(self, change: Change) -> Counter[str]:
        """Without a kill: how long it takes."""
        with self.connect() as connection:
            change.execute(connection)
        assert change.acknowledged, (change.name, change.refused)
        assert change.answered_s is not None
        self.durations_s[change.name].append(change.answered_s - change.begun_s)
        return Counter()

    # ---- rounds

    def round(self, scenario: Scenario, *, kill: bool) -> None:
        self.rounds += 1
        subject = scenario.subject(f"r{self.rounds}")
        with self.connect() as connection:
            subject.make(connection)
            scenario.prepare(connection, subject)
        sender = Sender(self.server.address, subject, range(subject.topics) if scenario.sends_beside else ())
        sender.start()
        change = scenario.change(subject)
        try:
            happened = (self.kill_during if kill else self.measure)(change)
        finally:
            sender.stopping.set()
            sender.join(SERVED_WAIT_S)
        faults.wait_until_served(self.server.address, "keep", "keep", range(KEEP_PARTITIONS), SERVED_WAIT_S)
        if not change.acknowledged:
            self.settle()
        with self.connect() as connection:
            self.served(connection, subject)
            scenario.check(connection, subject, change)
            self.figures["reported directories"] += check_directories(self.server)
            if subject.name in connection.streams():
                connection.delete_stream(subject.name)
        self.figures += happened

    def undisturbed_round(self, scenario: Scenario, *, kill: bool) -> None:
        """A round that was not disturbed; on a machine that has no CPU for a worker for two seconds, the supervisor
        kills one in the middle of a check. What must never be is a finding all the same."""
        for _ in range(DISTURBED_MAX):
            silent = self.server.log().count(SILENT)
            try:
                self.round(scenario, kill=kill)
                return
            except (OSError, wire.StatusError, AssertionError) as error:
                never = isinstance(error, FindingError) and error.kind != "usable"
                if never or self.server.log().count(SILENT) == silent:
                    raise
                self.figures["disturbed"] += 1
                print(f"     {scenario.name:<18} disturbed: {error!r}", flush=True)
                faults.wait_until_served(self.server.address, "keep", "keep", range(KEEP_PARTITIONS), SERVED_WAIT_S)
        raise FindingError("usable", f"{scenario.name}: disturbed {DISTURBED_MAX} times")

    def settle(self) -> None:
        """A change whose asker died may still go on: it has, once another change (behind it) is answered."""

        def answered() -> bool:
            try:
                with self.connect() as connection:
                    for name in connection.streams():
                        if name.startswith("settled"):
                            connection.delete_stream(name)
                    connection.delete_stream(connection.create_stream(f"settled after {self.rounds}"))
                return True
            except (OSError, wire.StatusError):  # shard 0 is starting
                return False

        faults.wait_until(answered, "the metadata can be changed again", SERVED_WAIT_S)

    def served(self, connection: wire.Wire, subject: Subject) -> None:
        """Waits until every filled partition that is still there is answered for."""
        if subject.name in connection.streams():
            for topic in range(subject.topics):
                there = len(connection.partitions(subject.name, topic))
                some = [number for number in range(subject.filled) if number < there]
                faults.wait_until_served(self.server.address, subject.name, topic, some, SERVED_WAIT_S)

    def judge(self) -> None:
        """The load beside the rounds, and the trash."""
        for producer in self.producers:
            producer.finish()
        report = self.history.judge(load.read_partitions(self.target, range(KEEP_PARTITIONS), deadline_s=SERVED_WAIT_S))
        self.figures["acknowledged beside"] = report.acknowledged
        report.require_clean()
        faults.wait_until(lambda: not names_in(self.server.data_dir / "trash"), "the trash is empty", TRASH_WAIT_S)

    def run(self, kills: int, scenarios: tuple[Scenario, ...] = ALL, measured: int = 3) -> None:
        """`kills` kills, evenly over the scenarios, in an order of the seed; `measured`: rounds of each without a kill
        before, which tell how long it takes. AssertionError (FindingError) or TimeoutError at the first finding."""
        with self.running():
            for scenario in scenarios * measured:
                self.undisturbed_round(scenario, kill=False)
            order = [scenarios[number % len(scenarios)] for number in range(kills)]
            self.random.shuffle(order)
            for number, scenario in enumerate(order):
                before = Counter(self.figures)
                self.undisturbed_round(scenario, kill=True)
                what = ", ".join(sorted((self.figures - before).keys() - {"kills"}))
                print(f"{number + 1:4} {scenario.name:<18} {what}", flush=True)
            self.judge()

    def figure(self) -> str:
        figures, starts_ms = self.figures, sorted(start * 1000 for start in self.starts_s) or [0.0]
        who = ", ".join(f"{figures[kind]} {kind}" for kind in ("worker", "shard 0", "supervisor", "all"))
        return (
            f"{figures['kills']} kills ({who}; {figures['stopped first']} stopped first), "
            f"{figures['inside']} inside the change, {figures['answered']} of the changes were answered all the same; "
            f"{len(starts_ms)} starts of the server, median {statistics.median(starts_ms):.0f} ms, "
            f"longest {starts_ms[-1]:.0f} ms; {figures['acknowledged beside']} messages acknowledged beside; "
            f"{figures['reported directories']} unknown directories reported, {figures['disturbed']} rounds disturbed"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--level", choices=("written", "durable"), default="written")
    parser.add_argument("--data", type=Path, default=None, help="kept; a temporary directory otherwise")
    arguments = parser.parse_args()
    seed = secrets.randbelow(2**32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, level {arguments.level}", flush=True)
    began, findings = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as directory:
        battery = Battery(arguments.data or Path(directory) / "data", seed, arguments.level)
        try:
            battery.run(arguments.kills)
        except (OSError, wire.StatusError, AssertionError) as finding:
            print(f"after {battery.figures['kills']} kills: {finding!r}\n{battery.server.log()[-4000:]}")
            findings = 1
    print(f"{battery.figure()}; {time.monotonic() - began:.0f} s; seed {seed}; {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
