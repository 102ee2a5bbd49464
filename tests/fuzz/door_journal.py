"""What runs of `make fuzz-doors` have done, one line of JSON for each round: a run that was ended goes on behind it."""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from pathlib import Path

import msgspec

from tests.fuzz.door_lanes import MOST


class Round(msgspec.Struct, frozen=True):
    """`finding` "": there was none. `inputs`: those that were sent before it, too."""

    door: str
    seed: int
    number: int
    inputs: int
    seconds: float
    counts: dict[str, int]
    finding: str = ""


class DoorJournal:
    """A file that is only appended to. A line that is cut counts for nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rounds: list[Round] = []
        if path.exists():
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError):
                    self._rounds.append(msgspec.json.decode(line, type=Round))

    def add(self, made: Round) -> None:
        self._rounds.append(made)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(b"\n" + msgspec.json.encode(made))  # also behind a line that a kill has cut

    def rounds(self, door: str, seed: int) -> list[Round]:
        return [each for each in self._rounds if (each.door, each.seed) == (door, seed)]

    def inputs(self, door: str, seed: int) -> int:
        return sum(each.inputs for each in self.rounds(door, seed))

    def seed_of(self, door: str, inputs: int) -> int:
        """That of the newest run that has sent fewer inputs than these; else a new one."""
        newest = [each.seed for each in self._rounds if each.door == door][-1:]
        if newest and self.inputs(door, newest[0]) < inputs:
            return newest[0]
        return secrets.randbelow(2**32)

    def counts(self, door: str, seed: int) -> Counter[str]:
        """Of all rounds: sums, or the largest."""
        total = Counter[str]()
        for each in self.rounds(door, seed):
            for name, count in each.counts.items():
                total[name] = max(total[name], count) if f" {MOST} " in name else total[name] + count
        return total
