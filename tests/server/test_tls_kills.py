"""Nothing that was acknowledged over TLS is lost when workers die."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.server.test_tls import NAMES, TWO_SHARDS, logged_in, more_than
from tests.support import wire
from tests.support.certificates import Authority, settings
from tests.support.server import Server
from tests.support.stalls import wait_until
from tests.support.tls_wire import client_context

pytestmark = pytest.mark.io_engine


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path)


def test_kills_of_workers_lose_nothing_acknowledged(authority: Authority, tmp_path: Path) -> None:
    env = settings(authority.sign("killed", names=NAMES))
    context = client_context(authority.certificate)
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:
        with logged_in(server, context) as client:
            client.create_stream("k")
            client.create_topic("k", "t", 4)
        acknowledged: list[list[bytes]] = [[] for _ in range(4)]
        done = [0] * 4
        stop = threading.Event()

        def produce(partition: int) -> None:
            number = 0
            while not stop.is_set():
                try:
                    with logged_in(server, context) as client:
                        while not stop.is_set():
                            payload = b"%d" % number
                            number += 1
                            client.send("k", "t", wire.to_partition(partition), [wire.message(payload)])
                            acknowledged[partition].append(payload)
                            done[partition] += 1
                except (OSError, wire.StatusError):
                    stop.wait(0.05)

        threads = [threading.Thread(target=produce, args=(partition,)) for partition in range(4)]
        for thread in threads:
            thread.start()
        for kill in range(4):
            wait_until(partial(more_than, done, sum(done) + 200), "messages")
            os.kill(server.worker_pids()[kill % 2], signal.SIGKILL)
        wait_until(partial(more_than, done, sum(done) + 200), "messages after the kills")
        stop.set()
        for thread in threads:
            thread.join()
        server.worker_pids()
        with logged_in(server, context) as client:
            for partition in range(4):
                seen: list[bytes] = []
                while messages := client.poll("k", "t", partition, value=len(seen), count=10_000).messages:
                    seen += [each.payload for each in messages]
                at = iter(seen)
                assert all(payload in at for payload in acknowledged[partition])
