"""Mutated frames of the classic wire at the door for QUIC, and changed packets of handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar, Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from tests.doors.quic_server import QuicClient, QuicServer, connected
from tests.fuzz.contents import remove_all
from tests.fuzz.door_lanes import FuzzedDoor, Work
from tests.fuzz.http_requests import mutated
from tests.fuzz.lanes import FindingError
from tests.fuzz.mutator import Mutator
from tests.fuzz.templates import GROUP, STREAM, TOPIC
from tests.support import wire

LANES: Final = 4
STEPS: Final = 3  # of a connection beside each other
BESIDE: Final = 16  # requests of a step, sent together
REQUESTS_PER_CONNECTION: Final = 2_000
ANSWER_TIMEOUT_S: Final = 120.0
_PACKETS_CHANCE: Final = 0.02  # of a step
_TAIL_CHANCE: Final = 0.02
_LOGIN_CHANCE: Final = 0.9  # of a connection
_KNOWN: Final = frozenset(int(each) for each in Status)


class QuicLane:
    """Connections one after the other; each request is judged by itself."""

    def __init__(self, server: QuicServer, token: str, seed: str, counts: Counter[str]) -> None:
        self._server, self._token, self._counts = server, token, counts
        self._mutator, self._dice = Mutator(f"quic {seed}"), random.Random(seed)

    async def connection(self, work: Work) -> None:
        """One, until it has ended or has had its share."""
        async with connected(self._server.quic_address) as client:
            self._is_known = self._dice.random() < _LOGIN_CHANCE
            if self._is_known:
                await self._login(client)
            async with asyncio.TaskGroup() as steps:
                for _ in range(STEPS):
                    steps.create_task(self._steps(client, work))

    async def _steps(self, client: QuicClient, work: Work) -> None:
        for _ in range(REQUESTS_PER_CONNECTION // STEPS // BESIDE):
            if client.closed_with is not None or work.is_over:
                return
            if self._dice.random() < _PACKETS_CHANCE:
                self._packets()
            frames = [self._frame() for _ in range(BESIDE)]
            streams = client.write_all(frames)
            said = await asyncio.gather(*(self._judge(client, *each) for each in zip(streams, frames, strict=True)))
            work.sent(BESIDE)
            if self._is_known and Status.UNAUTHENTICATED in said and client.closed_with is None:
                await self._login(client)  # an input has logged it out

    async def _login(self, client: QuicClient) -> None:
        with contextlib.suppress(ConnectionError):  # an input has ended the connection
            await client.ask(wire.LOGIN_WITH_TOKEN, wire.str8(self._token))

    def _frame(self) -> bytes:
        return self._mutator.tail() if self._dice.random() < _TAIL_CHANCE else self._mutator.next()

    async def _judge(self, client: QuicClient, stream_id: int, frame: bytes) -> int | None:
        """The status."""
        try:
            status, _ = await client.answer(stream_id, ANSWER_TIMEOUT_S)
        except ConnectionError:
            self._counts["ended"] += 1
            return None
        except TimeoutError:
            raise FindingError(f"no answer within {ANSWER_TIMEOUT_S:.0f} s to {frame.hex()}") from None
        except (AssertionError, struct.error) as error:
            raise FindingError(f"no answer of the wire to {frame.hex()}: {error}") from None
        if status not in _KNOWN:
            raise FindingError(f"status {status} to {frame.hex()}")
        self._counts[str(status)] += 1
        return status

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


class QuicDoor(FuzzedDoor):
    """Its root connections and those without a login send the commands of the classic wire."""

    process_name: ClassVar[str] = "quic"
    lanes: ClassVar[int] = LANES

    def __init__(self, data: Path) -> None:
        self._quic = QuicServer(data)
        super().__init__(self._quic)
        self._token = ""

    def prepare(self) -> None:
        with wire.connect(self._quic.address) as control:
            remove_all(control)
            self._token = control.create_token("fuzz")
            stream = control.create_stream(STREAM)
            control.create_topic(stream, TOPIC, 3)
            place = wire.identifier(STREAM) + wire.identifier(TOPIC)
            control.request(Code.CREATE_CONSUMER_GROUP, place + wire.str8(GROUP))

    async def lane(self, number: int, seed: str, work: Work) -> None:
        lane = QuicLane(self._quic, self._token, seed, work.counts)
        while not work.is_over:
            await lane.connection(work)

    async def ask(self) -> None:
        async with connected(self._quic.quic_address) as client:
            assert await client.login() == 0
            await client.done(wire.PING)
