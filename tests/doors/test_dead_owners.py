"""A worker is killed while a door's clients send to its partitions through the other one: what was acknowledged is
there once, and every request has an answer."""

from __future__ import annotations

import base64
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psutil
import pytest

from shardd.engine import owner
from shardd.protocol.namespaces import namespace
from tests.doors.door_server import WAIT_S, DoorServer, JsonWire, StatusError
from tests.support import wire

LOADERS: Final = 4
KILLS: Final = 2  # a worker that dies more often than it is well is given up
EACH_S: Final = 1.0
PAUSE_S: Final = 0.002
NOT_STORED, MAYBE_STORED = 11_001, 12_001
KILLED: Final = 1  # shard


def sending(partition: int, payload: bytes) -> dict[str, object]:
    encoded = [base64.b64encode(payload).decode()]
    return {"stream": "s", "topic": "t", "partition": partition, "payloads": encoded}


class Loader:
    """Sends one numbered message after the other to a partition of the shard that is killed."""

    def __init__(self, server: DoorServer, number: int, partition: int, stop: threading.Event) -> None:
        self._server, self._number, self._partition, self._stop = server, number, partition, stop
        self._client = client_of(server, 1 - KILLED)
        self.acknowledged: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.ends: Counter[int] = Counter()

    def run(self) -> None:
        for message in range(1_000_000):
            if self._stop.is_set():
                break
            payload = b"%d %d" % (self._number, message)
            status = 0
            try:
                self._client.ask("send", sending(self._partition, payload))
                self.acknowledged.add(payload)
                time.sleep(PAUSE_S)
            except StatusError as error:
                status = error.status
            if status == NOT_STORED:
                self.refused.add(payload)
                time.sleep(0.02)
            elif status == MAYBE_STORED:  # it closes the client
                self._client.close()
                self._client = client_of(self._server, 1 - KILLED)
            self.ends[status] += 1
        self._client.close()


def client_of(server: DoorServer, shard: int) -> JsonWire:
    """One whose requests that worker has."""
    for _ in range(100):
        client = server.root()
        if client.shard == shard:
            return client
        client.close()
    raise AssertionError(f"no client at shard {shard}")


def wait_for_progress(loaders: list[Loader]) -> None:
    """Until each has had a message acknowledged that it sent from now on; one may be under way."""
    before, deadline = [len(loader.acknowledged) for loader in loaders], time.monotonic() + WAIT_S
    for loader, count in zip(loaders, before, strict=True):
        while len(loader.acknowledged) <= count + 1:
            assert time.monotonic() < deadline, loader.ends
            time.sleep(0.05)


@pytest.mark.parametrize("level", ["written", pytest.param("durable", marks=pytest.mark.io_engine)])
def test_what_a_killed_owner_acknowledged_to_callers_is_there_once(tmp_path: Path, level: str) -> None:
    with DoorServer(tmp_path / "data", {"SHARDD_SYSTEM_PARTITION_ACK": level}) as server:
        with wire.connect(server.address) as tcp:
            stream = tcp.create_stream("s")
            topic = tcp.create_topic("s", "t", 8)
        partition = next(each for each in range(8) if owner(namespace(stream, topic, each), 2) == KILLED)
        stop = threading.Event()
        loaders = [Loader(server, number, partition, stop) for number in range(LOADERS)]
        with ThreadPoolExecutor(LOADERS) as threads:
            running = [threads.submit(loader.run) for loader in loaders]
            try:
                for _ in range(KILLS):
                    time.sleep(EACH_S)
                    psutil.Process(server.worker_pids()[KILLED]).send_signal(signal.SIGKILL)
                    wait_for_progress(loaders)
            finally:
                stop.set()
            for each in running:
                each.result(2 * WAIT_S)
        with wire.connect(server.address) as tcp:
            stored = Counter(each.payload for each in tcp.read_all("s", "t", partition))
        ends = sum((loader.ends for loader in loaders), Counter[int]())
        assert set(ends) <= {0, NOT_STORED, MAYBE_STORED}, ends
        assert max(stored.values()) == 1
        for loader in loaders:
            assert loader.acknowledged <= stored.keys()
            assert not loader.refused & stored.keys()
