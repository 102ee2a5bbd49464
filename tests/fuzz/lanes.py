"""Connections that send batches of mutated frames without waiting for answers in between, and count the answers.

A lane sends one batch, reads its answers, then sends the next. Every whole frame must be answered; the server may close
only where the protocol says so. Anything else is a `FindingError`.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.protocol.legacy.generations import Generation
from tests.fuzz import legacy
from tests.fuzz.mutator import Mutator
from tests.support import wire

ANSWER_TIMEOUT_S: Final = 120.0  # of a batch; a login may have to wait for many others
BATCH_FRAMES: Final = 64
BATCHES_PER_CONNECTION: Final = 200
# a tail ends the connection; one that had to say who it is is dearer to make anew
_TAIL_CHANCE: Final = {"anonymous": 0.1, "root": 0.01, "low": 0.01}
_TAIL_CHANCE_OF_EARLIER: Final = 0.01
_HOT_CHANCE: Final = 0.2  # of a batch
_HEAD: Final = struct.Struct("<II")
_RECEIVE_BYTES: Final = 1 << 20
# Answers after which the server closes (docs/protocol/framing.md#bad-input, docs/limits.md).
_CLOSING: Final = frozenset(
    {
        Status.CLIENT_NOT_FOUND,
        Status.STALE_CLIENT,
        Status.SHARD_COMMUNICATION_ERROR,
        Status.INVALID_CREDENTIALS,
        Status.RESOURCE_NOT_FOUND,
        Status.USER_INACTIVE,
        Status.PERSONAL_ACCESS_TOKEN_EXPIRED,
    }
)


class FindingError(Exception):
    """What must not happen; the text says what and with which frames."""


@dataclass(slots=True)
class Totals:
    """What all lanes together have seen. `seen`: first frame of each (role, code, status), of 0.9 of each
    (role, operation, code, status). `fenced`: sessions of lanes of 0.9 that another connection has taken."""

    frames: int = 0
    closes: int = 0
    fenced: int = 0
    by_role: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    seen: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    seen_09: dict[tuple[str, int, int, int], bytes] = field(default_factory=dict)


class Lane:
    """One connection at a time. `token` logs it in; None: it stays without a login."""

    def __init__(
        self,
        address: str,
        number: int,
        role: str,
        seed: int,
        mutator: Mutator,
        totals: Totals,
        generation: Generation | None = None,
    ) -> None:
        self.number, self.role, self.batch = number, role, 0
        self.token: bytes | None = None
        self.socket: socket.socket | None = None
        self._address, self._seed, self._mutator, self._totals = wire.host_and_port(address), seed, mutator, totals
        self._generation = generation
        self.expects_texts = generation is not None
        self._random = random.Random(f"{seed}/{number}")
        self._pending: list[bytes] = []
        self._answered = self._batches = 0
        self._out = memoryview(b"")
        self._in = bytearray()
        self._tail: bytes | None = None
        self._last_status = 0
        self._error: OSError | None = None
        self._deadline = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing is on the way."""
        return self.socket is None or self._answered >= len(self._pending)

    def _is_text(self, body: bytes) -> bool:
        """What earlier clients get with a refusal. A lane becomes such a client by a login with another version."""
        return self.expects_texts and body[:4] == struct.pack("<I", len(body) - 4)

    @property
    def writing(self) -> bool:
        return len(self._out) > 0

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket = None

    def connect(self) -> socket.socket:
        """A new connection from an address of its own, so that failed logins of others do not slow its logins down."""
        self.close()
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        draw = self._random.randrange(1 << 16, 1 << 24)
        made.bind((f"127.{draw >> 16}.{draw >> 8 & 255}.{draw & 255}", 0))
        made.settimeout(ANSWER_TIMEOUT_S)
        made.connect(self._address)
        if self._generation is not None:
            for greeting in legacy.greetings(self._generation):
                made.sendall(greeting)
                self._await_login(made)
        if self.token is not None:
            self._log_in(made, bytes([len(self.token)]) + self.token)
        made.setblocking(False)
        self.socket, self._batches, self._last_status = made, 0, 0
        return made

    def _log_in(self, made: socket.socket, token: bytes) -> None:
        made.sendall(wire.frame(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, token))
        self._await_login(made)

    @staticmethod
    def _await_login(made: socket.socket) -> None:
        """A frame may have deleted the user or its token: the lane then goes on without a login."""
        data, size = b"", 8
        while len(data) < size:
            part = made.recv(size - len(data))
            if not part:
                raise ConnectionError("closed during the login")
            data += part
            if len(data) == 8:
                size += _HEAD.unpack_from(data)[1]

    def begin(self, given: list[bytes] | None = None) -> None:
        """Draws the next batch, or takes the `given` one; it goes out as far as the socket takes it."""
        assert self.socket is not None
        self.batch += 1
        self._batches += 1
        self._tail = None
        self._pending = given or self._draw(f"{self._seed}/{self.number}/{self.batch}")
        self._answered = 0
        self._error = None
        self._in.clear()
        self._out = memoryview(b"".join(self._pending) + (self._tail or b""))
        self._deadline = time.monotonic() + ANSWER_TIMEOUT_S
        self.write()

    def _draw(self, seed: str) -> list[bytes]:
        """The frames of a batch, and maybe its tail."""
        mutator = self._mutator
        mutator.restart(seed)
        draw = mutator.hot if mutator.chance(_HOT_CHANCE) else mutator.next
        frames = [draw() for _ in range(BATCH_FRAMES)]
        tails = _TAIL_CHANCE[self.role] if self._generation is None else _TAIL_CHANCE_OF_EARLIER
        self._tail = mutator.tail() if mutator.chance(tails) else None
        return frames

    def write(self) -> None:
        assert self.socket is not None
        try:
            sent = self.socket.send(self._out)
        except BlockingIOError:
            return
        except OSError:
            self._out = memoryview(b"")  # closed; what was answered before can still be read
            return
        self._out = self._out[sent:]
        if not self._out and self._tail is not None:
            self.socket.shutdown(socket.SHUT_WR)

    def read(self) -> bool:
        """Takes what has come. True when the batch is over; `socket` is None then if the connection is, too."""
        assert self.socket is not None
        try:
            data = self.socket.recv(_RECEIVE_BYTES)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError as error:
            self._error = error
            data = b""
        if not data:
            self._ended()
            return True
        self._in += data
        self._take_answers()
        if self._answered < len(self._pending) or self._tail is not None:
            return False
        self._totals.frames += len(self._pending)
        self._totals.by_role[self.role] += len(self._pending)
        if self._batches >= BATCHES_PER_CONNECTION or self._lost_its_login():
            self.close()
        return True

    def check_time(self) -> None:
        if not self.idle and time.monotonic() > self._deadline:
            raise FindingError(f"no answer; {self.describe()}")

    def describe(self) -> str:
        """Seed, place and the frames around the first one without an answer."""
        around = self._pending[max(0, self._answered - 1) : self._answered + 2]
        frames = "\n".join(f"    {frame.hex()}" for frame in around)
        place = f"seed {self._seed} lane {self.number} ({self.role}) batch {self.batch}"
        tail = f"\n    last: {self._tail.hex()}" if self._tail is not None else ""
        return f"{place}: {self._answered} of {len(self._pending)} answered, then\n{frames}{tail}"

    def _lost_its_login(self) -> bool:
        return self.role != "anonymous" and self._last_status == Status.UNAUTHENTICATED

    def _take_answers(self) -> None:
        at, data, end = 0, self._in, len(self._in)
        statuses, seen, role = self._totals.statuses, self._totals.seen, self.role
        while end - at >= 8:
            status, length = _HEAD.unpack_from(data, at)
            if end - at < 8 + length:
                break
            if status != 0 and length != 0 and not self._is_text(bytes(data[at + 8 : at + 8 + length])):
                raise FindingError(f"an error ({status}) with a payload; {self.describe()}")
            if status == Status.ERROR:
                raise FindingError(f"status 1; {self.describe()}")
            if self._answered < len(self._pending):
                frame = self._pending[self._answered]
                key = (role, _HEAD.unpack_from(frame)[1], status)
                if key not in seen:
                    seen[key] = frame
            elif self._tail is None or self._answered > len(self._pending) or status != Status.INVALID_COMMAND:
                raise FindingError(f"an answer ({status}) too much; {self.describe()}")
            self._answered += 1
            self._last_status = status
            statuses[status] += 1
            at += 8 + length
        del data[:at]

    def _ended(self) -> None:
        whole = self._answered >= len(self._pending)
        if not (self._tail is not None and whole) and self._last_status not in _CLOSING:
            raise FindingError(f"the server closed the connection ({self._error!r}); {self.describe()}")
        self._totals.frames += min(self._answered, len(self._pending))
        self._totals.by_role[self.role] += min(self._answered, len(self._pending))
        self._totals.closes += 1
        self._out = memoryview(b"")
        self.close()
