"""`shardd top` against a real server, and its one sentence when there is nothing to show."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from typing import Final

import pytest
from typer.testing import CliRunner, Result

from shardd.cli.main import app
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

_HEAD = struct.Struct("<II")


def top(address: str, *arguments: str, env: dict[str, str] | None = None) -> Result:
    """In this process: what it prints, not how it starts."""
    once = ["top", "--once", "--interval", "0.3", "--address", address, *arguments]
    environment = dict.fromkeys((name for name in os.environ if name.startswith(("SHARDD_", "IGGY_"))), None)
    return CliRunner().invoke(app, once, env=environment | {"COLUMNS": "160"} | (env or {}))


def fill(server: Server) -> None:
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("s"), "t", 4)
        permissions = bytes(4)  # none
        user = wire.str8("plain") + wire.str8("secret") + b"\x01\x00" + permissions
        connection.request(33, user)


SERVER: Final = Serving(fill=fill)


def test_a_table_with_a_row_for_each_shard(server: Server) -> None:
    done = top(server.address)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert server.address in lines[0]
    assert all(name in done.stdout for name in ("shard", "req/s", "p99", "CPU", "pool", "queue"))
    rows = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert rows == [str(shard) for shard in range(len(server.worker_pids()))]


def test_a_line_for_each_job_in_the_background(server: Server) -> None:
    done = top(server.address)
    lines = done.stdout.splitlines()
    first = next(number for number, line in enumerate(lines) if line.split()[:2] == ["job", "running"])
    named = [line.split()[0] for line in lines[first + 1 :] if line.strip()]
    jobs = {row["name"]: row for row in json.loads(top(server.address, "--json").stdout)["jobs"]}
    assert named == sorted(jobs)
    assert jobs.keys() >= {"free_space", "groups", "metadata_compaction", "refusals", "room", "scrubber", "sealing",
                           "survey", "tokens", "trash"}  # fmt: skip
    assert jobs["free_space"]["runs"] > 0 and jobs["trash"]["runs"] > 0
    assert all((row["errors"], row["failing"]) == (0, 0) for row in jobs.values())


def test_json_shows_what_was_sent(server: Server) -> None:
    with wire.connect(server.address) as connection:
        before = json.loads(top(server.address, "--json").stdout)
        for partition in range(4):
            for _ in range(25):
                connection.send("s", "t", wire.to_partition(partition), [wire.message(b"x")] * 2)
        after = json.loads(top(server.address, "--json").stdout)
    for name, expected in (("engine.sends", 100), ("engine.messages_in", 200)):
        first, second = (sum(row["figures"][name] for row in view["shards"]) for view in (before, after))
        assert second - first == expected
    assert after["down"] == []
    assert all(row["pool_capacity_bytes"] > 0 and row["p99_us"] >= row["p50_us"] >= 0 for row in after["shards"])


def test_recovery_is_reported(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Server(tmp_path_factory.mktemp("recovered") / "data", ONE_SHARD) as server:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("s"), "t", 3)
            for partition in range(3):
                connection.send("s", "t", wire.to_partition(partition), [wire.message(b"x" * 1000)])
        for scanned_bytes in (3 * 1064, 0):
            if scanned_bytes:
                server.kill_supervisor()
            else:
                assert server.stop() == 0  # with a checkpoint of everything
            server.start()
            rows = json.loads(top(server.address, "--json").stdout)["shards"]
            total = {name: sum(row["figures"][f"recovery.{name}"] for row in rows) for name in
                     ("partitions", "segments", "scanned_bytes", "refused")}  # fmt: skip
            assert total == {"partitions": 3, "segments": 3, "scanned_bytes": scanned_bytes, "refused": 0}
        assert sum(row["figures"]["recovery.microseconds"] for row in rows) > 0


def test_who_may_not_is_told_so(server: Server) -> None:
    for arguments, env in (
        (("--username", "plain", "--password", "secret"), {}),
        ((), {"SHARDD_USERNAME": "plain", "SHARDD_PASSWORD": "secret"}),
    ):
        done = top(server.address, *arguments, env=env)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == "shardd: user plain may not read the server; it needs the permission read_servers\n"


def test_a_wrong_password(server: Server) -> None:
    done = top(server.address, "--password", "wrong")
    assert done.exit_code == 1
    assert done.stderr == f"shardd: {server.address} refuses the login of iggy (status 42)\n"


@contextlib.contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """A server of the protocol that knows LOGIN_USER alone and gives everybody else status 3, as an Apache Iggy server
    answers an unknown code. `answer`: what is sent instead, whatever is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                connection.settimeout(20)
                while head := connection.recv(8, socket.MSG_WAITALL):
                    length, code = _HEAD.unpack(head)
                    if length > 4:
                        connection.recv(length - 4, socket.MSG_WAITALL)
                    known = _HEAD.pack(0, 4) + bytes(4) if code == 38 else _HEAD.pack(3, 0)
                    connection.sendall(known if answer is None else answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(20)


def test_another_server() -> None:
    with answering(None) as address:
        done = top(address)
    assert (done.exit_code, done.stderr) == (1, f"shardd: what answers at {address} is not a shardd server\n")


def test_something_else_that_listens() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        done = top(address)
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr


def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = top(f"127.0.0.1:{unused.getsockname()[1]}")
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert "Connection refused" in done.stderr
    assert "write host:port" in top("nonsense").stderr


def test_live_on_a_terminal_until_interrupted(server: Server) -> None:
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    command = [sys.executable, "-m", "shardd", "top", "--interval", "0.1", "--address", server.address]
    sizes = {"COLUMNS", "LINES"}  # would count more than the terminal
    env = {name: value for name, value in os.environ.items() if name not in sizes} | {"TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + 120
    try:
        while seen.count(b"req/s") < 3:  # drawn again and again
            assert time.monotonic() < deadline, seen
            if select.select([terminal], [], [], 1.0)[0]:
                seen += os.read(terminal, 65536)
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError):  # the other end is closed
                if select.select([terminal], [], [], 0.05)[0]:
                    seen += os.read(terminal, 65536)
        assert process.returncode == 0
        assert b"Traceback" not in seen
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        os.close(terminal)
