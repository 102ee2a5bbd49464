"""Asks every command at its widest and reads what the steps of the loops took meanwhile."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardd.client import commands
from shardd.client.blocking import BlockingLink
from shardd.runtime.loop_watch import LIMIT_MS
from tests.bounded import world
from tests.bounded.questions import Asker, Question, questions
from tests.doors.door_server import JsonWire
from tests.doors.door_server import StatusError as DoorError
from tests.support import wire
from tests.support.links import root_link

_LONGEST: Final = re.compile(r"loop\.(.+)\.longest_us")
LOOP_CPU: Final = "process.loop_cpu_us"
START_TIMEOUT_S: Final = 300.0
TIMEOUT_S: Final = 60.0
LOGGED_IN: Final = 4_000


@dataclass(frozen=True, slots=True)
class Step:
    """A name of a step on one shard whose longest one came with a request."""

    name: str
    shard: int
    longest_us: int


@dataclass(slots=True)
class Row:
    """`steps`: of all shards, longest first. `loop_us`: CPU time of all loops meanwhile, the engine's work included.
    `refused`: why there is no figure."""

    name: str
    about: str
    steps: list[Step]
    loop_us: int = 0
    refused: str = ""

    @property
    def longest_us(self) -> int:
        return self.steps[0].longest_us if self.steps else 0

    @property
    def good(self) -> bool:
        return not self.refused and self.longest_us <= LIMIT_MS * 1000

    def __str__(self) -> str:
        names = ", ".join(f"{each.name} {each.longest_us / 1000:.1f}" for each in self.steps[:3])
        mark = " " if self.good else "!"
        figures = f"{mark} {self.longest_us / 1000:8.2f} {self.loop_us / 1000:9.1f}"
        return f"{figures}  {self.name:34} {self.about:46} {self.refused or names}"


class Longest:
    """The longest step of each name so far; what is new since the last look."""

    def __init__(self, connection: BlockingLink, settle_s: float) -> None:
        self._connection = connection
        self._settle_s = settle_s
        self._known: dict[tuple[int, str], int] = {}
        self._loop_us = 0

    def new(self) -> tuple[list[Step], int]:
        """And the CPU time of the loops since the last look."""
        time.sleep(self._settle_s)
        metrics = self._connection.call(commands.metrics())
        found, loop_us = [], 0
        for shard in metrics.shards:
            for figure, value in shard.values.items():
                name = _LONGEST.fullmatch(figure)
                loop_us += value if figure == LOOP_CPU else 0
                if name is not None and value > self._known.get((shard.shard, name[1]), 0):
                    self._known[shard.shard, name[1]] = value
                    found.append(Step(name[1], shard.shard, value))
        before, self._loop_us = self._loop_us, loop_us
        return sorted(found, key=lambda each: -each.longest_us), loop_us - before


def run(base: Path, size: world.Size, limit_ms: int, show: Callable[[Row], None]) -> list[Row]:
    """One row for each question, and some for what goes before. A worker that ends is a RuntimeError."""
    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        show(row)

    server = world.prepared_server(base, size, limit_ms)
    server.start(START_TIMEOUT_S)
    try:
        workers = server.worker_pids()
        observer = root_link(server.address, timeout_s=TIMEOUT_S)
        longest = Longest(observer, size.settle_s)
        add(Row("(start)", "", *longest.new()))
        with wire.connect(server.address) as connection:
            world.store_offsets(connection, size.offsets)
        add(Row("(offsets)", f"{size.offsets} stored", *longest.new()))
        logged_in = min(LOGGED_IN, size.connections)
        with world.connections(server.address, size.connections, logged_in) as crowd:
            add(Row("(connections)", f"{size.connections} opened, {logged_in} logins", *longest.new()))
            door = JsonWire(server.ports["liftbridge"])
            door.ask("login", username="iggy", password="iggy")
            asker = Asker(server.address, size, crowd, world.metrics_address(server), door)
            for question in questions(size):
                add(_row(question, asker, longest))
        add(Row("(connections)", f"{size.connections} closed", *longest.new()))
        observer.close()
        if server.worker_pids() != workers:
            raise RuntimeError(f"a worker ended:\n{server.log()[-4000:]}")
        return rows
    finally:
        server.stop()


def _row(question: Question, asker: Asker, longest: Longest) -> Row:
    refused = ""
    try:
        question.ask(asker)
    except (wire.StatusError, DoorError) as error:
        refused = str(error)
    return Row(question.name, question.about, *longest.new(), refused)
