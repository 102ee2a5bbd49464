"""A device that answers no sync, and several users whose sends wait for it at both workers: users who come later send
at once to topics that do not wait for it, and send there again when the others have left."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.protocol.account_requests import CreateUserRequest
from shardd.protocol.codes import Code
from tests.crash.fault_control import FaultControl
from tests.doors.http_server import HttpServer
from tests.doors.test_given_up_at_a_hung_device import (
    OF_USER,
    PARTITIONS,
    PAYLOAD_BYTES,
    SETTINGS,
    SMALL_POOL,
    WORKERS,
    clients_of_root,
    first_partition_of,
    hang,
    message,
    requests_come,
    set_durable,
)
from tests.doors.test_http_waiting import answered, request
from tests.doors.test_sends_at_a_hung_device import PASSWORD, RIGHTS, prepare
from tests.hostile import crowd
from tests.support import wire
from tests.support.stalls import wait_until

USERS = ("first", "second")
SOURCES = [f"127.0.0.{number}" for number in range(10, 10 + WORKERS)]  # a login at each: the workers have them in turns
FURTHER_BYTES = 3 * PAYLOAD_BYTES  # of a send of a further user: more than one that waits leaves free of a half
PATIENT = {"SHARDD_SERVER_REQUEST_TIMEOUT": "5 m"}


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FaultControl]:
    crowd.allow_descriptors(2 * len(USERS) * WORKERS * OF_USER + 500)
    device = FaultControl(tmp_path)
    try:
        yield device
    finally:
        device.disarm()


def test_sends_of_several_users_at_a_hung_device_leave_room_to_further_users(
    device: FaultControl, tmp_path: Path
) -> None:
    settings = device.environment | SETTINGS | SMALL_POOL | PATIENT
    with HttpServer(tmp_path / "data", settings) as server, contextlib.ExitStack() as held:
        prepare(server, PARTITIONS)
        set_durable(server, "t")
        with wire.connect(server.address) as root:
            for user in USERS:
                root.request(Code.CREATE_USER, CreateUserRequest(user, PASSWORD, 1, RIGHTS).encode())
        others = clients_of_root(server, held)
        attackers = [held.enter_context(contextlib.closing(server.logged_in(user, PASSWORD))) for user in USERS]
        hang(device)
        before, waiting = requests_come(server), list[socket.socket]()
        body = message(first_partition_of(0, 0), bytes(PAYLOAD_BYTES))
        for attacker in attackers:
            sends = request("POST", "/streams/s/topics/t/messages", body, attacker.token)
            for source in SOURCES:
                for _ in range(OF_USER):
                    waiting.append(held.enter_context(server.connect(source)))
                    waiting[-1].sendall(sends)
        wait_until(lambda: requests_come(server) >= before + len(waiting), "the sends are at the workers")
        for other in others:
            for worker in range(WORKERS):
                sent_there = message(first_partition_of(worker, 1), bytes(FURTHER_BYTES))
                other.done("POST", "/streams/s/topics/warm/messages", sent_there)
        assert answered(waiting) == 0, "the device hangs still"
        device.disarm()
        for connection in waiting:
            assert b" 20" in connection.recv(12), "what waited has its turn when others leave"
