"""`python -m tests.demo.groups [--seconds S]`: 24 partitions, 8 members join, 2 leave, while a producer runs.

The members are released apache-iggy 0.8 clients, each a process of its own. After the joins everybody must have three
partitions, after the leaves four. While nothing moves, every message must reach exactly one member exactly once;
over the whole run none may be missing, and repeats, which the moves allow, are counted. Exit status 1 when a rule is
broken.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shardd.protocol.codes import Code
from tests.demo.flights import running
from tests.support import clients, wire
from tests.support.server import Server

SCRIPTS = Path(__file__).parent
VERSION = "0.8.0"
PARTITIONS, MEMBERS, LEAVERS = 24, 8, 2
MESSAGES_PER_SEND = 5
SEND_PAUSE_S = 0.005
SETTLE_S = 60.0
PLACE = wire.identifier("groups") + wire.identifier("numbers")
SETTINGS = {
    "IGGY_CONSUMER_GROUP_REBALANCING_TIMEOUT": "5 s",
    "IGGY_CONSUMER_GROUP_REBALANCING_CHECK_INTERVAL": "200 ms",
}


@dataclass(slots=True)
class Result:
    produced: int = 0
    steady: list[int] = field(default_factory=list)  # messages of each steady phase
    repeats: int = 0
    tables: list[tuple[str, dict[int, list[int]]]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


class Producer(threading.Thread):
    """Numbers from 0 on, round robin over the partitions; `sent` of them are acknowledged."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.stopping = threading.Event()
        self._wire = wire.connect(address)

    def run(self) -> None:
        turn = 0
        while not self.stopping.wait(SEND_PAUSE_S):
            numbers = range(self.sent, self.sent + MESSAGES_PER_SEND)
            batch = [wire.message(b"%d" % number) for number in numbers]
            self._wire.send("groups", "numbers", wire.to_partition(turn % PARTITIONS), batch)
            self.sent += MESSAGES_PER_SEND
            turn += 1
        self._wire.close()


def arrivals(directory: Path) -> Counter[int]:
    """How often each number has been delivered so far."""
    found: Counter[int] = Counter()
    for path in directory.glob("*.out"):
        lines = path.read_bytes()
        found.update(int(line) for line in lines[: lines.rfind(b"\n") + 1].splitlines())
    return found


def wait_until(fits: Callable[[], bool], what: str, seconds: float = SETTLE_S) -> bool:
    deadline = time.monotonic() + seconds
    while not fits():
        if time.monotonic() > deadline:
            print(f"not within {seconds:.0f} s: {what}", file=sys.stderr)
            return False
        time.sleep(0.05)
    return True


class Demo:
    def __init__(self, server: Server, directory: Path, seconds: float, result: Result) -> None:
        self.directory, self.seconds, self.result = directory, seconds, result
        self.root = wire.connect(server.address)
        self.root.create_stream("groups")
        self.root.create_topic("groups", "numbers", PARTITIONS)
        self.root.request(Code.CREATE_CONSUMER_GROUP, PLACE + wire.str8("readers"))
        self.producer = Producer(server.address)
        url, script = clients.connection_string(server.address), SCRIPTS / "consume_group.py"
        self.members = [clients.start(VERSION, script, [url, str(directory), f"m{n}"]) for n in range(MEMBERS)]

    def assignment(self) -> dict[int, list[int]]:
        return self.root.group_members("groups", "numbers", "readers")

    def settle(self, title: str, members: int) -> None:
        """Waits for equal shares and notes the table."""
        share = PARTITIONS // members

        def is_fair() -> bool:
            return [len(own) for own in self.assignment().values()] == [share] * members

        if not wait_until(is_fair, f"{share} partitions each for {members} members"):
            self.result.broken.append(f"{title}: not {share} partitions for each of {members} members")
        table = self.assignment()
        self.result.tables.append((title, table))
        if sorted(partition for own in table.values() for partition in own) != list(range(PARTITIONS)):
            self.result.broken.append(f"{title}: a partition has no owner or two")

    def steady(self, title: str) -> None:
        """What is sent from now on, for `seconds`, must arrive exactly once while nothing moves."""
        first = self.producer.sent + MESSAGES_PER_SEND  # one send may be under way
        time.sleep(self.seconds)
        end = self.producer.sent
        numbers = range(first, end)
        if not wait_until(lambda: len(arrivals(self.directory).keys() & set(numbers)) == len(numbers), title):
            self.result.broken.append(f"{title}: messages are missing")
        times = arrivals(self.directory)
        repeated = sum(times[number] > 1 for number in numbers)
        if repeated:
            self.result.broken.append(f"{title}: {repeated} messages came more than once while nothing moved")
        self.result.steady.append(len(numbers))

    def leave(self, count: int) -> None:
        leaving, self.members = self.members[-count:], self.members[:-count]
        for number, process in enumerate(leaving, start=len(self.members)):
            (self.directory / f"m{number}.stop").touch()
            self._ended(process)

    def _ended(self, process: subprocess.Popen[str]) -> None:
        _, errors = process.communicate(timeout=SETTLE_S)
        if process.returncode != 0:
            self.result.broken.append(f"a client ended with {process.returncode}: {errors.strip()}")

    def run(self) -> None:
        with running(self.members):
            self.producer.start()
            self.settle(f"{MEMBERS} members have joined", MEMBERS)
            self.steady("steady with all members")
            self.leave(LEAVERS)
            self.settle(f"{LEAVERS} members have left", MEMBERS - LEAVERS)
            self.steady("steady after the leaves")
            self.producer.stopping.set()
            self.producer.join(SETTLE_S)
            produced = set(range(self.producer.sent))
            if not wait_until(lambda: produced <= arrivals(self.directory).keys(), "everything arrives"):
                missing = len(produced - arrivals(self.directory).keys())
                self.result.broken.append(f"{missing} messages never arrived")
            self.leave(len(self.members))
        times = arrivals(self.directory)
        self.result.produced = self.producer.sent
        self.result.repeats = sum(count - 1 for count in times.values())
        if not times.keys() <= produced:
            self.result.broken.append("messages arrived that nobody sent")


def run(seconds: float = 3.0) -> Result:
    """The demo with steady phases of so many seconds. OSError, TimeoutError; broken rules are in the result."""
    result = Result()
    with tempfile.TemporaryDirectory(prefix="shardd-demo-") as name:
        directory = Path(name)
        with Server(directory / "data", env=SETTINGS) as server:
            Demo(server, directory, seconds, result).run()
    return result


def report(result: Result) -> str:
    lines = []
    for title, table in result.tables:
        lines.append(f"{title}:")
        lines += [
            f"  member {member:2}  {len(own)} partitions: {', '.join(map(str, own))}" for member, own in table.items()
        ]
    lines += [
        f"{'messages produced':34}{result.produced:,}",
        f"{'exactly once in steady state':34}{' + '.join(f'{count:,}' for count in result.steady)} messages",
        f"{'repeats across moves':34}{result.repeats:,}",
        f"{'rules':34}{'held' if not result.broken else 'BROKEN'}",
        *(f"BROKEN {words}" for words in result.broken),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="A consumer group whose members come and go while a producer runs.")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each steady phase (3)")
    result = run(parser.parse_args().seconds)
    print(report(result))
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
