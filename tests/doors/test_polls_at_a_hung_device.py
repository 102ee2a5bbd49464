"""A device that answers no sync: polls that store offsets wait for it, and keep room of their door for their answers
meanwhile, as their offsets may be stored already. They have a share of that room, so another user's polls are served
beside them, and none of them is lost. Nothing is measured: the crowd is shown to have its share before the other user
asks."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path
from typing import Final

import pytest

from shardd.doors.http.polls import STORING_POLLS_MAX
from shardd.doors.quic.listener import STORING_POLLS_MAX as QUIC_STORING_POLLS_MAX
from shardd.protocol.account_requests import CreateUserRequest
from shardd.protocol.codes import Code
from tests.crash.fault_control import FaultControl
from tests.doors.http_server import HttpServer
from tests.doors.quic_server import QuicServer, connected, request_frame
from tests.doors.test_http_waiting import answered
from tests.doors.test_sends_at_a_hung_device import (
    PASSWORD,
    PATIENT_S,
    RIGHTS,
    SETTINGS,
    SOURCES,
    device,
    doors_requests,
    hung,
    polls,
    prepare,
)
from tests.support import wire
from tests.support.server import Server
from tests.support.stalls import wait_until

__all__ = ["device"]

OTHER: Final = "127.0.0.9"
USERS: Final = (["attacker"], ["attacker", "accomplice"])
SHARES: Final = {1: 1 / 2, 2: 2 / 3}  # of so many users, at least: each leaves as much as it has
CONNECTIONS: Final = 48  # of a user
QUERY: Final = "consumer_id=1&partition_id=0&kind=offset&value=0&count=1&auto_commit=false"


def prepare_for(server: Server, users: list[str]) -> None:
    prepare(server)
    with wire.connect(server.address) as root:
        for name in users[1:]:
            root.request(Code.CREATE_USER, CreateUserRequest(name, PASSWORD, 1, RIGHTS).encode())


def storing_poll() -> bytes:
    place = wire.consumer() + wire.identifier(0) + wire.identifier(0) + wire.optional_partition(0)
    return place + struct.pack("<BQIB", wire.POLL_OFFSET, 0, 1, True)


@pytest.mark.parametrize("users", USERS, ids=["one user", "two users"])
def test_polls_that_store_offsets_over_http_leave_another_user_polls(
    device: FaultControl, tmp_path: Path, users: list[str]
) -> None:
    with HttpServer(tmp_path / "data", device.environment | SETTINGS) as server, contextlib.ExitStack() as held:
        prepare_for(server, users)
        other = server.root()
        held.callback(other.close)
        tokens = []
        for name in users:
            client = server.logged_in(name, PASSWORD)
            held.callback(client.close)
            tokens.append(client.token)
        began = int(STORING_POLLS_MAX * SHARES[len(users)])
        asked = [(token, source) for token in tokens for source in SOURCES[:4]] * (CONNECTIONS // 4)
        waiting = [held.enter_context(server.connect(source)) for _, source in asked]
        with hung(device):
            for connection, (token, _) in zip(waiting, asked, strict=True):
                connection.sendall(polls(token))
            wait_until(lambda: doors_requests(server) >= began, "the polls of the crowd have their share")
            for _ in range(4):
                assert other.done("GET", f"/streams/s/topics/warm/messages?{QUERY}")["messages"]
            assert len(waiting) - answered(waiting) >= began, "the crowd waits still"
        statuses = [connection.recv(12)[9:] for connection in waiting]
        assert set(statuses) <= {b"200", b"503"}, "no connection is lost"
        assert statuses.count(b"200") >= began, "what may have stored an offset is answered"
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("users", USERS, ids=["one user", "two users"])
def test_polls_that_store_offsets_over_quic_leave_another_user_polls(
    device: FaultControl, tmp_path: Path, users: list[str]
) -> None:
    settings = device.environment | SETTINGS | {"SHARDD_QUIC_MAX_IDLE_TIMEOUT": "5 m"}
    with QuicServer(tmp_path / "data", settings) as server:
        prepare_for(server, users)
        frame = request_frame(wire.POLL_MESSAGES, storing_poll())

        async def scenario() -> None:
            async with contextlib.AsyncExitStack() as held:
                other = await held.enter_async_context(connected(server.quic_address, OTHER))
                assert await other.login() == 0
                clients = []
                for name in users:
                    for source in SOURCES[:4] * 2:
                        clients.append(await held.enter_async_context(connected(server.quic_address, source)))
                        assert await clients[-1].login(name, PASSWORD) == 0
                with hung(device):
                    waiting = [client._done[client.write(frame)] for client in clients for _ in range(2)]
                    began = int(QUIC_STORING_POLLS_MAX * SHARES[len(users)])
                    await asyncio.to_thread(
                        wait_until, lambda: doors_requests(server) >= began, "the polls of the crowd have their share"
                    )
                    for _ in range(4):
                        assert await other.poll(0, 1, 0, 0, 1)
                    assert not any(each.done() for each in waiting), "the crowd waits still"
                assert {(await each)[:4] for each in waiting} == {bytes(4)}, "no connection is lost"

        asyncio.run(asyncio.wait_for(scenario(), PATIENT_S))
    assert "Traceback" not in server.log()
