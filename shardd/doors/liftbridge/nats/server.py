"""The door as a NATS server (docs/protocol/nats.md): publishers of Liftbridge need no other NATS server on the machine.
A client without a login must come from this machine, and needs a setting that names the user for it."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
from collections import Counter, deque
from functools import partial
from typing import Final

from shardd.doors.door import Door
from shardd.doors.liftbridge.ingest import Ingest, Stored
from shardd.doors.liftbridge.nats.audience import Audience, Message, Telling
from shardd.doors.liftbridge.nats.connection import READ_BYTES, NatsConnection
from shardd.doors.liftbridge.nats.figures import tell_figures
from shardd.doors.liftbridge.nats.house import NatsLimits
from shardd.doors.liftbridge.nats.pool import USER_SHARE
from shardd.doors.taking import bound
from shardd.protocol.nats import PROTOCOL, VERSION, encode_info
from shardd.runtime.crowds import SharedRoom

UNREAD_BYTES_MAX: Final = 64 << 20  # of all connections, beyond what each has apart
UNSENT_BYTES_MAX: Final = 64 << 20
STRANGERS_MAX: Final = 128  # connections that have not said who they are: for a new one the oldest one of the address
# goes that has most of them. A room would refuse the new one where its own address has most.
TURN_S: Final = 0.002  # for requests, in one turn of the loop
LOOK_S: Final = 1.0
_BACKLOG: Final = 1_024


class NatsServer:
    """Loop thread only. `anonymous`: whether clients of this machine need no login. `connections_max`: of all clients;
    one address has at most 9/10 of them. Times as `server.*` has them."""

    def __init__(
        self,
        door: Door,
        ingest: Ingest,
        *,
        payload_bytes_max: int,
        anonymous: bool,
        connections_max: int,
        partial_frame_timeout_s: float = 10.0,
        slow_reader_timeout_s: float = 10.0,
    ) -> None:
        self.door = door
        self.ingest = ingest
        self.audience = Audience(ingest.losses)
        of_address_max = max(1, connections_max * 9 // 10)
        self.limits = NatsLimits(
            payload_bytes_max, connections_max, of_address_max, partial_frame_timeout_s, slow_reader_timeout_s
        )
        self.buffer = bytearray(READ_BYTES)
        self.unread = SharedRoom(UNREAD_BYTES_MAX, UNREAD_BYTES_MAX // USER_SHARE, of_addresses=False)
        self.unsent = SharedRoom(UNSENT_BYTES_MAX, UNSENT_BYTES_MAX // USER_SHARE, of_addresses=False)
        self._anonymous = anonymous
        self._connections: set[NatsConnection] = set()
        self._strangers: dict[NatsConnection, None] = {}  # in the order in which they came
        self._of: Counter[str] = Counter()
        self._busy: deque[NatsConnection] = deque()
        self._busy_set: set[NatsConnection] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._id = secrets.token_hex(16).upper()
        self._numbers = 0
        self._loop = asyncio.get_running_loop()

    async def run(self, listener: socket.socket) -> None:
        """Serves until it is cancelled. `listener` stays open."""
        bound(listener, self.limits.slow_reader_timeout_s)
        server = await self._loop.create_server(lambda: NatsConnection(self), sock=listener.dup(), backlog=_BACKLOG)
        telling = asyncio.create_task(tell_figures(self.door, self.ingest))
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                now_s = self._loop.time()
                for connection in [*self._connections]:
                    connection.look(now_s)
        finally:
            telling.cancel()
            server.close()
            for connection in [*self._connections]:
                connection.fail("Server Shutdown")

    # ---- what others in the door publish ----

    def announce(self, subject: str, payload: bytes) -> Stored:
        """A message in its envelope; what is returned hears of each stream that has stored it."""
        return partial(self.audience.tell, Telling(Message(subject, "", payload, None)))

    def takes_unstored(self, subject: str) -> bool:
        """A message that no stream takes stays with its own user: the settings list no subjects here."""
        return False

    def announce_own(self, subject: str, payload: bytes, user_id: int) -> None:
        """One that is on no subject of a stream: it belongs to who has published it."""
        self.audience.tell_user(user_id, Message(subject, "", payload, None))

    def send_ack(self, inbox: str, payload: bytes, user_id: int) -> None:
        """To an inbox of the user who has published."""
        self.audience.tell_user(user_id, Message(inbox, "", payload, None))

    # ---- for connections ----

    def admit(self, connection: NatsConnection) -> bool:
        network, limits = connection.network, self.limits
        if len(self._strangers) >= STRANGERS_MAX:
            most, _ = Counter(each.network for each in self._strangers).most_common(1)[0]
            next(each for each in self._strangers if each.network == most).fail("Authentication Timeout")
        of_network = self._of[network]
        if len(self._connections) >= limits.connections_max or of_network >= limits.connections_per_address_max:
            return False
        self._connections.add(connection)
        self._strangers[connection] = None
        self._of[network] += 1
        return True

    def knows(self, connection: NatsConnection) -> None:
        self._strangers.pop(connection, None)

    def left(self, connection: NatsConnection) -> None:
        self._connections.discard(connection)
        self._strangers.pop(connection, None)
        self._of[connection.network] -= 1
        if not self._of[connection.network]:
            del self._of[connection.network]
        settling = asyncio.create_task(connection.settle())
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    def is_busy(self, connection: NatsConnection) -> None:
        if connection in self._busy_set:
            return
        if not self._busy:
            self._loop.call_soon(self._take_turns)
        self._busy.append(connection)
        self._busy_set.add(connection)

    def may_be_anonymous(self, host: str) -> bool:
        return self._anonymous and _is_this_machine(host)

    def info(self, connection: NatsConnection) -> bytes:
        self._numbers += 1
        return encode_info(
            {
                "server_id": self._id,
                "server_name": "shardd",
                "version": VERSION,
                "proto": PROTOCOL,
                "headers": True,
                "max_payload": self.limits.payload_bytes_max,
                "auth_required": not self.may_be_anonymous(connection.host),
                "client_id": self._numbers,
                "client_ip": connection.host,
            }
        )

    def _take_turns(self) -> None:
        """One connection after the other, for as long as a turn may take."""
        end_s = self._loop.time() + TURN_S
        while self._busy:
            connection = self._busy.popleft()
            self._busy_set.discard(connection)
            if connection.take_turn(end_s) and connection not in self._busy_set:
                self._busy.append(connection)
                self._busy_set.add(connection)
            if self._loop.time() >= end_s:
                break
        if self._busy:
            self._loop.call_soon(self._take_turns)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
