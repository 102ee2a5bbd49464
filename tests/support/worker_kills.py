"""Workers that are killed one after the other while clients send to all partitions of topic `t` in stream `k`."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from tests.support.server import Server
from tests.support.stalls import wait_until
from tests.support.wire import StatusError, Wire

PARTITIONS: Final = 4
KILLS: Final = 4  # of two workers in turn
MESSAGES: Final = 200  # between two kills
Send = Callable[[int, bytes], None]


def kill_workers_under_load(server: Server, connected: Callable[[], AbstractContextManager[Send]]) -> list[list[bytes]]:
    """The payloads of each partition that were acknowledged, in their order. `connected()`: a client; it sends a
    payload to a partition, and OSError, StatusError or AssertionError end it."""
    acknowledged: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    stop = threading.Event()

    def produce(partition: int) -> None:
        numbers = itertools.count()
        while not stop.is_set():
            try:
                with connected() as send:
                    while not stop.is_set():
                        payload = b"%d" % next(numbers)
                        send(partition, payload)
                        acknowledged[partition].append(payload)
                        stop.wait(0.002)  # a worker that comes back has company enough
            except (OSError, StatusError, AssertionError):
                stop.wait(0.05)

    def more() -> None:
        wanted = sum(map(len, acknowledged)) + MESSAGES
        wait_until(lambda: sum(map(len, acknowledged)) > wanted, "messages")

    threads = [threading.Thread(target=produce, args=(partition,)) for partition in range(PARTITIONS)]
    for thread in threads:
        thread.start()
    try:
        for kill in range(KILLS):
            more()
            os.kill(server.worker_pids()[kill % 2], signal.SIGKILL)
        more()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    server.worker_pids()  # all are back
    return acknowledged


def check_all_there(client: Wire, acknowledged: list[list[bytes]]) -> None:
    """In their order, perhaps with others between them."""
    for partition, payloads in enumerate(acknowledged):
        seen: list[bytes] = []
        while messages := client.poll("k", "t", partition, value=len(seen), count=10_000).messages:
            seen += [each.payload for each in messages]
        at = iter(seen)
        assert all(payload in at for payload in payloads)
