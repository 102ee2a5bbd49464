"""A device that answers no sync for longer than `server.request_timeout`: what a user's ended requests have left in the
engine, and between the workers, counts for that user, and other users are served at each worker."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.dispatch.door.places import HANDED_POOL_PART, HANDED_USER_SHARE
from shardd.engine import owner
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.namespaces import namespace
from shardd.protocol.topic_settings import SetTopicSettings
from shardd.runtime.bus_link import REQUESTS_IN_FLIGHT_MAX
from tests.crash.fault_control import HANG, FaultControl
from tests.doors.http_server import HttpClient, HttpServer
from tests.doors.test_http_waiting import request
from tests.doors.test_sends_at_a_hung_device import PASSWORD, prepare
from tests.hostile import crowd
from tests.support import wire
from tests.support.stalls import figures_of, metrics, wait_until

WORKERS = 2
PARTITIONS = 16
POOL_BYTES = 32 << 20  # of a worker, the least: a quarter of it is for the records of calls
PAYLOAD_BYTES = 100_000
OF_USER = POOL_BYTES // HANDED_POOL_PART // HANDED_USER_SHARE // PAYLOAD_BYTES  # that the engine has at a time
ROUNDS = WORKERS * (POOL_BYTES // 4 // PAYLOAD_BYTES // OF_USER + 1)  # each login is at the next worker
FLUSHES = REQUESTS_IN_FLIGHT_MAX + 50  # to each worker
OF_ADDRESS = REQUESTS_IN_FLIGHT_MAX // 4  # while no other user has any
SOURCE = "127.0.0.10"
SETTINGS = {
    "SHARDD_SYSTEM_IO_ENGINE": "epoll",  # what goes through a ring cannot be made to hang
    "SHARDD_SERVER_REQUEST_TIMEOUT": "5 s",
    "SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": "2000",
}
SMALL_POOL = {"SHARDD_SYSTEM_MEMORY_POOL_SIZE": f"{WORKERS * POOL_BYTES} B"}


def first_partition_of(worker: int, topic: int) -> int:
    return next(each for each in range(PARTITIONS) if owner(namespace(0, topic, each), WORKERS) == worker)


def message(partition: int, payload: bytes) -> object:
    partitioning = {"kind": "partition_id", "value": base64.b64encode(partition.to_bytes(4, "little")).decode()}
    return {"partitioning": partitioning, "messages": [{"payload": base64.b64encode(payload).decode()}]}


def set_durable(server: HttpServer, topic: str) -> None:
    with wire.connect(server.address) as root:
        root.request(ExtensionCode.SET_TOPIC_SETTINGS, SetTopicSettings("s", topic, (("ack", "durable"),)).encode())


def requests_come(server: HttpServer) -> int:
    """Of doors to the workers: those that are under way, and those that are answered."""
    return sum(figures(server, "doors.requests")) + sum(figures(server, "doors.answered"))


def clients_of_root(server: HttpServer, held: contextlib.ExitStack) -> list[HttpClient]:
    """At each worker: each address is a client of its own there, and the workers have clients in turns."""
    root = held.enter_context(contextlib.closing(server.root()))
    clients = [server.client(root.token, f"127.0.0.{number}") for number in range(2, 2 + WORKERS)]
    for each in clients:
        held.callback(each.close)
        each.done("GET", "/streams")
    return clients


def hang(device: FaultControl) -> None:
    """No sync of topic t ends."""
    device.arm("sync", "/streams/0/topics/0/", 1, 0, for_ever=True, how=HANG)


def figures(server: HttpServer, name: str) -> list[int]:
    """Of the workers."""
    with wire.connect(server.address) as root:
        return [each[name] for each in figures_of(metrics(root))]


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FaultControl]:
    crowd.allow_descriptors(2 * WORKERS * FLUSHES + 500)
    device = FaultControl(tmp_path)
    try:
        yield device
    finally:
        device.disarm()


def one_round(server: HttpServer, token: str, partition: int) -> None:
    """More sends than a user may have in the engine at a time; each has its answer at the end."""
    sends = request("POST", "/streams/s/topics/t/messages", message(partition, bytes(PAYLOAD_BYTES)), token)
    with contextlib.ExitStack() as held:
        waiting = [held.enter_context(server.connect(SOURCE)) for _ in range(OF_USER + 4)]
        for connection in waiting:
            connection.sendall(sends)
        for connection in waiting:
            assert b" 20" not in connection.recv(12), "the device hangs"


def require_sends(other: HttpClient) -> None:
    for worker in range(WORKERS):
        other.done("POST", "/streams/s/topics/warm/messages", message(first_partition_of(worker, 1), b"x"))


def test_sends_that_have_ended_at_a_hung_device_leave_calls_to_other_users(
    device: FaultControl, tmp_path: Path
) -> None:
    """The partitions are of both workers: one of them is another one than that of the login."""
    with (
        HttpServer(tmp_path / "data", device.environment | SETTINGS | SMALL_POOL) as server,
        contextlib.ExitStack() as held,
    ):
        prepare(server, PARTITIONS)
        set_durable(server, "t")
        attacker = held.enter_context(contextlib.closing(server.logged_in("attacker", PASSWORD)))
        others = clients_of_root(server, held)
        hang(device)
        for number in range(ROUNDS):
            one_round(server, attacker.token, first_partition_of(number // WORKERS % WORKERS, 0))
            for other in others:
                require_sends(other)
        assert min(figures(server, "calls.given_up")) > 0, "the device hangs still"
        device.disarm()
        wait_until(lambda: not any(figures(server, "calls.given_up")), "late answers give places back")
        for worker in range(WORKERS):
            attacker.done("POST", "/streams/s/topics/t/messages", message(first_partition_of(worker, 0), b"x"))


def test_flushes_that_wait_for_a_hung_device_leave_places_between_workers(device: FaultControl, tmp_path: Path) -> None:
    with HttpServer(tmp_path / "data", device.environment | SETTINGS) as server, contextlib.ExitStack() as held:
        prepare(server, PARTITIONS)
        attacker = held.enter_context(contextlib.closing(server.logged_in("attacker", PASSWORD)))
        others = clients_of_root(server, held)
        hang(device)
        before = requests_come(server)
        for worker in range(WORKERS):
            partition = first_partition_of(worker, 0)
            others[0].done("POST", "/streams/s/topics/t/messages", message(partition, b"not on the device"))
            flush = request("GET", f"/streams/s/topics/t/messages/flush/{partition}/true", None, attacker.token)
            for _ in range(FLUSHES):
                held.enter_context(server.connect(SOURCE)).sendall(flush)
        wait_until(lambda: requests_come(server) >= before + WORKERS * FLUSHES, "the flushes are at the workers")
        for other in others:
            for worker in range(WORKERS):
                partition = first_partition_of(worker, 1)
                other.done("GET", f"/streams/s/topics/warm/messages/flush/{partition}/false")
                stored = other.get(f"/streams/s/topics/warm/consumer-offsets?consumer_id=1&partition_id={partition}")
                assert stored.status == 404, "nothing is stored"
        assert max(figures(server, "bus.requests_out")) >= OF_ADDRESS, "the device hangs still"
