"""GET_SNAPSHOT of a real server: the log lines of all its processes, the supervisor's too, and no secret."""

from __future__ import annotations

import io
import os
import re
import signal
import time
import zipfile

from shardd.protocol.account_requests import GetSnapshot, SnapshotCompression, SnapshotType
from tests.conftest import MakeServer
from tests.support import wire
from tests.support.server import Server

GET_SNAPSHOT = 11
WAIT_S = 30.0


def server_logs(connection: wire.Wire) -> str:
    request = GetSnapshot(SnapshotCompression.STORED, (SnapshotType.SERVER_LOGS,)).encode()
    with zipfile.ZipFile(io.BytesIO(connection.request(GET_SNAPSHOT, request))) as archive:
        return archive.read("server_logs.txt").decode()


def generated_password(server: Server) -> str:
    deadline = time.monotonic() + WAIT_S
    while not (found := re.search(r"Generated root user password: (\S+)", server.log())):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found[1]


def test_a_snapshot_has_the_lines_of_the_supervisor_and_no_password(make_server: MakeServer) -> None:
    server = make_server({"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}, arguments=())
    password = generated_password(server)
    with wire.Wire(server.address) as connection:
        connection.login("iggy", password)
        fresh = server_logs(connection)
        assert re.search(r"^\S+ INFO supervisor shardd .*, ready$", fresh, re.MULTILINE), "the line of the start"
        victim = server.running_workers()[1]
        os.kill(victim, signal.SIGSTOP)
        deadline = time.monotonic() + WAIT_S
        while "is back" not in server.log():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    with wire.Wire(server.address) as connection:
        connection.login("iggy", password)
        later = server_logs(connection)
    assert f"supervisor shard 1 (process {victim}) gives no sign of life; it is replaced" in later
    assert "supervisor shard 1 is back" in later
    assert later.splitlines() == sorted(later.splitlines()), "in the order of their times"
    assert password not in later
