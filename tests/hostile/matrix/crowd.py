"""The attackers of one line, or its control, in a process of its own.

    python -m tests.hostile.matrix.crowd        (an `Order` as one line of JSON on standard input)

Says "ready" when all are in, goes on until its input ends, then tells its `Report`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import ssl
import struct
import sys
import threading
import time
from typing import Final

import msgspec

from tests.hostile.crowd import allow_descriptors
from tests.hostile.matrix import lines, quic
from tests.hostile.matrix.attacks import ACTS, Act, Rhythm
from tests.hostile.matrix.door import Door
from tests.hostile.matrix.doors import QUIC, STREAMS
from tests.hostile.matrix.report import ROUND_S, Report
from tests.hostile.matrix.target import Target

_READ_BYTES: Final = 1 << 16
_PIECES_AT_ONCE: Final = 64
_MOVES_AT_ONCE: Final = 8  # then it rests: on a small machine its own CPU time would be taken for the server's doing
_REST_S: Final = 0.001
_IDLE_S: Final = 0.02
_COMING_AGAIN_MAX: Final = 40  # in a round
_FIRST_PUSH_S: Final = 3.0
_KNOCKS_PER_S: Final = 200
_KNOCKING_MAX: Final = 100
_BUSY: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Order(msgspec.Struct, frozen=True):
    door: str
    role: str
    attack: str
    count: int
    nice: int
    target: Target

    @property
    def line(self) -> lines.Line:
        return lines.Line(self.door, self.role, self.attack)


class Member:
    """One connection. `is_gone`: the server has closed it."""

    def __init__(self, door: Door, order: Order, act: Act, report: Report) -> None:
        entered = door.enter(order.target, order.role, deaf=not act.reads)
        self._socket, self._means = entered.socket, entered.means
        self._socket.setblocking(False)
        self._act, self._report = act, report
        self._numbers = itertools.count()
        self._left = memoryview(act.made(self._means, next(self._numbers)))
        self._piece_bytes = self._means.piece_bytes if act.in_pieces else _READ_BYTES
        self.is_gone = False

    def move(self) -> bool:
        """Whether something went or came."""
        try:
            return bool(self._push()) | bool(self._pull())
        except OSError:
            self.is_gone = True
            return False

    def begin_round(self) -> None:
        if self._act.drips:
            self._left = memoryview(bytes(self._left) + b"a")
        elif self._act.rhythm is Rhythm.ROUND and not self._left:
            self._next()

    def close(self) -> None:
        self._socket.close()

    def _next(self) -> None:
        self._left = memoryview(self._act.made(self._means, next(self._numbers)))

    def _push(self) -> int:
        if not self._left and self._act.rhythm is Rhythm.ALWAYS:
            self._next()
        sent = 0
        for _ in range(_PIECES_AT_ONCE if self._piece_bytes == 1 else 1):
            if not self._left:
                break
            try:
                size = self._socket.send(self._left[: self._piece_bytes])
            except _BUSY:
                break
            self._left = self._left[size:]
            sent += size
        self._report.sent_bytes += sent
        return sent

    def _pull(self) -> int:
        if not self._act.reads:
            return 0
        try:
            heard = self._socket.recv(_READ_BYTES)
        except _BUSY:
            return 0
        if not heard:
            raise ConnectionError("closed by the server")
        self._report.heard += 1
        if self._act.rhythm is Rhythm.ANSWER and not self._left:
            self._next()
        return len(heard)


class Crowd:
    def __init__(self, order: Order, report: Report, stop: threading.Event) -> None:
        self._order, self._report, self._stop = order, report, stop
        self._door, self._act = STREAMS[order.door], ACTS[order.attack]
        self._members: list[Member | None] = [None] * order.count

    def run(self) -> None:
        self._come_in(len(self._members))
        self._pass(_FIRST_PUSH_S if self._act.rhythm is not Rhythm.NEVER else ROUND_S)
        print("ready", flush=True)
        while not self._stop.is_set():
            for member in filter(None, self._members):
                member.begin_round()
            self._pass(ROUND_S)
            self._come_in(_COMING_AGAIN_MAX)
        for member in filter(None, self._members):
            member.close()

    def _come_in(self, count_max: int) -> None:
        """Those that are not there, or not there any more."""
        for at, member in enumerate(self._members):
            if count_max == 0 or self._stop.is_set():
                return
            if member is not None and member.is_gone:
                member.close()
                self._report.lost += 1
                self._members[at] = member = None
            if member is None:
                count_max -= 1
                with contextlib.suppress(OSError):
                    self._members[at] = Member(self._door, self._order, self._act, self._report)
                    self._report.entered += 1

    def _pass(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s and not self._stop.is_set():
            moved = 0
            for member in self._members:
                if member is not None and not member.is_gone and member.move():
                    moved += 1
                    if moved % _MOVES_AT_ONCE == 0:
                        time.sleep(_REST_S)
            if moved == 0:
                time.sleep(_IDLE_S)


def knock(order: Order, report: Report, stop: threading.Event) -> None:
    """Handshakes that begin and are left, each with a connection of its own."""
    door, open_ones = STREAMS[order.door], list[socket.socket]()
    ready_s, is_ready = time.monotonic() + _FIRST_PUSH_S, False
    while not stop.is_set():
        with contextlib.suppress(OSError):
            peer, first = door.knock(order.target)
            open_ones.append(peer)
            peer.sendall(first)
            report.entered += 1
            report.sent_bytes += len(first)
        if len(open_ones) > _KNOCKING_MAX:
            oldest = open_ones.pop(0)
            oldest.setblocking(False)
            with contextlib.suppress(OSError):
                report.heard += bool(oldest.recv(_READ_BYTES))
            with contextlib.suppress(OSError):
                oldest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("<ii", 1, 0))
            oldest.close()
        if not is_ready and (report.entered >= _KNOCKING_MAX or time.monotonic() > ready_s):
            is_ready = True
            print("ready", flush=True)
        time.sleep(1 / _KNOCKS_PER_S)
    for peer in open_ones:
        peer.close()


async def over_quic(order: Order, report: Report, stop: threading.Event) -> None:
    def ready() -> None:
        print("ready", flush=True)

    attackers = asyncio.create_task(quic.crowd(order.target, order.line, order.count, report, ready, stop))
    told = asyncio.create_task(asyncio.to_thread(stop.wait))
    await asyncio.wait({attackers, told}, return_when=asyncio.FIRST_COMPLETED)
    if attackers.done():
        attackers.result()
    attackers.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await attackers


def main() -> None:
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    os.nice(order.nice)
    allow_descriptors(order.count + 1_000)
    report, stop = Report(), threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    if order.door == QUIC:
        asyncio.run(over_quic(order, report, stop))
    elif order.attack == lines.HANDSHAKE:
        knock(order, report, stop)
    else:
        Crowd(order, report, stop).run()
    print(msgspec.json.encode(report).decode(), flush=True)


if __name__ == "__main__":
    main()
