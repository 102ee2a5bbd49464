"""kill -9 while streams are created and deleted: the server always starts again and knows what it acknowledged."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from tests.crash import faults
from tests.support import wire
from tests.support.server import Server


class Changer(threading.Thread):
    """Creates and deletes streams with a topic until its connection breaks; remembers what was acknowledged."""

    def __init__(self, address: str, prefix: str) -> None:
        super().__init__(daemon=True)
        self.connection = wire.connect(address)
        self.prefix = prefix
        self.exists: set[str] = set()
        self.gone: set[str] = set()
        self.uncertain: str | None = None
        self.failure: wire.StatusError | None = None

    def run(self) -> None:
        number = 0
        try:
            while True:
                name = f"{self.prefix}-{number}"
                self.uncertain = name
                self.connection.create_stream(name)
                self.exists.add(name)
                self.connection.create_topic(name, "t", 3)
                self.connection.send(name, "t", wire.to_partition(number % 3), [wire.message(name.encode())])
                if number % 3:
                    self.exists.discard(name)
                    self.connection.delete_stream(name)
                    self.gone.add(name)
                number += 1
        except OSError:
            self.connection.close()
        except wire.StatusError as problem:
            self.failure = problem


def crash_once(data: Path, round_number: int, generator: random.Random, expected: dict[str, bool]) -> None:
    """One start, some changes, one kill; `expected` maps names to whether they must exist (True) or must not."""
    server = Server(data)
    server.start()
    try:
        check(server.address, expected)
        changers = [Changer(server.address, f"round {round_number} {n}") for n in range(3)]
        for changer in changers:
            changer.start()
        faults.wait_until(lambda: all(changer.exists or changer.gone for changer in changers), "changes are made")
        threading.Event().wait(generator.uniform(0.0, 0.4))
        workers = server.worker_pids()
        server.kill_supervisor()
        for pid in workers:
            if faults.is_running(pid):
                faults.kill9(pid)
        for changer in changers:
            changer.join(15)
            assert not changer.is_alive()
            expected |= dict.fromkeys(changer.exists, True) | dict.fromkeys(changer.gone, False)
            if changer.uncertain is not None:
                expected.pop(changer.uncertain, None)
    finally:
        server.stop()


def check(address: str, expected: dict[str, bool]) -> None:
    """What was acknowledged holds, each stream that is there works, ids and names are unique."""
    with wire.connect(address) as connection:
        there = connection.streams()
        assert len(set(there.values())) == len(there)
        assert {name for name, exists in expected.items() if exists} <= there.keys()
        assert not {name for name, exists in expected.items() if not exists} & there.keys()
        for name in expected.keys() & there.keys():
            found = [item for n in range(3) for item in connection.read_all(name, "t", n)]
            assert [item.payload for item in found] == [name.encode()]


def battery(data: Path, rounds: int, seed: int) -> None:
    generator, expected = random.Random(seed), dict[str, bool]()
    for round_number in range(rounds):
        crash_once(data, round_number, generator, expected)
    server = Server(data)
    server.start()
    try:
        check(server.address, expected)
        assert sum(expected.values()) >= rounds
    finally:
        server.stop()


def test_kill9_during_stream_changes_always_restarts(tmp_path: Path) -> None:
    battery(tmp_path, 3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kill9_during_stream_changes_always_restarts_60_times(tmp_path: Path) -> None:
    battery(tmp_path, 60, seed=2)
