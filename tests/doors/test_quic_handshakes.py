"""Whole handshakes without end at the door for QUIC with an RSA key of 4,096 bits, from an address that is real: the
door stays, connections that are open go on, and handshakes of others end."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import multiprocessing.queues
import os
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

import pytest

from tests.doors.quic_server import QuicServer, connected
from tests.support import wire
from tests.support.certificates import Authority

ATTACKER: Final = "127.0.0.3"
OTHER: Final = "127.0.0.2"
AT_ONCE: Final = 50
HANDSHAKES: Final = 100  # of the flood, before the others are judged
NEWCOMERS: Final = 3
FLOOD_S: Final = 120.0  # at most, on a busy machine


async def knock(address: tuple[str, int], count: object, stop: Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with connected(address, ATTACKER):
                with count.get_lock():  # type: ignore[attr-defined]
                    count.value += 1  # type: ignore[attr-defined]


def flood(address: tuple[str, int], count: object, stop: Event) -> None:
    """A process of its own: so many handshakes at a time, each of another connection."""
    os.nice(19)  # it attacks the door, not the machine

    async def all_of_them() -> None:
        knocking = [asyncio.create_task(knock(address, count, stop)) for _ in range(AT_ONCE)]
        await asyncio.to_thread(stop.wait)
        for each in knocking:
            each.cancel()

    asyncio.run(all_of_them())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[QuicServer]:
    certificate = Authority.make(tmp_path).sign("large", names="DNS:localhost", algorithm="rsa:4096")
    files = {"CERT_FILE": str(certificate), "KEY_FILE": str(certificate.with_suffix(".key"))}
    env = {f"SHARDD_QUIC_CERTIFICATE_{name}": value for name, value in files.items()}
    with QuicServer(tmp_path / "data", env) as running:
        yield running


def test_a_flood_of_whole_handshakes_leaves_the_door_and_its_clients_alone(server: QuicServer) -> None:
    door = server.door()
    many = multiprocessing.get_context("spawn")
    stop, count = many.Event(), many.Value("q", 0)
    flooders = [many.Process(target=flood, args=(server.quic_address, count, stop), daemon=True) for _ in range(2)]

    async def scenario() -> None:
        until_s, asked, came = time.monotonic() + FLOOD_S, 0, 0
        async with connected(server.quic_address, OTHER) as client:
            assert await client.login() == 0
            for each in flooders:
                each.start()
            while count.value < HANDSHAKES or came < NEWCOMERS:
                assert time.monotonic() < until_s, f"{count.value} handshakes of the flood, {came} of newcomers"
                assert (await client.ask(wire.PING))[0] == 0
                asked += 1
                if came < NEWCOMERS and count.value >= came * HANDSHAKES // NEWCOMERS:
                    async with connected(server.quic_address, OTHER) as newcomer:
                        assert (await newcomer.ask(wire.PING))[0] == 0
                    came += 1
        print(f"{asked} questions and {came} handshakes of others beside {count.value} handshakes of the flood")

    try:
        asyncio.run(scenario())
    finally:
        stop.set()
        for each in flooders:
            if each.pid is not None:
                each.join(10.0)
                each.kill()
    assert server.door().pid == door.pid
    assert "gives no sign of life" not in server.log()
