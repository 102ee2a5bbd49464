"""One soak: two servers, their load, the kills, the samples, the result."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash import faults
from tests.soak.load import Load
from tests.soak.sampler import WARM_UP_S, Sampler
from tests.soak.series import Verdict, judge
from tests.support.server import Server

LEVELS = ("written", "durable")
SETTINGS = {
    "SHARDD_SYSTEM_SEGMENT_SIZE": "128 KiB",
    "SHARDD_SYSTEM_MEMORY_POOL_SIZE": "128 MiB",  # touched whole soon: RSS has a top
    "SHARDD_CONSUMER_GROUP_REBALANCING_TIMEOUT": "1 s",
    "SHARDD_CONSUMER_GROUP_REBALANCING_CHECK_INTERVAL": "100 ms",
}
LEAK = 3.0  # planted: so many tolerances


@dataclass
class Result:
    verdicts: list[Verdict]
    figures: str = ""
    problems: list[str] = field(default_factory=list)

    def table(self) -> list[str]:
        head = f"{'who':20} {'what':10} {'median':>10} {'growth':>10} {'allowed':>10}"
        return [head, *(verdict.row() for verdict in self.verdicts)]


def leak_of(verdict: Verdict) -> float:
    """What is planted in a series to see that it would be found."""
    return LEAK * verdict.tolerance + max(0.0, -verdict.growth)


class Soak:
    def __init__(self, root: Path, producers: int, seed: int, warm_up_s: float = WARM_UP_S) -> None:
        self.servers: dict[str, Server] = {}
        self.loads: dict[str, Load] = {}
        self.kills = 0
        try:
            for number, level in enumerate(LEVELS):
                server = Server(root / level, SETTINGS | {"SHARDD_SYSTEM_PARTITION_ACK": level})
                self.servers[level] = server
                server.start()
                self.loads[level] = Load(server.address, producers // len(LEVELS), seed + 1000 * number)
        except BaseException:
            self.stop()
            raise
        self.sampler = Sampler(warm_up_s)

    def run(self, duration_s: float, kill_every_s: float, sample_every_s: float, generator: random.Random) -> None:
        """Ends early when a thread of the load has failed; `finish` tells why."""
        for load in self.loads.values():
            load.start()
        began = time.monotonic()
        end = began + duration_s
        next_kill, next_sample = time.monotonic() + kill_every_s, time.monotonic() + sample_every_s
        disturbed: set[str] = set()
        while time.monotonic() < end and not self._failures():
            time.sleep(min(0.2, sample_every_s))
            if time.monotonic() >= next_kill:
                half = int(time.monotonic() - began > duration_s / 2)
                disturbed.add(self._kill(generator, half))
                next_kill += kill_every_s
            if time.monotonic() >= next_sample:
                for level, server in self.servers.items():
                    self.sampler.sample(level, server, self.loads[level].latencies.take(), disturbed=level in disturbed)
                disturbed.clear()
                next_sample += sample_every_s

    def _kill(self, generator: random.Random, half: int) -> str:
        """One worker of either server. In each half of the time two of the four are left alone: a leak needs time."""
        number = generator.randrange(len(LEVELS))
        workers = self.servers[LEVELS[number]].running_workers()
        victim = workers.get((number + half) % 2) or next(iter(workers.values()), None)
        if victim is not None:
            faults.kill9(victim)
            self.kills += 1
        return LEVELS[number]

    def _failures(self) -> list[str]:
        return [f"{level}: {text}" for level, load in self.loads.items() for text in load.failures()]

    def finish(self) -> Result:
        """Ends the load, reads and judges everything; the servers still run."""
        failures = self._failures()
        result = Result([judge(series) for _, series in sorted(self.sampler.series.items())])
        result.problems += failures
        if not failures:
            for level, load in self.loads.items():
                result.problems += [f"{level}: {finding}" for finding in load.judge()]
        result.problems += [f"it grows: {verdict.row()}" for verdict in result.verdicts if verdict.flat is False]
        judged = [verdict for verdict in result.verdicts if verdict.flat is not None]
        missed = [each for each in judged if judge(each.series.with_leak(leak_of(each))).flat]
        result.problems += [f"a planted leak is not found: {verdict.row()}" for verdict in missed]
        flat = sum(verdict.flat is True for verdict in judged)
        loads = self.loads.values()
        result.figures = (
            f"{sum(len(load.producers) for load in loads)} producers, "
            f"{sum(load.acknowledged for load in loads):,} messages acknowledged and verified "
            f"({sum(load.repeats for load in loads):,} legal repeats), {len(result.problems)} findings, "
            f"{self.kills} workers killed, {sum(load.changes.rounds for load in loads)} rounds of changes, "
            f"{sum(load.contents.messages for load in loads):,} read by groups, "
            f"{sum(load.verifier.deletions for load in loads)} deletions of segments; "
            f"{flat} of {len(judged)} series flat ({len(result.verdicts) - len(judged)} too short to say), "
            f"{len(judged) - len(missed)} planted leaks found"
        )
        return result

    def stop(self) -> None:
        for load in self.loads.values():
            load.stop()
        for server in self.servers.values():
            if server.started:
                server.stop()
