"""A device that stands still: changes of the metadata that wait for it keep no place of a door, so what needs no device
is answered at each door. Nothing is measured: the changes are shown to wait still when somebody else has the answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from shardd.doors.quic.connection import REQUESTS_MAX
from shardd.protocol.account_requests import CreateUserRequest
from shardd.protocol.codes import Code
from shardd.protocol.liftbridge import api
from shardd.protocol.permissions import Permissions
from shardd.transport.door.places import REQUESTS_MAX as PLACES
from tests.doors.http_server import HttpServer
from tests.doors.liftbridge_server import ROOT, LiftbridgeServer
from tests.doors.quic_server import QuicServer, connected, request_frame
from tests.doors.test_http_waiting import answered, request
from tests.hostile import crowd
from tests.support import wire
from tests.support.frozen_disk import FrozenDisk, mounted_disk

CROWD = PLACES * 5 // 2  # for both workers
SOURCES = [f"127.0.0.{number}" for number in range(10, 18)]  # a login at each: the workers have them in turns
QUIC = {"SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "1000", "SHARDD_QUIC_MAX_IDLE_TIMEOUT": "5 m"}
WAIT_S = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrozenDisk]:
    crowd.allow_descriptors(2 * CROWD + 500)
    with mounted_disk(tmp_path / "data") as found:
        yield found


def test_changes_over_http_wait_for_the_device_and_reads_go_on(disk: FrozenDisk) -> None:
    with HttpServer(disk.place) as server, contextlib.ExitStack() as held:
        root = server.root()
        held.callback(root.close)
        with wire.connect(server.address) as tcp:
            user = CreateUserRequest("attacker", "attacker-password", 1, Permissions(manage_streams=True))
            tcp.request(Code.CREATE_USER, user.encode())
        attacker = server.logged_in("attacker", "attacker-password")
        token = attacker.token
        attacker.close()
        waiting = [held.enter_context(server.connect(SOURCES[number % len(SOURCES)])) for number in range(CROWD)]
        with disk.frozen():
            for number, each in enumerate(waiting):
                each.sendall(request("POST", "/streams", {"name": f"s{number}"}, token))
            for _ in range(4):
                root.done("GET", "/streams")
                root.done("GET", "/users")
            assert answered(waiting) < CROWD // 2
        assert root.done("GET", "/streams") is not None


def test_changes_over_quic_wait_for_the_device_and_reads_go_on(disk: FrozenDisk) -> None:
    with QuicServer(disk.place, QUIC) as server:

        async def scenario() -> None:
            async with contextlib.AsyncExitStack() as held:
                count = CROWD // REQUESTS_MAX
                clients = [await held.enter_async_context(connected(server.quic_address)) for _ in range(count)]
                others = [await held.enter_async_context(connected(server.quic_address, "127.0.0.2")) for _ in range(2)]
                for each in clients + others:
                    assert await each.login() == 0
                with disk.frozen():
                    crowd = [
                        client._done[client.write(request_frame(wire.CREATE_STREAM, wire.str8(f"s{number},{at}")))]
                        for number, client in enumerate(clients)
                        for at in range(REQUESTS_MAX)
                    ]
                    for _ in range(2):
                        for other in others:
                            await other.done(wire.GET_STREAMS)
                    assert sum(each.done() for each in crowd) < CROWD // 2

        asyncio.run(asyncio.wait_for(scenario(), 200))


def test_changes_over_grpc_wait_for_the_device_and_reads_go_on(disk: FrozenDisk) -> None:
    with LiftbridgeServer(disk.place) as server, server.client(ROOT) as root, contextlib.ExitStack() as held:
        root.create("s")
        kind, clients = api.message_class("CreateStreamRequest"), []
        for _ in range(4):
            clients.append(held.enter_context(server.logged_in("liftbridge")))
            assert clients[-1].status("FetchMetadata") == ("OK", "")
        with disk.frozen():
            calls: list[Any] = []
            for number in range(CROWD):
                client = clients[number % len(clients)]
                create = client.channel.unary_unary(f"/{api.SERVICE}/CreateStream")
                asked = kind(name=f"s{number}", subject=f"s{number}", partitions=1, replicationFactor=1)
                calls.append(create.future(asked.SerializeToString(), timeout=WAIT_S, metadata=client.metadata))
            for _ in range(4):
                assert root.status("FetchMetadata") == ("OK", "")
                assert root.status("FetchPartitionMetadata", stream="s", partition=0) == ("OK", "")
            assert not any(each.done() and each.code() is grpc.StatusCode.OK for each in calls)
            waiting = [each for each in calls if not each.done()]
            assert len(waiting) >= PLACES, "fewer than one worker has places"
        assert grpc.StatusCode.OK in {each.code() for each in waiting}, "none goes on"
