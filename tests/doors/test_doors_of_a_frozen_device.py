"""A device that stands still: changes of the metadata that wait for it keep no place of a door, so what needs no device
is answered at each door. Nothing is measured: the changes are shown to wait still when somebody else has the answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardd.dispatch.door.places import REQUESTS_MAX as PLACES
from shardd.doors.liftbridge.calls import CALLS_OF_ADDRESS_MAX
from shardd.doors.quic.connection import REQUESTS_MAX
from shardd.metadata.log_file import FILE_NAME
from shardd.protocol.account_requests import CreateUserRequest
from shardd.protocol.codes import Code
from shardd.protocol.liftbridge import api, api_messages
from shardd.protocol.permissions import Permissions
from tests.crash.fault_control import HANG, FaultControl
from tests.doors.http_server import HttpServer
from tests.doors.liftbridge_server import ROOT, LiftbridgeServer
from tests.doors.quic_server import QuicServer, connected, request_frame
from tests.doors.test_http_waiting import answered, request
from tests.hostile import crowd
from tests.support import wire
from tests.support.frozen_disk import FrozenDisk, mounted_disk
from tests.support.stalls import wait_until

CROWD = PLACES * 5 // 2  # for both workers
SOURCES = [f"127.0.0.{number}" for number in range(10, 18)]  # a login at each: the workers have them in turns
QUIC = {"SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "1000", "SHARDD_QUIC_MAX_IDLE_TIMEOUT": "5 m"}
PATIENT = {"SHARDD_SERVER_REQUEST_TIMEOUT": "5 m"}  # half a thousand streams, one after the other
PATIENT_S = 300.0
TOO_MANY = ("UNAVAILABLE", "too many calls at a time")


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


def test_changes_over_grpc_wait_for_the_device_and_reads_go_on(tmp_path: Path) -> None:
    """The user's share of calls waits at two workers: one of them has as many as it has places, or more."""
    device = FaultControl(tmp_path)
    with LiftbridgeServer(tmp_path / "data", device.environment | PATIENT) as server, contextlib.ExitStack() as held:
        others = [held.enter_context(server.client(ROOT)) for _ in range(2)]  # the workers have them in turns
        clients = [held.enter_context(server.logged_in("liftbridge")) for _ in range(4)]
        others[0].create("s")
        for each in others + clients:
            assert each.status("FetchMetadata") == ("OK", "")
        kind = api_messages.CreateStreamRequest
        device.arm("sync", FILE_NAME, 1, 0, for_ever=True, how=HANG)
        held.callback(device.disarm)
        calls: list[Any] = []
        for number in range(CROWD):
            client = clients[number % len(clients)]
            create = client.channel.unary_unary(f"/{api.SERVICE}/CreateStream")
            asked = kind(name=f"s{number}", subject=f"s{number}", partitions=1, replicationFactor=1)
            calls.append(create.future(asked.SerializeToString(), timeout=PATIENT_S, metadata=client.metadata))
        wait_until(lambda: sum(each.done() for each in calls) >= CROWD - CALLS_OF_ADDRESS_MAX, "the user has its share")
        refused = [each for each in calls if each.done()]
        waiting = [each for each in calls if each not in refused]
        assert len(waiting) == CALLS_OF_ADDRESS_MAX >= 2 * PLACES
        assert {(each.code().name, each.details()) for each in refused} == {TOO_MANY}
        for other in others * 2:
            assert other.status("FetchMetadata") == ("OK", "")
            assert other.status("FetchPartitionMetadata", stream="s", partition=0) == ("OK", "")
        assert not any(each.done() for each in waiting)
        device.disarm()
        assert Counter((each.code().name, each.details()) for each in waiting) == {("OK", ""): len(waiting)}
