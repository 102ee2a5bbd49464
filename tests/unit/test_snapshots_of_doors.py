"""A snapshot over QUIC or HTTP that waits for room for its answer, or for a worker that does not answer, holds up no
snapshot of another user."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from shardd.config.loader import load_settings
from shardd.doors.http.polls import Polls
from shardd.doors.http.system_routes import SnapshotRequest, get_snapshot
from shardd.doors.quic.connection import ClientConnection
from shardd.doors.quic.flow import BoundedQuic
from shardd.doors.quic.kept import Request
from shardd.doors.quic.listener import SNAPSHOTS_MAX
from shardd.doors.quic.options import QuicOptions
from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.runtime.crowds import Member, Room, SharedRoom
from tests.unit.test_quic_handshakes import server_configuration
from tests.unit.virtual_time import run_virtually

ROOM_BYTES = 64 << 20
ANSWER_S = 0.1


class Shared:
    def __init__(self) -> None:
        settings = load_settings(None, {}).settings
        self.door: Any = None
        self.storing: Any = None
        self.options = QuicOptions(settings.server, settings.quic)
        self.requests, self.polls, self.answers = (Room(ROOM_BYTES, ROOM_BYTES // 2) for _ in range(3))
        self.snapshots = SharedRoom(SNAPSHOTS_MAX, of_addresses=False)

    def left(self, connection: ClientConnection) -> None: ...


class Answering(ClientConnection):
    """Of one user. `answered`: whether its snapshot was written."""

    def __init__(self, shared: Shared, user_id: int, host: str) -> None:
        quic = BoundedQuic(
            streams_max=1,
            datagram_bytes_max=8 << 10,
            configuration=server_configuration(),
            original_destination_connection_id=bytes(8),
        )
        super().__init__(quic, shared, host, f"{host}:1")
        self.answered = False
        self.answer_s = ANSWER_S
        self._client = asyncio.create_task(self._opened_as(user_id))

    async def _opened_as(self, user_id: int) -> Any:
        return SimpleNamespace(user_id=user_id, handle=1)

    async def _executed(self, request: Request) -> tuple[Status, bytes, bool]:
        await asyncio.sleep(self.answer_s)
        return Status.OK, b"snapshot", False

    def _write(self, request: Request, answer: bytes, room: Room, member: Member | None) -> None:
        self.answered = True
        if member is not None:
            room.leave(member)

    def ask(self) -> None:
        self._spawn(self._answer(Request(0, 0.0, bytearray(), code=Code.GET_SNAPSHOT, begun=True), False))


def test_a_snapshot_that_waits_for_room_holds_up_no_snapshot_of_another_user() -> None:
    async def scenario() -> None:
        shared = Shared()
        full, other = Answering(shared, 1, "192.0.2.1"), Answering(shared, 2, "192.0.2.2")
        await asyncio.sleep(0)
        kept = await shared.polls.take(1, "192.0.2.1", lambda: None, ROOM_BYTES // 2, at_work=True)
        full.ask()
        await asyncio.sleep(2 * ANSWER_S)
        other.ask()
        await asyncio.sleep(2 * ANSWER_S)
        assert other.answered and not full.answered
        shared.polls.leave(kept)
        await asyncio.sleep(2 * ANSWER_S)
        assert full.answered

    run_virtually(scenario())


def test_snapshots_at_a_worker_that_does_not_answer_hold_up_no_snapshot_of_another_user() -> None:
    async def scenario() -> None:
        shared = Shared()
        stuck = [Answering(shared, 1, f"192.0.2.{number}") for number in range(5)]
        other = Answering(shared, 2, "192.0.2.9")
        await asyncio.sleep(0)
        for each in stuck:
            each.answer_s = 1_000 * ANSWER_S
            each.ask()
        await asyncio.sleep(ANSWER_S)
        other.ask()
        await asyncio.sleep(2 * ANSWER_S)
        assert other.answered and not any(each.answered for each in stuck)
        for each in (*stuck, other):
            each.gone()

    run_virtually(scenario())


class Call:
    """GET_SNAPSHOT over HTTP of one user."""

    def __init__(self, polls: Polls, owner: int, answer_s: float) -> None:
        self.polls, self.owner, self.host, self.answer_s = polls, owner, "192.0.2.1", answer_s
        self.body = SnapshotRequest("Stored", ["Test"])
        self.peer = SimpleNamespace(is_gone=False)

    async def command(self, name: str, request: object) -> bytes:
        await asyncio.sleep(self.answer_s)
        return b"snapshot"


def test_snapshots_over_http_at_a_worker_that_does_not_answer_hold_up_no_snapshot_of_another_user() -> None:
    async def scenario() -> None:
        polls = Polls()
        calls: Any = [Call(polls, 1, 1_000 * ANSWER_S) for _ in range(5)]
        stuck = [asyncio.create_task(get_snapshot(call)) for call in calls]
        await asyncio.sleep(ANSWER_S)
        other: Any = Call(polls, 2, ANSWER_S)
        async with asyncio.timeout(2 * ANSWER_S):
            assert (await get_snapshot(other)).body == b"snapshot"
        assert not any(each.done() for each in stuck)
        for each in stuck:
            each.cancel()

    run_virtually(scenario())
