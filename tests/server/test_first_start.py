"""The first start of a server: whoever connects as soon as it can is served as by any later one."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support import wire
from tests.support.ports import free_port
from tests.support.server import Server

STARTS = 2
CONNECTIONS = 10  # the kernel spreads them over the listeners of all shards
WAIT_S = 30.0


def first_connection(address: str) -> wire.Wire:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return wire.Wire(address, timeout_s=WAIT_S)
        except ConnectionRefusedError:  # the sockets do not listen yet
            assert time.monotonic() < deadline
            time.sleep(0.005)


def log_in_at_once(address: str) -> list[int]:
    """Statuses of logins on connections that were made as soon as the address could be connected to."""
    connections = [first_connection(address)]
    try:
        connections += [wire.Wire(address, timeout_s=WAIT_S) for _ in range(CONNECTIONS - 1)]
        for each in connections:
            each.send_bytes(wire.frame(wire.LOGIN_USER, wire.str8("iggy") + wire.str8("iggy") + bytes(8)))
        return [each.reply()[0] for each in connections]
    finally:
        for each in connections:
            each.close()


def test_the_right_root_password_is_never_refused_at_a_first_start(tmp_path: Path) -> None:
    for number in range(STARTS):
        address = f"127.0.0.1:{free_port()}"
        environment = {"SHARDD_TCP_ADDRESS": address, "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}
        server = Server(tmp_path / f"data{number}", environment)
        server.spawn()
        try:
            assert log_in_at_once(address) == [0] * CONNECTIONS
            deadline = time.monotonic() + WAIT_S
            while not server.runtime_config.exists():
                assert time.monotonic() < deadline, server.log()
                time.sleep(0.01)
        finally:
            server.stop()
