"""Strangers of one network that never end their handshakes hold up no handshake of another network."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import pytest

from shardd.doors.openings import Openings
from shardd.doors.quic.connection import HANDSHAKE_S
from shardd.doors.quic.handshakes import WAITING_MAX, Handshakes
from tests.unit.virtual_time import run_virtually, virtual_loop

HOSTILE: Final = ("192.0.2.1", 1)
HOSTILE_STEP_S: Final = 0.0086  # 8 KiB of frames without effect: more than a stranger may send now
STEP_S: Final = 0.0026
NEW_ONES: Final = 40  # of the hostile network, every 100 ms
CLIENTS: Final = 10
LOOK_S: Final = 0.05
ROUND_TRIP_S: Final = 0.03


class Peer:
    """A connection whose handshake is not over."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.began_s = virtual_loop().time()
        self.handled = 0

    @property
    def is_late(self) -> bool:
        return virtual_loop().time() - self.began_s >= HANDSHAKE_S


class Door:
    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.handshakes = Handshakes[Peer](self._receive, Openings(lambda: self.cpu_s))

    def _receive(self, peer: Peer, data: bytes, addr: tuple[str, int]) -> None:
        took_s = HOSTILE_STEP_S if peer.host == HOSTILE[0] else STEP_S
        self.cpu_s += took_s
        virtual_loop().work(took_s)
        peer.handled += 1

    async def attack(self, connections: int) -> None:
        waiting: list[Peer] = []
        while True:
            for late in [each for each in waiting if each.is_late]:
                waiting.remove(late)
                self.handshakes.leave(late)
            for _ in range(min(NEW_ONES, connections - len(waiting))):
                waiting.append(Peer(HOSTILE[0]))
            for each in waiting:
                for _ in range(WAITING_MAX):
                    self.handshakes.enter(each, b"x", HOSTILE)
            await asyncio.sleep(0.1)

    async def shake_hands(self, host: str) -> float | None:
        """Two flights; how long they took. None: too long."""
        peer = Peer(host)
        for flight in (1, 2):
            self.handshakes.enter(peer, b"x", (host, 1))
            while peer.handled < flight:
                if peer.is_late:
                    self.handshakes.leave(peer)
                    return None
                await asyncio.sleep(LOOK_S)
            await asyncio.sleep(ROUND_TRIP_S)
        return virtual_loop().time() - peer.began_s


@pytest.mark.parametrize("connections", [0, 300])
def test_handshakes_beside_strangers_of_one_network_that_end_none_are_over_in_time(connections: int) -> None:
    async def scenario() -> list[float | None]:
        door = Door()
        attack = asyncio.create_task(door.attack(connections))
        await asyncio.sleep(HANDSHAKE_S + 2.0)
        clients = []
        for number in range(CLIENTS):
            clients.append(asyncio.create_task(door.shake_hands(f"198.51.100.{number}")))
            await asyncio.sleep(1.0)
        took_s = await asyncio.gather(*clients)
        attack.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await attack
        assert len(door.handshakes._waiting) <= connections
        waiting = sum(len(each.entries) for each in door.handshakes._openings._waiting.values())
        assert waiting <= connections, "the line keeps connections that have ended"
        return took_s

    for took_s in run_virtually(scenario()):
        assert took_s is not None and took_s < 1.0
