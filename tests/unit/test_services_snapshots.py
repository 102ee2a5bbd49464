"""Snapshots that many ask for: who has left gets none, and users take turns."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path

import pytest

from shardd.metadata.state import Permissions
from shardd.protocol.account_requests import GetSnapshot, SnapshotCompression, SnapshotType
from shardd.protocol.codes import Code
from shardd.service import snapshot
from shardd.service.identity import Identity
from shardd.service.snapshot import SnapshotService
from tests.support import wire
from tests.unit.services_harness import Workers

CROWD = 6
WAIT_S = 60.0


class Slowly:
    """The archives that are made, by their compression; the first one waits for `go`. `asked`: how many were asked
    for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[SnapshotCompression] = []
        self.asked = 0
        self.go = threading.Event()
        make, get_snapshot = snapshot.collect_archive, SnapshotService.get_snapshot

        @wraps(get_snapshot)
        async def counted(service: SnapshotService, identity: Identity, request: GetSnapshot) -> bytes:
            self.asked += 1
            return await get_snapshot(service, identity, request)

        def slowly(members: list[tuple[str, snapshot.Collector]], compression: SnapshotCompression) -> bytes:
            self.made.append(compression)
            self.go.wait(WAIT_S)
            return make(members, compression)

        monkeypatch.setattr(snapshot, "collect_archive", slowly)
        monkeypatch.setattr(SnapshotService, "get_snapshot", counted)


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> Slowly:
    return Slowly(monkeypatch)


@pytest.fixture
def workers(tmp_path: Path, slowly: Slowly) -> Iterator[Workers]:
    with Workers(tmp_path / "data") as running:
        yield running


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def ask(one: wire.Wire, compression: SnapshotCompression) -> None:
    """Its answer is not waited for."""
    request = GetSnapshot(compression, (SnapshotType.TEST,)).encode()
    one.send_bytes(wire.frame(Code.GET_SNAPSHOT, request))


def test_snapshot_whose_asker_has_left_is_not_made(workers: Workers, slowly: Slowly) -> None:
    try:
        at_work, patient = workers.connect(), workers.connect()
        crowd = [workers.connect() for _ in range(CROWD)]
        ask(at_work, SnapshotCompression.STORED)
        wait_until(lambda: len(slowly.made) == 1)
        for one in crowd:
            ask(one, SnapshotCompression.XZ)
        wait_until(lambda: slowly.asked == 1 + CROWD)
        ask(patient, SnapshotCompression.DEFLATED)
        wait_until(lambda: slowly.asked == 2 + CROWD)
        for one in crowd:
            one.socket.shutdown(socket.SHUT_RDWR)
            one.close()
        time.sleep(0.05)  # the other end has it by then
    finally:
        slowly.go.set()
    assert at_work.reply()[0] == patient.reply()[0] == 0
    assert slowly.made == [SnapshotCompression.STORED, SnapshotCompression.DEFLATED]


def test_users_that_ask_for_snapshots_take_turns(workers: Workers, slowly: Slowly) -> None:
    try:
        crowd = [workers.connect() for _ in range(CROWD)]
        workers.create_user("other", Permissions(read_servers=True))
        other = workers.connect(name="other", password="secret")
        ask(crowd[0], SnapshotCompression.STORED)
        wait_until(lambda: len(slowly.made) == 1)
        for count, one in enumerate(crowd[1:], 2):
            ask(one, SnapshotCompression.STORED)
            wait_until(partial(lambda count: slowly.asked == count, count))
        ask(other, SnapshotCompression.DEFLATED)
        wait_until(lambda: slowly.asked == CROWD + 1)
    finally:
        slowly.go.set()
    for one in (*crowd, other):
        assert one.reply()[0] == 0
    assert slowly.made.index(SnapshotCompression.DEFLATED) <= 2, slowly.made
