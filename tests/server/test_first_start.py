"""The first start of a server: whoever connects as soon as it can is served as by any later one, and the password of
the first user is known where it was given and nowhere else."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from shardd.config.root_user import RootUser
from shardd.runtime.password_hash import verify_password
from shardd.server.first_user import FirstUser
from tests.support import wire
from tests.support.memory import memory_holds
from tests.support.ports import free_port
from tests.support.server import Server

LATE_FIRST_USER = """
import os, sys

def wait():
    import asyncio
    from shardd.worker import roles

    make = roles.ensure_root

    async def late(*parts):
        open({asked!r}, "w").close()
        while not os.path.exists({go!r}):
            await asyncio.sleep(0.05)
        return await make(*parts)

    roles.ensure_root = late

if "shardd.cli.template" in sys.orig_argv:
    os.register_at_fork(after_in_child=wait)
"""
STARTS = 2
QUIET_S = 0.5
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
            wait_until(server.runtime_config.exists, server)
        finally:
            server.stop()


def test_no_connection_is_accepted_before_the_first_user_is_there(tmp_path: Path) -> None:
    """The kernel completes the handshake; no worker takes the connection, and nothing is answered until then."""
    hooks, asked, go = tmp_path / "hooks", tmp_path / "asked", tmp_path / "go"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(LATE_FIRST_USER.format(asked=str(asked), go=str(go)))
    address = f"127.0.0.1:{free_port()}"
    environment = {
        "SHARDD_TCP_ADDRESS": address,
        "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
        "PYTHONPATH": str(hooks),
    }
    server, connections = Server(tmp_path / "data", environment), list[wire.Wire]()
    server.spawn()
    try:
        wait_until(asked.exists, server)
        connections += [first_connection(address) for _ in range(CONNECTIONS)]
        for each in connections:
            each.send_bytes(wire.frame(wire.LOGIN_USER, wire.str8("iggy") + wire.str8("iggy") + bytes(8)))
        assert not select.select([each.socket for each in connections], [], [], QUIET_S)[0], "it answers"
        assert accepted(server, address) == []
        go.touch()
        assert [each.reply()[0] for each in connections] == [0] * CONNECTIONS
        assert len(accepted(server, address)) == CONNECTIONS, "the control"
    finally:
        go.touch()
        for each in connections:
            each.close()
        server.stop()


def accepted(server: Server, address: str) -> list[str]:
    """Connections to the address that processes of the server have."""
    port, found = int(address.rpartition(":")[2]), []
    for process in [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [
                f"{process.pid}: {each.raddr}"
                for each in process.net_connections("tcp")
                if each.status == psutil.CONN_ESTABLISHED and each.laddr.port == port
            ]
    return found


def wait_until(condition: Callable[[], bool], server: Server) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.01)


def test_workers_are_told_the_hash_of_the_first_password_alone(tmp_path: Path) -> None:
    secret = "a password that nobody else has 4402"
    env = {
        "SHARDD_ROOT_USERNAME": "admin",
        "SHARDD_ROOT_PASSWORD": secret,
        "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
    }
    with Server(tmp_path / "data", env=env, arguments=()) as server:
        assert memory_holds(server.pid, secret.encode())  # the search finds what is there
        assert not [pid for pid in server.worker_pids() if memory_holds(pid, secret.encode())]
        with wire.Wire(server.address) as connection:
            login = wire.frame(wire.LOGIN_USER, wire.str8("admin") + wire.str8(secret) + bytes(8))
            connection.send_bytes(login)
            assert connection.reply()[0] == 0


def test_a_later_start_computes_nothing_and_leaves_it_to_whoever_needs_it() -> None:
    user = RootUser("iggy", "a password", False, "test")
    assert FirstUser(user, beside=False).password_hash() == ""
    first = FirstUser(user, beside=True)
    assert verify_password(first.password_hash(), "a password")
    assert first.password_hash() == first.password_hash()


def test_without_a_thread_for_it_the_server_starts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert FirstUser(RootUser("iggy", "a password", False, "test"), beside=True).password_hash() == ""
