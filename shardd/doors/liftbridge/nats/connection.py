"""One connection of a NATS client to this server: reads requests piece by piece, and sends the messages it hears."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from functools import partial
from typing import Final, cast

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.ingest import Arrived, Stored
from shardd.doors.liftbridge.losses import Loss
from shardd.doors.liftbridge.nats.audience import Message, Subscription, Telling
from shardd.doors.liftbridge.nats.house import House
from shardd.doors.liftbridge.nats.outbox import Outbox
from shardd.doors.liftbridge.nats.pool import NOBODY, charge, member_of
from shardd.doors.links import WorkerLostError
from shardd.doors.taking import Connection, Taking, reset_at_close
from shardd.protocol.door_frames import Purpose
from shardd.protocol.errors import ShardError
from shardd.protocol.nats import (
    OK,
    PING,
    PONG,
    Connect,
    NatsError,
    Ping,
    Pong,
    Pub,
    Request,
    Requests,
    Sub,
    Unsub,
    encode_error,
    encode_msg,
    is_subscribable,
)
from shardd.runtime.networks import network_of_host

LOGIN_TIMEOUT_S: Final = 5.0  # until a client has said who it is
SETTLE_S: Final = 10.0  # for what is under way when a client leaves
PING_INTERVAL_S: Final = 60.0  # of silence
PINGS_MAX: Final = 2  # without an answer
UNREAD_BYTES_MAX: Final = 64 << 10  # of what has come, apart; one message may be longer, which takes room
READ_BYTES: Final = 64 << 10  # taken from the system at once
TURN_REQUESTS_MAX: Final = 32  # of one connection, before others have their turn
_AUTHORIZATION: Final = "Authorization Violation"
_SLOW: Final = "Slow Consumer"
_log = logging.getLogger(__name__)


class NatsConnection(asyncio.BufferedProtocol):
    """Loop thread only. `is_open`: it hears still. What it has sent before it left is done all the same."""

    client: DoorClient

    def __init__(self, house: House) -> None:
        self.house = house
        self.user_id = NOBODY
        self.echo = True
        self.is_open = False
        self.host = self.network = self.address = ""
        self._loop = asyncio.get_running_loop()
        self._requests = Requests(house.limits.payload_bytes_max)
        self._subscriptions: dict[str, Subscription] = {}
        self._verbose = self._takes_headers = False
        self._has_client = False
        self._is_admitted = False
        self._waiting: asyncio.Task[None] | None = None  # for a login, or for room
        self._is_paused = False
        self._unread = member_of(NOBODY)
        self._free_bytes = READ_BYTES  # so much more may come now
        self._pings = 0
        self._opened_at_s = self._heard_at_s = self._loop.time()
        self._half_sent_since_s: float | None = None
        self._taking = Taking(house.limits.slow_reader_timeout_s)

    # ---- asyncio.BufferedProtocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket: Connection = transport.get_extra_info("socket")
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self.host, self.network = host, network_of_host(host)
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._is_admitted = self.house.admit(self)
        if not self._is_admitted:
            self._transport.write(encode_error("maximum connections exceeded"))
            self._transport.close()
            return
        self.is_open = True
        self._outbox = Outbox(self._transport, self.house.unsent, NOBODY)
        self.send(self.house.info(self))

    def get_buffer(self, sizehint: int) -> bytearray | memoryview:
        if self._free_bytes >= READ_BYTES:
            return self.house.buffer
        return memoryview(self.house.buffer)[: max(1, self._free_bytes)]

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_open:
            self._heard_at_s = self._loop.time()
            with memoryview(self.house.buffer) as view:
                self._requests.feed(view[:nbytes])
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_hearing()
        if self._is_admitted:
            self._go_on()

    # ---- requests ----

    def take_turn(self, end_s: float) -> bool:
        """Some of its requests, one at least, until then; True: there may be more. Called by the server."""
        try:
            for number in range(TURN_REQUESTS_MAX):
                if self._waiting is not None:
                    return False
                if number and self._loop.time() >= end_s:
                    break
                request = self._requests.take()
                if request is None:
                    self._read_on()
                    self._finish()
                    return False
                self._follow(request)
        except NatsError as error:
            self.fail(str(error))
            return False
        self._read_on()
        return True

    def _go_on(self) -> None:
        self._read_on()
        if self._waiting is None:
            self.house.is_busy(self)

    def _read_on(self) -> None:
        """Or not: what waits here is bounded. A message that has begun is read to its end."""
        waiting = self._requests.waiting_bytes
        if not waiting:
            self._half_sent_since_s = None
        elif self._half_sent_since_s is None:
            self._half_sent_since_s = self._loop.time()
        limit = UNREAD_BYTES_MAX
        if self._requests.is_inside_message:
            limit += self.house.limits.payload_bytes_max
        self._charge(waiting, may_grow=waiting <= limit and self.is_open)
        full = waiting > limit or self._free_bytes <= 0
        if full is not self._is_paused and self.is_open and not self._transport.is_closing():
            self._is_paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _charge(self, waiting: int, *, may_grow: bool) -> None:
        """What is beyond the part that it has apart takes room before it comes: so much is read on as has room."""
        free, room = UNREAD_BYTES_MAX - waiting, self.house.unread
        if may_grow and free < READ_BYTES // 2 and charge(room, self._unread, READ_BYTES - free):
            self._free_bytes = READ_BYTES
            return
        room.count(self._unread, max(0, -free))
        self._free_bytes = max(0, free)

    def _follow(self, request: Request) -> None:
        self._half_sent_since_s = None
        if isinstance(request, Connect):
            self._connect(request)
            return
        if isinstance(request, Ping):
            self.send(PONG)
            return
        if isinstance(request, Pong):
            self._pings = 0
            return
        if self.user_id == NOBODY:
            raise NatsError(_AUTHORIZATION)
        if isinstance(request, Pub):
            self._publish(request)
        elif isinstance(request, Sub):
            self._subscribe(request)
        else:
            self._unsubscribe(request)
        if self._verbose:
            self.send(OK)

    def _publish(self, said: Pub) -> None:
        has_room = self.house.ingest.publisher.has_room(self.client)
        rest = self._pass_on(said) if has_room else self._publish_with_room(said)
        if rest is not None:
            self._wait_for(rest)

    async def _publish_with_room(self, said: Pub) -> None:
        await self.house.ingest.publisher.room(self.client)
        rest = self._pass_on(said)
        if rest is not None:
            await rest

    def _pass_on(self, said: Pub) -> Awaitable[None] | None:
        """To the streams of its subject, and from there to whoever has subscribed; or only to subscribers. What it
        returns is to be awaited before anything else of this connection."""
        ingest, audience = self.house.ingest, self.house.audience
        targets = ingest.view.router.matches(said.subject)
        message = Message(said.subject, said.reply, said.payload, self, said.headers)
        if not targets:
            audience.tell_user(self.user_id, message)
            return None
        stored: Stored | None = None
        if audience.has_subscribers:
            known = ingest.view.streams()
            streams = [known[target.stream] for target in targets if target.stream in known]
            if audience.is_wanted(said.subject, streams):
                stored = partial(audience.tell, Telling(message))
        arrived = Arrived(said.subject, said.reply, said.payload, self._send_ack, stored, said.headers)
        return ingest.take(self.client, arrived, targets)

    def _send_ack(self, inbox: str, payload: bytes) -> None:
        self.house.audience.tell_user(self.user_id, Message(inbox, "", payload, None))

    def _subscribe(self, said: Sub) -> None:
        if not is_subscribable(said.subject):
            self.send(encode_error("Invalid Subject"))
            return
        if said.sid in self._subscriptions or not self.is_open:
            return  # the first one stays, as in NATS
        subscription = Subscription(self, said.sid, said.subject, said.queue)
        self.house.audience.add(subscription)
        self._subscriptions[said.sid] = subscription

    def _unsubscribe(self, said: Unsub) -> None:
        subscription = self._subscriptions.get(said.sid)
        if subscription is None:
            return
        subscription.left = said.messages - subscription.heard
        if subscription.left <= 0:
            self._drop(subscription)

    def _drop(self, subscription: Subscription) -> None:
        del self._subscriptions[subscription.sid]
        self.house.audience.remove(subscription)

    # ---- who it is ----

    def _connect(self, said: Connect) -> None:
        if self._has_client:
            raise NatsError("Unknown Protocol Operation")
        self._has_client = True
        self.house.knows(self)  # it waits in the line of logins, if it has to
        self._wait_for(self._log_in(said))

    async def _log_in(self, said: Connect) -> None:
        named = bool(said.user or said.password or said.auth_token)
        if not named and not self.house.may_be_anonymous(self.host):
            raise NatsError(_AUTHORIZATION)
        try:
            self.client = client = await self.house.door.open_client(self.address, self._client_ended)
        except (ShardError, WorkerLostError) as error:
            self._has_client = False
            raise NatsError("maximum connections exceeded") from error
        try:
            if said.auth_token:
                user_id = await client.login_with_access_token(said.auth_token)
            elif named:
                user_id = await client.login(said.user, said.password)
            else:
                user_id = await client.login_by_setting(Purpose.ANONYMOUS)
        except (ShardError, WorkerLostError) as error:
            raise NatsError(_AUTHORIZATION) from error
        self.house.unread.count(self._unread, 0)
        self._unread = member_of(user_id)
        self._outbox.move_to(user_id)
        self.user_id = user_id
        self.house.knows(self)
        self.echo, self._verbose, self._takes_headers = said.echo, said.verbose, said.headers
        if said.verbose:
            self.send(OK)

    def _client_ended(self) -> None:
        """The worker is gone, or the user, or the token."""
        self.fail("User Authentication Expired")

    def _wait_for(self, work: Awaitable[None]) -> None:
        """Nothing else of this connection is looked at until it is done."""
        self._waiting = asyncio.create_task(self._waited(work))

    async def _waited(self, work: Awaitable[None]) -> None:
        try:
            await work
        except NatsError as error:
            self.fail(str(error))
        except Exception:
            _log.exception("a NATS client at %s", self.address)
            self.fail("Internal Error")
        self._waiting = None
        self._half_sent_since_s = None  # nobody has looked at what has come meanwhile
        self._go_on()

    # ---- what it hears ----

    def hear(self, subscription: Subscription, message: Message) -> None:
        headers = message.headers if self._takes_headers else b""
        self.send(encode_msg(message.subject, subscription.sid, message.reply, message.payload, headers))
        subscription.heard += 1
        if subscription.left > 0:
            subscription.left -= 1
            if not subscription.left and subscription.sid in self._subscriptions:
                self._drop(subscription)

    def send(self, data: bytes) -> None:
        """At the end of the turn, with what else there is. A client that takes too little is closed."""
        if self.is_open and not self._outbox.put(data):
            self.house.ingest.losses.count(Loss.SLOW, "")
            self.fail(_SLOW)

    # ---- its end ----

    def look(self, now_s: float) -> None:
        """Called every now and then."""
        if not self.is_open:
            return
        self._outbox.charge()
        self._read_on()
        limits, waits = self.house.limits, self._waiting is not None
        if self.user_id == NOBODY and now_s - self._opened_at_s > LOGIN_TIMEOUT_S and not waits:
            self.fail("Authentication Timeout")
        elif _is_over(self._half_sent_since_s, limits.partial_frame_timeout_s, now_s) and not waits:
            self.fail("Stale Connection")
        elif self._taking.is_late(self._socket, now_s, self._transport.get_write_buffer_size()):
            reset_at_close(self._socket)
            self.fail(_SLOW)
        elif now_s - self._heard_at_s > PING_INTERVAL_S * (self._pings + 1):
            self._pings += 1
            if self._pings > PINGS_MAX:
                self.fail("Stale Connection")
            else:
                self.send(PING)

    def fail(self, text: str) -> None:
        """Says why, if the client takes it, and ends. Nothing that it has sent beyond is looked at."""
        self._requests.clear()
        if self.is_open:
            self._outbox.close(encode_error(text))
            self._stop_hearing()
            self.house.knows(self)

    def _stop_hearing(self) -> None:
        if self.is_open:
            self.is_open = False
            self._outbox.close()
            for subscription in [*self._subscriptions.values()]:
                self._drop(subscription)

    def _finish(self) -> None:
        """When it has left, and all that it has sent is on its way."""
        if self.is_open or not self._is_admitted or self._waiting is not None:
            return
        self._is_admitted = False
        self._requests.clear()
        self.house.unread.count(self._unread, 0)
        self.house.left(self)

    async def settle(self) -> None:
        """The last thing: its client ends when what it has published is stored."""
        if not self._has_client:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self.house.ingest.publisher.settled(self.client)
        await self.house.door.close_client(self.client)


def _is_over(since_s: float | None, limit_s: float, now_s: float) -> bool:
    return since_s is not None and now_s - since_s > limit_s
