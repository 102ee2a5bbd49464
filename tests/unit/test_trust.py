"""Who is let in by a worker, and who is not any more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from shardd.runtime import bus as bus_module
from shardd.runtime import bus_link, bus_sockets
from shardd.runtime.bus import Bus, BusError, RemoteError, RequestTimeoutError, Senders
from shardd.runtime.trust import Trust, place_path
from shardd.server.introductions import DIRECTORY_NAME, Introductions, make_private_listeners
from tests.support.bus_peers import BusPeers
from tests.support.other_user import as_stranger, needs_root

TEST_TIMEOUT_S = 30


def run(scenario: Callable[[BusPeers], Coroutine[Any, Any, None]], shards: int = 2) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            with BusPeers(shards) as peers:
                try:
                    await scenario(peers)
                finally:
                    await peers.close_buses()

    asyncio.run(bounded())


async def who(sender: int, payload: bytes) -> bytes:
    return b"%d" % sender


async def serving(bus: Bus, senders: Senders = Senders.ANY_SHARD) -> Bus:
    bus.serve("who", senders, who)
    await bus.start()
    return bus


async def unanswered(bus: Bus) -> bool:
    try:
        await bus.request(0, "who", b"", timeout_s=0.3)
    except RequestTimeoutError:
        return True
    return False


def test_a_sender_is_named_by_its_proof() -> None:
    async def scenario(peers: BusPeers) -> None:
        buses = [await serving(peers.bus(shard)) for shard in range(3)]
        for bus in buses:
            for target in range(3):
                assert await bus.request(target, "who", b"") == b"%d" % bus.shard

    run(scenario, 3)


def test_a_key_ends_with_its_process() -> None:
    async def scenario(peers: BusPeers) -> None:
        bus = await serving(peers.bus(0))
        place = peers.place(1)
        first = peers.another_bus(place)
        await first.start()
        assert await first.request(0, "who", b"") == b"1"
        peers.ended(1)
        assert await unanswered(first), "what was let in with the old key"
        await first.close()
        next_one = peers.bus(1)
        await next_one.start()
        assert await next_one.request(0, "who", b"") == b"1"
        await next_one.close()
        again = peers.another_bus(place)
        await again.start()
        assert await unanswered(again), "a new connection with the old key"
        assert bus.figures()["refused"] == 2

    run(scenario)


def test_a_request_goes_only_to_the_process_that_it_was_meant_for() -> None:
    """A connection that comes to life again by itself must not reach the successor: the request is sent again."""

    async def scenario(peers: BusPeers) -> None:
        bus = peers.bus(0)
        await bus.start()
        request = asyncio.create_task(bus.request(1, "who", b""))
        await asyncio.sleep(0.05)
        peers.ended(1, tell=False)
        successor = await serving(peers.bus(1))
        await asyncio.sleep(0.2)
        assert not request.done()
        assert successor.figures()["refused"] == 1
        peers.introduce(1)
        bus.peer_down(1)
        bus.peer_up(1)
        assert await request == b"0"

    run(scenario)


def test_who_proves_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_sockets, "HANDSHAKE_TIMEOUT_MS", 200)

    async def scenario(peers: BusPeers) -> None:
        await serving(peers.bus(0))
        place = place_path(peers.place(1).trust.places["shard-0"])
        for greeting in (b"", b"\xff", os.urandom(64), b"GET / HTTP/1.1\r\n\r\n"):
            reader, writer = await asyncio.open_unix_connection(place)
            writer.write(greeting)
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1000):
                    pass
            writer.close()
        peer = await serving(peers.bus(1))
        assert await peer.request(0, "who", b"") == b"1"

    run(scenario)


def test_keys_are_of_one_pair_and_one_incarnation(tmp_path: Path) -> None:
    introductions = Introductions(make_private_listeners(tmp_path, 3))
    keys = {introductions.key(a, b).key for a in range(3) for b in range(3) if a != b}
    assert len(keys) == 3
    assert introductions.key(0, 1).key == introductions.key(1, 0).key
    introductions.ended(1)
    later = {introductions.key(1, reader).key for reader in (0, 2)}
    assert len(keys | later) == 5
    assert {key.key for key in introductions.inheritance(1).keys} == later
    assert not [key for key in later | keys if key in repr(introductions.inheritance(1))]
    introductions.close()


def test_who_is_refused(tmp_path: Path) -> None:
    introductions = Introductions(make_private_listeners(tmp_path, 2))
    uid, key = os.geteuid(), introductions.key(0, 1).key
    trust = Trust(introductions.inheritance(0))
    assert trust.refusal(uid, "shard-1.1", key) is None
    assert trust.refusal(uid + 1, "shard-1.1", key) == f"user {uid + 1} is another user"
    assert trust.refusal(uid, "shard-1.1", "") == trust.refusal(uid, "shard-1.1", "é") == "the key is wrong"
    for unknown in ("shard-0.1", "shard-1.2", "shard-1", "", "shard-2.1", "x" * 100_000):
        assert trust.refusal(uid, unknown, key) == "no such process"
    introductions.ended(1)
    trust.renew(introductions.key(1, 0))
    assert trust.refusal(uid, "shard-1.1", key) == "no such process"
    assert trust.refusal(uid, "shard-1.2", key) == "the key is wrong"
    assert trust.sender("shard-1.1") is None
    introductions.close()


def test_sockets_have_no_name_whatever_their_directory(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 200) / ("e" * 200)
    deep.mkdir(parents=True)
    left_over = deep / DIRECTORY_NAME
    left_over.mkdir()
    (left_over / "0").write_text("of a killed server")
    made = [*make_private_listeners(deep, 2), *make_private_listeners(tmp_path / "no such directory", 1)]
    assert not list(deep.iterdir())
    for each in made:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(place_path(each.place_fd))
            each.listener.accept()[0].close()
        each.close()


def test_a_directory_that_is_a_trap_is_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("kept")
    (tmp_path / DIRECTORY_NAME).symlink_to(elsewhere)
    for each in make_private_listeners(tmp_path, 1):
        each.close()
    assert (elsewhere / "file").read_text() == "kept"


@needs_root
def test_another_user_cannot_even_connect(tmp_path: Path) -> None:
    (listener,) = make_private_listeners(tmp_path, 1)
    program = """
for path in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as client:
        print(client.connect_ex(path), end=" ")
"""
    ways = place_path(listener.place_fd), f"/proc/{os.getpid()}/fd/{listener.place_fd}"
    command = as_stranger("socket, sys", program, *ways)
    inherited = subprocess.run(command, pass_fds=[listener.place_fd], capture_output=True, text=True, check=True)
    assert inherited.stdout.split() == ["13", "13"]  # EACCES
    listener.close()


def test_a_message_that_is_too_large_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bus_module, bus_link):
        monkeypatch.setattr(module, "MESSAGE_BYTES_MAX", 1000)

    async def large(sender: int, payload: bytes) -> bytes:
        return bytes(1001)

    async def scenario(peers: BusPeers) -> None:
        server, client = await serving(peers.bus(0)), peers.bus(1)
        server.serve("large", Senders.ANY_SHARD, large)
        await client.start()
        with pytest.raises(BusError, match="1001 bytes are too many"):
            await client.request(0, "who", bytes(1001))
        with pytest.raises(RemoteError, match="an answer of 1001 bytes is too large"):
            await client.request(0, "large", b"")
        assert await client.request(0, "who", bytes(1000)) == b"1"

    run(scenario)
