"""Nobody but the workers of a server talks to its workers: not other users, not other programs of the same user."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import argon2
import msgspec
import psutil
import pytest

from shardd.metadata.commands import CreateUser, Ref, encode_command
from shardd.security.root import ROOT_PERMISSIONS
from tests.support import wire
from tests.support.other_user import as_stranger, needs_root
from tests.support.server import Server
from tests.support.wire import Wire

TWO_SHARDS = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}
SILENT_CONNECTIONS = 1500
MODULES = "json, os, stat, sys, time, zmq"
# Tries every socket of this server that a name or a descriptor leads to, with and without a name and a key.
INTRUDER = """
pids, names, messages = map(json.loads, sys.argv[1:])
messages = [bytes.fromhex(each) for each in messages]
for pid in pids:
    try:
        paths = [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
        names += [path for path in paths if stat.S_ISSOCK(os.stat(path).st_mode)]
    except OSError:
        pass
context, poller, sockets = zmq.Context(), zmq.Poller(), []
for name in dict.fromkeys(names):
    for id_ in (None, b"shard-1.1", b"shard-0.1"):
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        if id_ is not None:
            dealer.setsockopt(zmq.PLAIN_USERNAME, id_)
            dealer.setsockopt(zmq.PLAIN_PASSWORD, b"0" * 64)
        dealer.connect("ipc://" + name)
        for number in range(0, len(messages), 2):
            dealer.send_multipart(messages[number : number + 2])
        poller.register(dealer, zmq.POLLIN)
        sockets.append(dealer)
answers, end = 0, time.monotonic() + 1.0
while time.monotonic() < end:
    for dealer, _ in poller.poll(100):
        dealer.recv_multipart()
        answers += 1
print(json.dumps([len(names), answers]))
"""


def intruder_messages() -> list[str]:
    """HELLO as any replica says it, and the change that would make the intruder root: frames as hexadecimal numbers."""
    command = CreateUser("intruder", argon2.PasswordHasher().hash("intruder"), True, ROOT_PERMISSIONS)
    encode = msgspec.msgpack.encode
    requests = [
        ("metadata.hello", [0, bytes(32)]),
        ("metadata.hello", [1, 0, bytes(32)]),  # with the number of the shard
        ("metadata.submit", [4711, Ref(0, 1), encode_command(command)]),
        ("process", None),
    ]
    frames = []
    for number, (method, payload) in enumerate(requests):
        frames += [encode([number, method]), encode(payload)]
    return [frame.hex() for frame in frames]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Deep down: the address of a unix socket has room for 107 bytes."""
    deep = tmp_path_factory.mktemp("trust") / ("d" * 100) / ("e" * 100) / "data"
    deep.parent.mkdir(parents=True)
    with Server(deep, TWO_SHARDS) as running:
        yield running


def unix_socket_names(pids: list[int]) -> list[str]:
    """Of all sockets of these processes, as the kernel lists them."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [row[7] for row in rows if len(row) > 7 and row[6] in inodes]


def intrude(server: Server, become: Callable[..., list[str]]) -> int:
    """Lets an intruder try everything; nothing may happen. How many sockets he has found."""
    pids = [server.pid, *server.worker_pids()]
    names = [name for name in unix_socket_names(pids) if name.startswith("@")]
    arguments = [msgspec.json.encode(each).decode() for each in (pids, names, intruder_messages())]
    command = become(MODULES, INTRUDER, *arguments)
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    found, answers = msgspec.json.decode(said, type=tuple[int, int])
    assert answers == 0, f"{answers} answers on {found} sockets"
    with wire.connect(server.address) as connection:
        connection.create_stream(f"still served {time.monotonic_ns()}")
    with Wire(server.address) as connection, pytest.raises(wire.StatusError):
        connection.login("intruder", "intruder")
    return found


@needs_root
def test_another_user_is_refused_by_every_worker(server: Server) -> None:
    assert intrude(server, as_stranger) == 0


def test_the_same_user_without_a_key_is_refused_by_every_worker(server: Server) -> None:
    def same(modules: str, program: str, *arguments: str) -> list[str]:
        return [sys.executable, "-c", f"import {modules}\n{program}", *arguments]

    assert intrude(server, same) > 0, "the intruder found no socket at all"
    assert "the bus refuses a connection of" in server.log()


def test_no_socket_of_a_server_can_be_found_by_a_name(server: Server) -> None:
    names = unix_socket_names([server.pid, *server.worker_pids()])
    assert len(names) >= 2
    assert not [name for name in names if not name.startswith("/proc/self/fd/")]
    assert not [path for path in server.data_dir.iterdir() if path.is_socket() or path.name == ".sockets"]


def places(pid: int) -> list[str]:
    """Ways to the sockets of the workers, for who may look into the descriptors of the supervisor."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(link.stat().st_mode) and not str(link.readlink()).startswith("socket:"):
                found.append(str(link))
    return found


def test_connections_that_prove_nothing_keep_nobody_from_being_served(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        ways = places(server.pid)
        assert len(ways) == 2
        for number in range(SILENT_CONNECTIONS):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.connect(ways[number % 2])
            if number % 3:
                silent.send(os.urandom(10 * (number % 3)))
        for round_ in range(4):  # the kernel deals connections over the shards
            connection = stack.enter_context(wire.connect(server.address, timeout_s=30.0))
            stream = connection.create_stream(f"s{round_}")
            connection.create_topic(stream, "t", 2)
            for partition in (0, 1):
                connection.send(stream, "t", wire.to_partition(partition), [wire.message(b"x")])
        assert "is down" not in server.log()


@pytest.mark.io_engine
def test_replaced_workers_are_trusted_again(tmp_path: Path) -> None:
    with Server(tmp_path / "data", TWO_SHARDS) as server:
        for pid in server.worker_pids():
            psutil.Process(pid).kill()
        deadline = time.monotonic() + 20
        while server.log().count("is back (process") < 2:
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.02)
        with wire.connect(server.address) as connection:
            connection.create_stream("after")
        assert "the bus refuses" not in server.log()
        assert server.stop() == 0, server.log()
