"""Kill -9 of workers and of the door for Liftbridge while messages are published: whatever was acknowledged is there,
in its order, and subscriptions go on."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.doors.liftbridge_server import WAIT_S, EndedError, LiftbridgeClient, LiftbridgeServer

PUBLISHED_S = 1.5


class Publishing:
    """Publishes numbers to a partition until it is told to stop; remembers what was acknowledged, by offset."""

    def __init__(self, server: LiftbridgeServer, stream: str, partition: int) -> None:
        self.acked: dict[int, bytes] = {}
        self._server, self._stream, self._partition = server, stream, partition
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        with self._server.client() as client:
            while not self._stop.is_set():
                fields = [
                    {"stream": self._stream, "partition": self._partition, "value": b"%d" % (number + n)}
                    for n in range(50)
                ]
                number += len(fields)
                with contextlib.suppress(EndedError):
                    for sent, response in zip(fields, client.publish_async(self._named(fields)), strict=False):
                        if not response.asyncError.message:
                            self.acked[response.ack.offset] = b"%d" % int(response.correlationId)
                        assert sent

    def _named(self, fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**each, "correlationId": each["value"].decode()} for each in fields]


def check(client: LiftbridgeClient, stream: str, partition: int, acked: dict[int, bytes]) -> None:
    newest = client.partition(stream, partition).newestOffset
    assert acked and newest >= max(acked)
    stored = client.read(stream, newest + 1, partition)
    assert [each.offset for each in stored] == [*range(newest + 1)]
    assert {offset: stored[offset].value for offset in acked} == acked


@pytest.mark.parametrize("what", ["worker", "door"])
def test_acknowledged_messages_survive_kill9(tmp_path: Path, what: str) -> None:
    with LiftbridgeServer(tmp_path / "data") as server:
        with server.client() as client:
            client.create("s", 2)
        publishing = [Publishing(server, "s", partition) for partition in range(2)]
        for _ in range(2):
            time.sleep(PUBLISHED_S / 2)
            if what == "door":
                door = server.door()
                door.kill()
                server.door(other_than=door.pid)
            else:
                os.kill(server.worker_pids()[1], signal.SIGKILL)
        time.sleep(PUBLISHED_S)
        for each in publishing:
            each.stop()
        with server.client() as client:
            deadline = time.monotonic() + WAIT_S
            while client.status("FetchPartitionMetadata", stream="s", partition=1)[0] != "OK":
                assert time.monotonic() < deadline
                time.sleep(0.1)
            for partition, each in enumerate(publishing):
                check(client, "s", partition, each.acked)


def test_a_subscription_goes_on_behind_the_kill_of_a_worker(tmp_path: Path) -> None:
    with LiftbridgeServer(tmp_path / "data") as server, server.client() as client:
        client.create("s", 2)
        subscriptions = [client.subscribe("s", partition, startPosition=2) for partition in range(2)]
        assert all(each.begun() for each in subscriptions)
        for published, worker in enumerate(server.worker_pids()):
            for partition in range(2):
                client.publish("s", b"%d" % published, partition=partition)
            os.kill(worker, signal.SIGKILL)
            deadline = time.monotonic() + WAIT_S
            for partition in range(2):
                while True:
                    status, text = client.status("Publish", stream="s", partition=partition, value=b"after")
                    if status == "OK":
                        break
                    assert status in ("UNAVAILABLE", "UNAUTHENTICATED") and time.monotonic() < deadline, (status, text)
                    time.sleep(0.05)
        for partition, each in enumerate(subscriptions):
            newest = client.partition("s", partition).newestOffset
            assert [found.offset for found in each.messages(newest + 1)] == [*range(newest + 1)]
        for each in subscriptions:
            each.__exit__(None, None, None)
