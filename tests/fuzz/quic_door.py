"""Mutated frames of the classic wire at the door for QUIC, and changed packets of handshakes."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from shardd.protocol.errors import Status
from tests.doors.quic_server import QuicClient, QuicServer, connected
from tests.fuzz.door_lanes import Work
from tests.fuzz.door_watch import DoorWatch
from tests.fuzz.http_requests import mutated
from tests.fuzz.lanes import FindingError
from tests.fuzz.mutator import Mutator
from tests.support import wire

LANES: Final = 4
BESIDE: Final = 12  # requests of a connection
REQUESTS_PER_CONNECTION: Final = 2_000
ANSWER_TIMEOUT_S: Final = 120.0
GROWTH_MAX_BYTES: Final = 256 << 20
_PACKETS_CHANCE: Final = 0.02  # of a step
_TAIL_CHANCE: Final = 0.02
_LOGIN_CHANCE: Final = 0.9  # of a connection
_KNOWN: Final = frozenset(int(each) for each in Status)


class QuicLane:
    """Connections one after the other; each request is judged by itself."""

    def __init__(self, server: QuicServer, seed: int, counts: Counter[str]) -> None:
        self._server, self._counts = server, counts
        self._mutator, self._dice = Mutator(f"quic {seed}"), random.Random(seed)

    async def connection(self, work: Work) -> None:
        """One, until it has ended or has had its share."""
        async with connected(self._server.quic_address) as client:
            if self._dice.random() < _LOGIN_CHANCE:
                assert await client.login() == 0
            for _ in range(REQUESTS_PER_CONNECTION // BESIDE):
                if client.closed_with is not None or work.is_over:
                    return
                if self._dice.random() < _PACKETS_CHANCE:
                    self._packets()
                frames = [self._frame() for _ in range(BESIDE)]
                await asyncio.gather(*(self._ask(client, each) for each in frames))
                work.sent(BESIDE)

    def _frame(self) -> bytes:
        return self._mutator.tail() if self._dice.random() < _TAIL_CHANCE else self._mutator.next()

    async def _ask(self, client: QuicClient, frame: bytes) -> None:
        try:
            status, _ = await client.answer(client.write(frame), ANSWER_TIMEOUT_S)
        except ConnectionError:
            self._counts["ended"] += 1
            return
        except TimeoutError:
            raise FindingError(f"no answer within {ANSWER_TIMEOUT_S:.0f} s to {frame.hex()}") from None
        except (AssertionError, struct.error) as error:
            raise FindingError(f"no answer of the wire to {frame.hex()}: {error}") from None
        if status not in _KNOWN:
            raise FindingError(f"status {status} to {frame.hex()}")
        self._counts[str(status)] += 1

    def _packets(self) -> None:
        """First packets of a client, some changed; nobody waits for what they get."""
        configuration = QuicConfiguration(is_client=True, verify_mode=ssl.CERT_NONE, server_name="localhost")
        quic = QuicConnection(configuration=configuration)
        quic.connect(self._server.quic_address, now=time.monotonic())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            for data, address in quic.datagrams_to_send(now=time.monotonic()):
                for _ in range(20):
                    udp.sendto(mutated(data, self._dice)[:60_000], address)
                    self._counts["packets"] += 1


async def fuzz_quic(data: Path, inputs: int, seed: int, progress: Callable[[int], None]) -> Counter[str]:
    """How often each status was answered. FindingError."""
    counts = Counter[str]()
    with QuicServer(data) as server:
        with wire.connect(server.address) as tcp:
            tcp.create_topic(tcp.create_stream("s"), "t", 1)
        work = Work(inputs, DoorWatch(server, server.door(), GROWTH_MAX_BYTES), progress)

        async def run(number: int) -> None:
            lane = QuicLane(server, seed * LANES + number, counts)
            while not work.is_over:
                await lane.connection(work)

        await work.run(LANES, run)
    counts["inputs"] = work.done
    return counts
