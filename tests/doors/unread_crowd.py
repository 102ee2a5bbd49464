"""A crowd that reads no answers, in a process of its own: what the sockets of clients keep is not the server's.

    python -m tests.doors.unread_crowd          (an `Order` as one line of JSON on standard input)

Says "ready" when all are in and have sent what the server takes at once, and stays until its input ends."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
import time
from typing import Final

import msgspec

from shardd.protocol.liftbridge import api_messages
from tests.doors.liftbridge_wire import opened, request_frames
from tests.doors.quic_server import connected
from tests.hostile.crowd import allow_descriptors
from tests.hostile.matrix import classic
from tests.hostile.matrix.door import ATTACKER, Means
from tests.hostile.matrix.doors import QUIC, STREAMS
from tests.hostile.matrix.lines import READER
from tests.hostile.matrix.target import Target
from tests.support import wire

TIMES: Final = {"nats": 16}  # the largest answer is asked for; elsewhere once
POLLS: Final = 4  # of a connection of QUIC
NAMES: Final = "names"
"""A role beside those of the matrix: a reader whose answer from gRPC repeats a long name."""
LONG_NAME: Final = "n" * 200
NAMES_TIMES: Final = 320  # what the first window of HTTP/2 takes of a request
TAKES_NO_MORE_S: Final = 0.5


class Order(msgspec.Struct, frozen=True):
    door: str
    role: str
    count: int
    target: Target


def large(order: Order, means: Means, number: int) -> bytes:
    """The request whose answer is the largest."""
    if order.role != NAMES:
        return means.large(number)
    kind = api_messages.FetchMetadataRequest
    request = bytes(kind(streams=[LONG_NAME] * NAMES_TIMES).SerializeToString())
    shown = [("authorization", f"Bearer {order.target.tokens[READER]}")]
    stream = 2 * number + 1
    return opened("/proto.API/FetchMetadata", stream, shown) + request_frames(stream, request)


class Member:
    """One connection. `left`: what it has to send."""

    def __init__(self, order: Order) -> None:
        role = READER if order.role == NAMES else order.role
        came_in = STREAMS[order.door].enter(order.target, role, deaf=True)
        self.socket = came_in.socket
        self.socket.setblocking(False)
        requests = (large(order, came_in.means, number) for number in range(TIMES.get(order.door, 1)))
        self.left = memoryview(b"".join(requests))
        self.push()

    def push(self) -> bool:
        """Whether something went."""
        before = len(self.left)
        try:
            while self.left:
                self.left = self.left[self.socket.send(self.left) :]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError:
            self.left = memoryview(b"")  # the server has closed it
        return len(self.left) != before


def crowd(order: Order) -> list[Member]:
    """Until the server takes no more of it."""
    members = [Member(order) for _ in range(order.count)]
    moved_s = time.monotonic()
    while any(member.left for member in members) and time.monotonic() - moved_s < TAKES_NO_MORE_S:
        if sum(member.push() for member in members):
            moved_s = time.monotonic()
        time.sleep(0.05)
    return members


async def stay_over_quic(order: Order) -> None:
    address = wire.host_and_port(order.target.addresses[QUIC])
    _, poll, _, _ = classic.frames_of(order.role)
    async with contextlib.AsyncExitStack() as held:
        for _ in range(order.count):
            client = await held.enter_async_context(connected(address, ATTACKER, idle_timeout=60.0))
            await client.done(wire.LOGIN_WITH_TOKEN, wire.str8(order.target.tokens[order.role]))
            client.deaf()
            for _ in range(POLLS):
                client.write(poll)
        print("ready", order.count, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    allow_descriptors(order.count + 1_000)
    if order.door == QUIC:
        asyncio.run(stay_over_quic(order))
        return
    members = crowd(order)
    print("ready", len(members), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
