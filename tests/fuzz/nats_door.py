"""Mutated requests at the NATS server of the door for Liftbridge: each gets what the parser says, or the connection
ends with the error that the parser tells."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tomllib
from collections import Counter
from pathlib import Path
from typing import ClassVar, Final

from tests.doors.liftbridge_server import ANONYMOUS, LiftbridgeServer  # first: it sets how grpc is loaded

from shardd.protocol.account_requests import CreateUserRequest  # isort: skip
from shardd.protocol.codes import Code
from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.envelope import encode_publish
from tests.fuzz.door_lanes import FuzzedDoor, Work
from tests.fuzz.lanes import FindingError
from tests.fuzz.nats_requests import PAYLOAD_BYTES_MAX, Conversation, Expected, NatsRequests, connect_line
from tests.support import wire

LANES: Final = 8
BATCH: Final = 24
BATCHES_PER_CONNECTION: Final = 50
ANSWER_TIMEOUT_S: Final = 120.0
_CUT_CHANCE: Final = 0.3  # of the last input of a batch
_LINE_MAX: Final = 1 << 17
_SETTINGS: Final = {
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ENABLED": "true",
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ADDRESS": "127.0.0.1:0",
    "SHARDD_LIFTBRIDGE_NATS_SERVER_MAX_PAYLOAD": str(PAYLOAD_BYTES_MAX),
}
_STREAMS: Final = {"s": "s", "wild": "wild.*.x", "all": "wild.>"}
_PASSWORD: Final = "secret"
_INBOX: Final = "_INBOX.beside"


class NatsPeer:
    """A connection. `answer`: the next line that is no message; None at the end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: Counter[str]) -> None:
        self._reader, self.writer, self._counts = reader, writer, counts

    async def answer(self) -> bytes | None:
        while True:
            line = await self.line()
            if line is None or not line.startswith((b"MSG ", b"HMSG ")):
                return line
            await self.payload(line)

    async def line(self) -> bytes | None:
        try:
            return (await self._reader.readuntil(b"\r\n"))[:-2]
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise FindingError(f"half a line: {error.partial[:200]!r}") from None
            return None

    async def payload(self, line: bytes) -> bytes:
        """Of a message with this line."""
        kind, *words = line.split(b" ")
        sizes = words[-2:] if kind == b"HMSG" else words[-1:]
        if not 3 <= len(words) - len(sizes) + 1 <= 4 or not all(each.isdigit() for each in sizes):
            raise FindingError(f"no line of a message: {line!r}")
        self._counts[kind.decode()] += 1
        data = await self._reader.readexactly(int(sizes[-1]) + 2)
        if not data.endswith(b"\r\n"):
            raise FindingError(f"a message without its end: {line!r} {data[-20:]!r}")
        return data[:-2]


class NatsLane:
    """Connections one after the other."""

    def __init__(self, door: NatsDoor, seed: str, counts: Counter[str]) -> None:
        self._door, self._counts = door, counts
        self._requests, self._dice = NatsRequests(seed), random.Random(f"lane {seed}")
        self._peer: NatsPeer | None = None
        self._batches = 0

    async def run(self, work: Work) -> None:
        try:
            while not work.is_over:
                work.sent(await self._step())
        finally:
            self._end()

    async def _step(self) -> int:
        """Some inputs; those behind an error go over the next connection. How many."""
        inputs = [self._requests.next() for _ in range(BATCH)]
        if self._dice.random() < _CUT_CHANCE:
            inputs[-1] = inputs[-1][: self._dice.randrange(len(inputs[-1]) + 1)]
        rest = inputs
        while rest:
            first = [] if self._peer is not None else await self._connect()
            rest = rest[max(0, await self._exchange([*first, *rest]) - len(first)) :]
        return len(inputs)

    async def _connect(self) -> list[bytes]:
        """What its first exchange begins with."""
        door, counts = self._door, self._counts
        source = f"127.{self._dice.randrange(1, 250)}.{self._dice.randrange(1, 250)}.{self._dice.randrange(1, 250)}"
        self._peer, self._batches = await door.connect(counts, source), 0
        self._conversation = Conversation(frozenset(door.tokens))
        return self._requests.first(door.tokens)

    def _end(self) -> None:
        if self._peer is not None:
            self._peer.writer.close()
            self._peer = None

    async def _exchange(self, inputs: list[bytes]) -> int:
        """How many inputs the door has looked at."""
        assert self._peer is not None
        expected = self._conversation.take(inputs)
        sent = b"".join(inputs[: expected.taken])
        is_whole = expected.is_whole and not expected.error
        self._batches += 1
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                self._peer.writer.write(sent + b"PING\r\n" if is_whole else sent)
                await self._judge(self._peer, expected, is_whole)
        except TimeoutError:
            raise FindingError(f"no answer within {ANSWER_TIMEOUT_S:.0f} s to {sent!r}") from None
        except (FindingError, asyncio.IncompleteReadError) as finding:
            raise FindingError(f"{finding}, to {sent!r}") from None
        except ConnectionError as error:
            if not expected.error:
                raise FindingError(f"{error!r}, to {sent!r}") from None
            self._counts["reset"] += 1  # it was closed with bytes that were not read
        if not is_whole or self._batches >= BATCHES_PER_CONNECTION:
            self._end()
        return expected.taken

    async def _judge(self, peer: NatsPeer, expected: Expected, is_whole: bool) -> None:
        for answer in [*expected.answers, b"PONG"] if is_whole else expected.answers:
            said = await peer.answer()
            if said != answer:
                raise FindingError(f"{said!r} instead of {answer!r}")
            self._counts[answer.decode()] += 1
        if is_whole:
            return
        if expected.error:
            said = await peer.answer()
            if said != expected.error:
                raise FindingError(f"{said!r} instead of {expected.error!r}")
        else:
            peer.writer.write_eof()
        self._counts[expected.error.decode() or "cut"] += 1
        said = await peer.answer()
        if said is not None:
            raise FindingError(f"{said!r} behind the end")


class NatsDoor(FuzzedDoor):
    """The NATS server. Clients are the user of the setting, root, or a user without rights."""

    process_name: ClassVar[str] = "liftbridge"
    lanes: ClassVar[int] = LANES

    def __init__(self, data: Path) -> None:
        self._liftbridge = LiftbridgeServer(data, _SETTINGS)
        super().__init__(self._liftbridge)
        self.tokens: tuple[str, ...] = ()
        self._address = ("", 0)

    def prepare(self) -> None:
        if self.tokens:
            return
        told = tomllib.loads(self._liftbridge.runtime_config.read_text())
        self._address = wire.host_and_port(told["liftbridge"]["nats_server"]["address"])
        with self._liftbridge.client() as client:
            for name, subject in _STREAMS.items():
                client.create(name, 1 if subject.endswith(">") else 2, subject)
        with wire.connect(self._liftbridge.address) as root:
            root.request(Code.CREATE_USER, CreateUserRequest("rightless", _PASSWORD, 1, None).encode())
            tokens = [root.create_token("fuzz")]
        for name in ("rightless", ANONYMOUS):
            with wire.Wire(self._liftbridge.address) as user:
                user.login(name, _PASSWORD)
                tokens.append(user.create_token("fuzz"))
        self.tokens = tuple(tokens)

    async def connect(self, counts: Counter[str], source: str = "127.0.0.1") -> NatsPeer:
        """A connection behind its INFO."""
        opening = asyncio.open_connection(*self._address, limit=_LINE_MAX, local_addr=(source, 0))
        peer = NatsPeer(*await opening, counts)
        info = await peer.line()
        if info is None or not info.startswith(b"INFO {"):
            raise FindingError(f"{info!r} instead of INFO")
        return peer

    async def lane(self, number: int, seed: str, work: Work) -> None:
        await NatsLane(self, seed, work.counts).run(work)

    async def ask(self) -> None:
        """Publishes a message, and hears that it is stored."""
        peer = await self.connect(Counter())
        try:
            value = api_messages.Message(value=b"beside", ackInbox=_INBOX)
            message = encode_publish(value)
            said = f"SUB {_INBOX} 1\r\nPUB s {len(message)}\r\n".encode() + message + b"\r\n"
            peer.writer.write(connect_line(verbose=False) + said)
            while not (line := await peer.line() or b"").startswith(f"MSG {_INBOX} 1 ".encode()):
                assert line, "the connection ended"
                assert not line.startswith(b"-ERR"), line
        finally:
            with contextlib.suppress(ConnectionError):
                peer.writer.close()
