"""A door that is killed again and again while clients send through it, and others beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import psutil

from tests.support import wire

WAIT_S = 60.0
KILLS = 3
PAUSE_S = 0.003  # of each loader
Load = Callable[[int, set[bytes], threading.Event], None]


class HasDoor(Protocol):
    @property
    def address(self) -> str: ...

    def door(self, *, other_than: int = 0) -> psutil.Process: ...


def kill_under_load(server: HasDoor, loaders: int, load: Load) -> list[set[bytes]]:
    """What each of the loaders was told is stored. `load(number, acknowledged, stop)` sends to partition `number` of
    stream `load`, topic `t`, over as many doors as it takes. A client over TCP sends to the partition behind theirs and
    notices nothing at all."""
    stop = threading.Event()
    acknowledged: list[set[bytes]] = [set() for _ in range(loaders)]
    with ThreadPoolExecutor(loaders + 1) as pool:
        loads = [pool.submit(load, number, acknowledged[number], stop) for number in range(loaders)]
        undisturbed = pool.submit(_load_over_tcp, server.address, loaders, stop)
        try:
            for _ in range(KILLS):
                _grown(acknowledged)
                door = server.door()
                door.kill()
                server.door(other_than=door.pid)
            _grown(acknowledged)
        finally:
            stop.set()
        for each in loads:
            each.result(WAIT_S)
        assert undisturbed.result(WAIT_S) > 0
    return acknowledged


def _load_over_tcp(address: str, partition: int, stop: threading.Event) -> int:
    """Any error is one too many."""
    count = 0
    with wire.connect(address) as tcp:
        while not stop.is_set():
            tcp.send("load", "t", wire.to_partition(partition), [wire.message(b"x")])
            count += 1
            time.sleep(PAUSE_S)
    return count


def _grown(acknowledged: list[set[bytes]]) -> None:
    """Returns when every loader has got on."""
    before = [len(each) for each in acknowledged]
    deadline = time.monotonic() + WAIT_S
    while not all(len(now) > count + 5 for now, count in zip(acknowledged, before, strict=True)):
        assert time.monotonic() < deadline, f"{before} messages were sent, {[*map(len, acknowledged)]} now"
        time.sleep(0.02)
