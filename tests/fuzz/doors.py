"""`make fuzz-doors`: a million mutated inputs at each door that is not the engine's, over its socket.

    python -m tests.fuzz.doors [--doors http grpc quic ...] [--inputs N] [--seed N [--round N]] [--journal FILE]

What is asked is made of what each door says that it takes: the description of the HTTP API, the messages of
Liftbridge, the commands of the classic wire, the lines of NATS. Values, bytes, heads and whole connections are changed.
Every request that is one has an answer that is one, with a status that the door documents; the process of the door
stays the same one, its memory and that of the workers are bounded, its log tells of no fault, a well-behaved client is
served beside the inputs. Anything else is a finding: the input and its seed are printed, and the run goes on with
another server.

Inputs come in rounds with seeds of their own. The journal has a line for each round; a run that was ended goes on
behind its last one. The status is 1 when a round of the run has a finding.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tests.fuzz.door_journal import DoorJournal, Round
from tests.fuzz.door_lanes import FuzzedDoor, Work
from tests.fuzz.door_watch import DoorWatch
from tests.fuzz.grpc_door import GrpcDoor
from tests.fuzz.http_door import HttpDoor
from tests.fuzz.lanes import FindingError
from tests.fuzz.metrics_door import MetricsDoor
from tests.fuzz.nats_door import NatsDoor
from tests.fuzz.quic_door import QuicDoor

INPUTS: Final = 1_000_000
ROUND_INPUTS: Final = 20_000
FINDINGS_MAX: Final = 10  # of a door, then its run ends
PROGRESS_EVERY_S: Final = 10.0
JOURNAL: Final = Path("build/fuzz-doors.jsonl")
DOORS: Final[Mapping[str, Callable[[Path], FuzzedDoor]]] = {
    "http": HttpDoor,
    "https": partial(HttpDoor, over_tls=True),
    "metrics": MetricsDoor,
    "grpc": GrpcDoor,
    "grpc-tls": partial(GrpcDoor, over_tls=True),
    "nats": NatsDoor,
    "quic": QuicDoor,
}
Report = Callable[[str], None]


async def fuzz_round(
    door: FuzzedDoor, watch: DoorWatch, inputs: int, seed: str, progress: Callable[[int], None] = lambda done: None
) -> Counter[str]:
    """How often each answer came. `watch`: one for all rounds of a server, so that growth adds up. FindingError."""
    try:
        await asyncio.to_thread(door.prepare)
    except Exception as error:
        raise FindingError(f"the server does not do its work any more: {error!r}") from error
    return await Work(inputs, watch, progress).run(door, seed)


async def fuzz(name: str, data: Path, inputs: int, seed: str) -> Counter[str]:
    """One round at a server of its own."""
    with DOORS[name](data) as door:
        return await fuzz_round(door, door.watch(), inputs, seed)


def round_seed(name: str, seed: int, number: int) -> str:
    return f"{seed} {name} {number}"


class DoorRun:
    """All rounds at one door that the journal does not have."""

    def __init__(self, name: str, inputs: int, seed: int, journal: DoorJournal, report: Report) -> None:
        self._name, self._inputs, self._seed = name, inputs, seed
        self._journal, self._report = journal, report
        self._began_s = self._told_s = time.monotonic()
        self._first = journal.inputs(name, seed)

    @property
    def _done(self) -> int:
        return self._journal.inputs(self._name, self._seed)

    @property
    def findings(self) -> list[str]:
        return [each.finding for each in self._journal.rounds(self._name, self._seed) if each.finding]

    @property
    def is_over(self) -> bool:
        return self._done >= self._inputs or len(self.findings) >= FINDINGS_MAX

    async def run(self, scratch: Path) -> None:
        while not self.is_over:
            with (
                tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as place,
                DOORS[self._name](Path(place) / "data") as door,
            ):
                watch = door.watch()
                while not self.is_over and await self._round(door, watch):
                    pass
        self._tell(0)

    async def _round(self, door: FuzzedDoor, watch: DoorWatch) -> bool:
        """Whether the server may go on."""
        number, began_s, sent = len(self._journal.rounds(self._name, self._seed)), time.monotonic(), 0

        def progress(done: int) -> None:
            nonlocal sent
            sent = done
            if time.monotonic() - self._told_s >= PROGRESS_EVERY_S:
                self._tell(done)

        counts, found = Counter[str](), ""
        inputs = min(ROUND_INPUTS, self._inputs - self._done)
        try:
            counts = await fuzz_round(door, watch, inputs, round_seed(self._name, self._seed, number), progress)
        except FindingError as finding:
            found = str(finding)
            self._report(f"FINDING in round {number} of seed {self._seed}: {found}")
        took_s = round(time.monotonic() - began_s, 3)
        self._journal.add(Round(self._name, self._seed, number, sent, took_s, dict(counts), found))
        return not found

    def _tell(self, beyond: int) -> None:
        """`beyond`: inputs that the journal does not have yet."""
        self._told_s = time.monotonic()
        done = self._done + beyond
        rate = (done - self._first) / max(self._told_s - self._began_s, 0.001)
        self._report(f"{done:,} of {self._inputs:,} inputs, {len(self.findings)} findings, {rate:,.0f} a second")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--doors", nargs="+", choices=[*DOORS], default=[*DOORS])
    parser.add_argument("--inputs", type=int, default=INPUTS, help="at each door")
    parser.add_argument("--seed", type=int, default=None, help="default: that of a run that was ended, or a new one")
    parser.add_argument("--round", type=int, default=None, help="only this one of the seed, and not into the journal")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    given = parser.parse_args()
    if given.round is not None and (given.seed is None or len(given.doors) != 1):
        parser.error("--round needs --seed and one of --doors")
    journal, findings = DoorJournal(given.journal), 0
    if given.round is not None:
        return _again(given.doors[0], given.seed, given.round)
    for name in given.doors:
        seed = given.seed if given.seed is not None else journal.seed_of(name, given.inputs)
        print(f"{name}: seed {seed}, {journal.inputs(name, seed):,} inputs are done", flush=True)
        with tempfile.TemporaryDirectory(prefix="shardd-fuzz-", ignore_cleanup_errors=True) as scratch:
            run = DoorRun(name, given.inputs, seed, journal, partial(_print, name))
            try:
                asyncio.run(_ended_by_signal(run, Path(scratch)))
            except asyncio.CancelledError:
                _print(name, "ended; the same command goes on from here")
                return 1
        findings += len(run.findings)
        print(f"{name}: {dict(sorted(journal.counts(name, seed).items()))}", flush=True)
    return 1 if findings else 0


async def _ended_by_signal(run: DoorRun, scratch: Path) -> None:
    """An end in order: lanes and servers end, too."""
    working = asyncio.current_task()
    assert working is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    await run.run(scratch)


def _again(name: str, seed: int, number: int) -> int:
    """A round as the journal has it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an end in order: the server ends, too
    with tempfile.TemporaryDirectory(prefix="shardd-fuzz-", ignore_cleanup_errors=True) as scratch:
        try:
            counts = asyncio.run(fuzz(name, Path(scratch) / "data", ROUND_INPUTS, round_seed(name, seed, number)))
        except FindingError as finding:
            _print(name, f"FINDING: {finding}")
            return 1
    _print(name, f"{dict(sorted(counts.items()))}")
    return 0


def _print(name: str, text: str) -> None:
    print(f"{name}: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
