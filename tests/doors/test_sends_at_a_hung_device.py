"""A device that answers no sync: sends, stores of offsets, and polls that store them, which wait for it, keep no place
of a door, so other users are served at each door. Nothing is measured: the crowd is shown to wait still when the others
have their answers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardd.dispatch.door.places import REQUESTS_MAX as PLACES
from shardd.doors.liftbridge.calls import CALLS_OF_ADDRESS_MAX
from shardd.doors.quic.connection import REQUESTS_MAX
from shardd.protocol.account_requests import CreateUserRequest
from shardd.protocol.codes import Code
from shardd.protocol.liftbridge import api, api_messages
from shardd.protocol.permissions import Permissions
from tests.crash.fault_control import HANG, FaultControl
from tests.doors.http_server import HttpServer
from tests.doors.liftbridge_server import HOST, ROOT, LiftbridgeServer
from tests.doors.nats_peers import nats_client
from tests.doors.quic_server import QuicServer, batch, connected, request_frame
from tests.doors.test_http_waiting import answered, request
from tests.hostile import crowd
from tests.support import wire
from tests.support.server import Server
from tests.support.stalls import figures_of, metrics, wait_until

CROWD = PLACES * 5 // 2  # for both workers
SOURCES = [f"127.0.0.{number}" for number in range(10, 18)]  # a login at each: the workers have them in turns
PASSWORD = "attacker-password"
RIGHTS = Permissions(read_streams=True, read_topics=True, send_messages=True, poll_messages=True)
SETTINGS = {
    "SHARDD_SYSTEM_PARTITION_ACK": "durable",
    "SHARDD_SYSTEM_IO_ENGINE": "epoll",  # what goes through a ring cannot be made to hang
    "SHARDD_SERVER_REQUEST_TIMEOUT": "5 m",
    "SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "2000",
}
PATIENT_S = 300.0


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FaultControl]:
    crowd.allow_descriptors(2 * CROWD + 500)
    device = FaultControl(tmp_path)
    try:
        yield device
    finally:
        device.disarm()


@contextlib.contextmanager
def hung(device: FaultControl) -> Iterator[None]:
    """No sync of a partition's files ends."""
    device.arm("sync", "/streams/", 1, 0, for_ever=True, how=HANG)
    try:
        yield
    finally:
        device.disarm()


def prepare(server: Server, partitions_count: int = 1) -> None:
    with wire.connect(server.address) as root:
        root.request(Code.CREATE_USER, CreateUserRequest("attacker", PASSWORD, 1, RIGHTS).encode())
        stream = root.create_stream("s")
        for name in ("t", "warm"):
            topic = root.create_topic(stream, name, partitions_count)
            for partition in range(partitions_count):
                root.send(stream, topic, wire.to_partition(partition), [wire.message(b"m")])


def sends(token: str) -> bytes:
    partitioning = {"kind": "partition_id", "value": base64.b64encode(bytes(4)).decode()}
    messages = [{"payload": base64.b64encode(b"x").decode()}]
    return request("POST", "/streams/s/topics/t/messages", {"partitioning": partitioning, "messages": messages}, token)


def stores(token: str) -> bytes:
    body = {"consumer_id": "c", "partition_id": 0, "offset": 0}
    return request("PUT", "/streams/s/topics/t/consumer-offsets", body, token)


def polls(token: str) -> bytes:
    wanted = "consumer_id=1&partition_id=0&kind=offset&value=0&count=1&auto_commit=true"
    return request("GET", f"/streams/s/topics/t/messages?{wanted}", None, token)


@pytest.mark.parametrize(
    ("what", "sources"),
    [(sends, SOURCES), (stores, SOURCES), (polls, SOURCES[:1])],  # of several addresses: test_polls_at_a_hung_device.py
    ids=["sends", "stores", "polls that store"],
)
def test_what_waits_for_the_device_over_http_leaves_others_served(
    device: FaultControl, tmp_path: Path, what: Callable[[str], bytes], sources: list[str]
) -> None:
    with HttpServer(tmp_path / "data", device.environment | SETTINGS) as server, contextlib.ExitStack() as held:
        prepare(server)
        others = [server.root() for _ in range(2)]  # the workers have them in turns
        attacker = server.logged_in("attacker", PASSWORD)
        for each in [*others, attacker]:
            held.callback(each.close)
        count = CROWD if len(sources) > 1 else 20
        waiting = [held.enter_context(server.connect(sources[number % len(sources)])) for number in range(count)]
        with hung(device):
            for connection in waiting:
                connection.sendall(what(attacker.token))
            for other in others * 4:
                assert other.get("/ping").status == 200
                other.done("GET", "/streams")
                poll = "consumer_id=1&partition_id=0&kind=offset&value=0&count=1&auto_commit=false"
                assert other.done("GET", f"/streams/s/topics/warm/messages?{poll}")["messages"]
            assert answered(waiting) == 0
        for connection in waiting:
            assert b" 20" in connection.recv(12), "what has been handed over is done"


def test_sends_over_quic_that_wait_for_the_device_leave_others_served(device: FaultControl, tmp_path: Path) -> None:
    settings = device.environment | SETTINGS | {"SHARDD_QUIC_MAX_IDLE_TIMEOUT": "5 m"}
    with QuicServer(tmp_path / "data", settings) as server:
        prepare(server)
        frame = request_frame(wire.SEND_MESSAGES, batch(0, 0, 0, [b"x"]))

        async def scenario() -> None:
            async with contextlib.AsyncExitStack() as held:
                count = CROWD // REQUESTS_MAX
                clients = [await held.enter_async_context(connected(server.quic_address)) for _ in range(count)]
                others = [await held.enter_async_context(connected(server.quic_address, "127.0.0.2")) for _ in range(2)]
                for client in clients:
                    assert await client.login("attacker", PASSWORD) == 0
                for other in others:
                    assert await other.login() == 0
                with hung(device):
                    waiting = [client._done[client.write(frame)] for client in clients for _ in range(REQUESTS_MAX)]
                    for other in others * 2:
                        await other.done(wire.PING)
                        await other.done(wire.GET_STREAMS)
                        await other.poll(0, 1, 0, 0, 1)
                    assert not any(each.done() for each in waiting)
                assert {(await each)[:4] for each in waiting} == {bytes(4)}

        asyncio.run(asyncio.wait_for(scenario(), PATIENT_S))


NATS = {"SHARDD_LIFTBRIDGE_NATS_SERVER_ENABLED": "true", "SHARDD_LIFTBRIDGE_NATS_SERVER_ADDRESS": f"{HOST}:0"}


def test_messages_over_grpc_that_wait_for_the_device_leave_others_served(device: FaultControl, tmp_path: Path) -> None:
    """Each is for a partition of its own: those for one partition wait for each other in the door."""
    with (
        LiftbridgeServer(tmp_path / "data", device.environment | SETTINGS) as server,
        contextlib.ExitStack() as held,
    ):
        others = [held.enter_context(server.client(ROOT)) for _ in range(2)]
        clients = [held.enter_context(server.logged_in("liftbridge")) for _ in range(4)]
        others[0].create("s", CALLS_OF_ADDRESS_MAX)
        others[0].create("warm")
        others[0].publish("warm", b"m")
        for each in others + clients:
            assert each.status("FetchMetadata") == ("OK", "")
        kind = api_messages.PublishRequest
        with hung(device):
            calls: list[Any] = []
            for number in range(CALLS_OF_ADDRESS_MAX):
                client = clients[number % len(clients)]
                publish = client.channel.unary_unary(f"/{api.SERVICE}/Publish")
                asked = kind(stream="s", partition=number, value=b"x")
                calls.append(publish.future(asked.SerializeToString(), timeout=PATIENT_S, metadata=client.metadata))
            wait_until(lambda: doors_requests(server) >= len(calls), "the crowd is at the workers")
            for other in others * 2:
                assert other.status("FetchMetadata") == ("OK", "")
                assert other.status("FetchPartitionMetadata", stream="warm", partition=0) == ("OK", "")
                assert other.read("warm", 1)[0].value == b"m"
            assert not any(each.done() for each in calls)
        assert {each.code().name for each in calls} == {"OK"}


def doors_requests(server: Server) -> int:
    """Those of doors that are under way at the workers."""
    with wire.connect(server.address) as root:
        return sum(each["doors.requests"] for each in figures_of(metrics(root)))


def test_messages_over_nats_that_wait_for_the_device_leave_others_served(device: FaultControl, tmp_path: Path) -> None:
    with LiftbridgeServer(tmp_path / "data", device.environment | SETTINGS | NATS) as server:
        address = tomllib.loads(server.runtime_config.read_text())["liftbridge"]["nats_server"]["address"]
        with server.client(ROOT) as root, server.client(ROOT) as other:
            root.create("s", CROWD)
            root.create("warm")
            root.publish("warm", b"m")
            for each in (root, other):
                assert each.status("FetchMetadata") == ("OK", "")

            async def scenario() -> None:
                async with nats_client(f"nats://{address}") as attacker:
                    with hung(device):
                        for number in range(CROWD):
                            await attacker.publish(f"s.{number}" if number else "s", b"x")
                        await attacker.flush()
                        await asyncio.to_thread(
                            wait_until, lambda: doors_requests(server) >= CROWD, "the crowd is at the workers"
                        )
                        for _ in range(2):
                            async with nats_client(f"nats://{address}") as newcomer:  # its login is asked for
                                await newcomer.flush()
                            for each in (root, other):
                                status = await asyncio.to_thread(each.status, "FetchMetadata")
                                assert status == ("OK", "")
                                assert (await asyncio.to_thread(each.read, "warm", 1))[0].value == b"m"
                        assert doors_requests(server) >= CROWD, "the crowd waits still"

            asyncio.run(asyncio.wait_for(scenario(), PATIENT_S))
