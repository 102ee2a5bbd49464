"""Bytes of clients of NATS: users who take all that they may leave some to another one, and each connection has its own
part, whatever others have."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Final, cast

from shardd.doors.liftbridge.losses import Losses
from shardd.doors.liftbridge.nats.connection import NatsConnection
from shardd.doors.liftbridge.nats.outbox import UNSENT_ALWAYS_BYTES, Outbox
from shardd.doors.liftbridge.nats.pool import member_of
from shardd.doors.liftbridge.nats.server import UNREAD_BYTES_MAX, UNSENT_BYTES_MAX, NatsServer
from tests.support.on_loop import on_loop

MIB: Final = 1 << 20
GREEDY: Final = (1, 2)
CROWD: Final = 100  # connections of one user
MANY: Final = range(3, 40)


class Wire(asyncio.Transport):
    """A transport whose other side takes nothing."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 7)})
        self.unsent_bytes = 0
        self.is_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: object) -> None:
        self.unsent_bytes += len(cast(bytes, data))

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def abort(self) -> None:
        self.unsent_bytes = 0

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class Door:
    """The rooms of a server, whose turns come when the test says so."""

    def __init__(self) -> None:
        ingest = cast(Any, SimpleNamespace(losses=Losses()))
        self.nats = NatsServer(
            cast(Any, None), ingest, payload_bytes_max=MIB, anonymous=False, connections_max=10 * CROWD
        )
        self.nats.is_busy = lambda connection: None  # type: ignore[method-assign]
        self.nats.info = lambda connection: b""  # type: ignore[method-assign]
        self.nats.admit = lambda connection: True  # type: ignore[method-assign]

    def outbox(self, user_id: int) -> Outbox:
        return Outbox(Wire(), self.nats.unsent, user_id)

    def connection(self, user_id: int) -> tuple[NatsConnection, Wire]:
        connection, wire = NatsConnection(self.nats), Wire()
        connection.connection_made(wire)
        connection.user_id, connection._unread = user_id, member_of(user_id)
        return connection, wire

    def half_sent(self, user_id: int, payload_bytes: int) -> int:
        """How much a new connection of the user takes of a message that lacks its last byte."""
        connection, wire = self.connection(user_id)
        rest = b"PUB a %d\r\n" % payload_bytes + bytes(payload_bytes + 1)
        taken = 0
        while rest and not wire.is_paused:
            buffer = memoryview(connection.get_buffer(-1))[: len(rest)]
            buffer[:] = rest[: len(buffer)]
            rest = rest[len(buffer) :]
            taken += len(buffer)
            connection.buffer_updated(len(buffer))
            assert not connection.take_turn(asyncio.get_running_loop().time() + 10)
            assert self.nats.unread.used <= UNREAD_BYTES_MAX
        return taken if rest else payload_bytes


@on_loop
async def test_user_who_reads_hears_large_messages_beside_users_who_take_all_unsent_bytes() -> None:
    door = Door()
    deaf = {user: [door.outbox(user) for _ in range(CROWD)] for user in GREEDY}
    for _ in range(2):
        for outboxes in deaf.values():
            for outbox in outboxes:
                outbox.put(bytes(MIB))
    assert UNSENT_BYTES_MAX // 2 <= door.nats.unsent.used <= UNSENT_BYTES_MAX
    for number in range(8):
        outbox = door.outbox(3)
        assert outbox.put(bytes(MIB)), f"message {number} of a user that has little"
    for user in MANY:
        outbox = door.outbox(user)
        while outbox.put(bytes(MIB // 8)):
            assert door.nats.unsent.used <= UNSENT_BYTES_MAX
    outbox = door.outbox(max(MANY) + 1)
    assert outbox.put(bytes(UNSENT_ALWAYS_BYTES)), "its own part, whatever others have"


@on_loop
async def test_messages_of_a_connection_within_its_part_take_no_room_of_others() -> None:
    door = Door()
    outbox, stranger = door.outbox(1), door.outbox(-1)
    assert outbox.put(bytes(UNSENT_ALWAYS_BYTES)) and stranger.put(bytes(UNSENT_ALWAYS_BYTES))
    assert door.nats.unsent.used == 0
    assert not stranger.put(b"x") and outbox.put(b"x")
    assert door.nats.unsent.used == 1
    outbox.close()
    assert door.nats.unsent.used == 0


@on_loop
async def test_large_message_is_read_beside_users_who_have_half_sent_all_they_may() -> None:
    door = Door()
    for user in GREEDY:
        for _ in range(CROWD):
            door.half_sent(user, MIB - 1)
    assert door.nats.unread.used >= UNREAD_BYTES_MAX // 2
    for number in range(4):
        assert door.half_sent(3, MIB - 1) == MIB - 1, f"message {number} of a user that has little"


@on_loop
async def test_short_message_is_read_whatever_others_have_half_sent_and_a_stranger_has_no_more() -> None:
    door = Door()
    for user in (*GREEDY, *MANY):
        for _ in range(CROWD // 2):
            door.half_sent(user, MIB - 1)
    newcomer = max(MANY) + 1
    assert door.half_sent(newcomer, MIB - 1) < MIB // 2, "there is hardly any room"
    assert door.half_sent(newcomer, 60_000) == 60_000
    connection, wire = door.connection(-1)
    taken = 0
    while not wire.is_paused:
        assert taken < MIB
        size = len(connection.get_buffer(-1))
        taken += size
        connection.buffer_updated(size)
    assert taken == 64 << 10
