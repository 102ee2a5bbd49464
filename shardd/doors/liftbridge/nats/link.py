"""The connection to a NATS server (Lb 4): the door stores messages that are published there, and publishes there the
messages of its own clients. Core NATS delivers at most once: the door counts and logs every message that it could not
store, and every loss of the connection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from typing import Final

from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from shardd.config.liftbridge import LiftbridgeNats
from shardd.doors.door import Door, DoorClient
from shardd.doors.liftbridge.ingest import Arrived, Ingest, Stored
from shardd.doors.liftbridge.losses import Loss
from shardd.doors.liftbridge.nats.client import NatsClient, connect_options, number_of, wants_tls
from shardd.doors.liftbridge.nats.figures import tell_figures
from shardd.doors.liftbridge.nats.outward import Outward
from shardd.doors.liftbridge.nats.subscriptions import AllWanted, Wanted
from shardd.doors.links import WorkerLostError
from shardd.protocol.door_frames import Purpose
from shardd.protocol.errors import ShardError
from shardd.protocol.liftbridge.creation import is_subject
from shardd.protocol.liftbridge.requests import StreamInfo

AGAIN_FIRST_S: Final = 0.1  # between two tries to connect
AGAIN_MAX_S: Final = 5.0
ROOM_S: Final = 5.0  # a message waits so long for room and for a worker; a NATS server gives up on us after 10 s
UNSENT_BYTES_MAX: Final = 8 << 20  # for the NATS server
STEP_MESSAGES: Final = 128  # delivered without giving others a turn
STEP_SUBSCRIPTIONS: Final = 64  # told to the NATS server without giving others a turn
_ADDRESS: Final = "127.0.0.1:0"  # of the client that stores what comes
_log = logging.getLogger(__name__)


class NatsLink:
    """Loop thread only. What comes is stored in the name of `liftbridge.nats.user`."""

    def __init__(self, door: Door, settings: LiftbridgeNats, ingest: Ingest) -> None:
        self.version = 0  # of the streams that the NATS server knows our subscriptions of
        self._door = door
        self._settings = settings
        self._ingest = ingest
        self._outward = Outward(settings)
        self._nats: NatsClient | None = None
        self._subscriptions: dict[Wanted, Subscription] = {}
        self._wanted: dict[int, Wanted] = {}  # by number
        self._client: DoorClient | None = None
        self._has_client = asyncio.Event()
        self._lost_client = asyncio.Event()
        self._is_dropping = False
        self._delivered = 0
        self._out: deque[tuple[str, bytes]] = deque()
        self._out_bytes = 0
        self._has_out = asyncio.Event()
        self._listens = asyncio.Condition()

    async def run(self) -> None:
        """Until it is cancelled: connects, and again whenever the connection is lost."""
        beside = [asyncio.create_task(each) for each in (self._keep_client(), tell_figures(self._door, self._ingest))]
        try:
            delay_s = AGAIN_FIRST_S
            for server in itertools.cycle(self._settings.servers):
                began_s = asyncio.get_running_loop().time()
                await self._serve(server)
                lasted_s = asyncio.get_running_loop().time() - began_s
                delay_s = AGAIN_FIRST_S if lasted_s > AGAIN_MAX_S else min(delay_s * 2, AGAIN_MAX_S)
                await asyncio.sleep(delay_s)
        finally:
            for each in beside:
                each.cancel()
            if self._client is not None:
                await self._door.close_client(self._client)

    async def listens(self, version: int, timeout_s: float) -> bool:
        """Waits until the NATS server knows the subscriptions for this version of the streams; False: in time it did
        not."""
        try:
            async with asyncio.timeout(timeout_s), self._listens:
                await self._listens.wait_for(lambda: self.version >= version)
        except TimeoutError:
            return False
        return True

    # ---- what goes there ----

    def announce(self, subject: str, payload: bytes) -> Stored:
        """A message in its envelope, for whoever else has subscribed. It does not come back. It is sent once, however
        many streams store it: the NATS server knows who hears it."""
        if self._outward.takes_stored(subject):
            self._send(subject, payload, Loss.PUBLISHES)
        else:
            self._ingest.losses.count(Loss.OUTWARD, subject)
        return _hear_no_more

    def takes_unstored(self, subject: str) -> bool:
        return self._outward.takes_unstored(subject)

    def announce_own(self, subject: str, payload: bytes, user_id: int) -> None:
        """A message that no stream takes."""
        if self._outward.takes_unstored(subject):
            self._send(subject, payload, Loss.PUBLISHES)
        else:
            self._ingest.losses.count(Loss.OUTWARD, subject)

    def send_ack(self, inbox: str, payload: bytes, user_id: int) -> None:
        self._send_own_ack(inbox, payload)

    def _send(self, subject: str, payload: bytes, loss: Loss) -> None:
        size = len(subject) + len(payload)
        if (
            self._nats is None
            or not is_subject(subject)
            or len(payload) > self._nats.max_payload
            or self._out_bytes + size > UNSENT_BYTES_MAX
        ):
            self._ingest.losses.count(loss, subject)
            return
        self._out.append((subject, payload))
        self._out_bytes += size
        self._has_out.set()

    def _send_own_ack(self, inbox: str, payload: bytes) -> None:
        if self._outward.takes_ack(inbox):
            self._send(inbox, payload, Loss.ACKS)
        else:
            self._ingest.losses.count(Loss.OUTWARD, inbox)

    async def _send_out(self, nats: NatsClient) -> None:
        while True:
            await self._has_out.wait()
            self._has_out.clear()
            for _ in range(len(self._out)):
                subject, payload = self._out.popleft()
                self._out_bytes -= len(subject) + len(payload)
                try:
                    await nats.publish(subject, payload)
                except NatsError:
                    self._ingest.losses.count(Loss.PUBLISHES, subject)
                    raise

    # ---- what comes from there ----

    async def _deliver(self, number: int, subject: bytes, reply: bytes, payload: bytes, headers: bytes = b"") -> None:
        self._delivered += 1
        if self._delivered % STEP_MESSAGES == 0:
            await asyncio.sleep(0)
        wanted = self._wanted.get(number)
        if wanted is None:
            return
        where = subject.decode(errors="replace")
        partition = wanted.partition_of(where)
        if partition is None:
            return
        targets = self._ingest.view.router.of_subscription(wanted.subject, wanted.group, partition)
        if not targets:
            return
        client = self._client
        if client is None or not self._ingest.publisher.has_room(client):
            client = await self._room()
            if client is None:
                loss = Loss.NO_WORKER if self._client is None else Loss.NO_ROOM
                self._ingest.losses.count(loss, where)
                return
        arrived = Arrived(where, reply.decode(errors="replace"), payload, self._send_own_ack, headers=headers)
        rest = self._ingest.take(client, arrived, targets)
        if rest is None:
            return
        try:
            async with asyncio.timeout(ROOM_S):
                await rest
        except TimeoutError:
            self._ingest.losses.count(Loss.NO_ROOM, where)

    async def _room(self) -> DoorClient | None:
        """Somebody who can publish now. After one message that has waited in vain no other one waits, until there is
        room again: the NATS server would take us for dead."""
        try:
            async with asyncio.timeout(0 if self._is_dropping else ROOM_S):
                while True:
                    await self._has_client.wait()
                    client = self._client
                    assert client is not None
                    await self._ingest.publisher.room(client)
                    if client is self._client:
                        self._is_dropping = False
                        return client
        except TimeoutError:
            self._is_dropping = True
            return None

    # ---- connections ----

    async def _serve(self, server: str) -> None:
        """One connection, as long as it lasts."""
        lost = asyncio.Event()

        async def closed() -> None:
            lost.set()

        async def error(reason: Exception) -> None:
            _log.debug("NATS server %s: %s", server, reason)

        nats = NatsClient(self._deliver, wants_tls=wants_tls(self._settings, server))
        try:
            options = await asyncio.to_thread(connect_options, self._settings, server)
            await nats.connect(**options, closed_cb=closed, disconnected_cb=closed, error_cb=error)
        except (NatsError, OSError, ValueError, TimeoutError) as problem:
            self._ingest.losses.count(Loss.DISCONNECTED, server)
            _log.info("NATS server %s: %s", server, problem or type(problem).__name__)
            await self._close(nats)
            return
        _log.info("connected to the NATS server %s", server)
        self._nats = nats
        tasks = [asyncio.create_task(work) for work in (self._send_out(nats), self._follow(nats), _wait(lost))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            _log.warning(
                "the connection to the NATS server %s is lost; what is published meanwhile is not stored", server
            )
            self._ingest.losses.count(Loss.DISCONNECTED, server)
        finally:
            self._forget()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close(nats)

    def _forget(self) -> None:
        self._nats = None
        self.version = 0
        self._subscriptions.clear()
        self._wanted.clear()
        for subject, _ in self._out:
            self._ingest.losses.count(Loss.PUBLISHES, subject)
        self._out.clear()
        self._out_bytes = 0

    async def _close(self, nats: NatsClient) -> None:
        with contextlib.suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(1):
                await nats.close()

    async def _follow(self, nats: NatsClient) -> None:
        """Subscriptions, as streams come and go."""
        version = 0
        while True:
            version = await self._ingest.view.changed(version)
            await self._subscribe(nats)
            await nats.flush()
            self.version = version
            async with self._listens:
                self._listens.notify_all()

    async def _subscribe(self, nats: NatsClient) -> None:
        all_wanted = AllWanted()
        for _ in all_wanted.finding([*self._ingest.view.streams().values()]):
            await asyncio.sleep(0)
        if all_wanted.left_out:
            _log.error("%d partitions get nothing from NATS: there are too many", all_wanted.left_out)
        gone = [each for each in self._subscriptions if each not in all_wanted.wanted]
        for count, wanted in enumerate(gone, 1):
            subscription = self._subscriptions.pop(wanted)
            await subscription.unsubscribe()
            self._wanted.pop(number_of(subscription), None)
            if count % STEP_SUBSCRIPTIONS == 0:
                await asyncio.sleep(0)
        new = [each for each in all_wanted.wanted if each not in self._subscriptions]
        for count, wanted in enumerate(new, 1):
            await self._add(nats, wanted)
            if count % STEP_SUBSCRIPTIONS == 0:
                await asyncio.sleep(0)

    async def _add(self, nats: NatsClient, wanted: Wanted) -> None:
        try:
            subscription = await nats.listen(wanted.pattern, wanted.group)
        except NatsError as error:
            if nats.is_closed:
                raise
            _log.error("%r gets nothing from NATS: %s", wanted.pattern, error or type(error).__name__)
            return
        self._subscriptions[wanted] = subscription
        self._wanted[number_of(subscription)] = wanted

    async def _keep_client(self) -> None:
        """Somebody at a worker who stores what comes, until it is cancelled."""
        delay_s = AGAIN_FIRST_S
        while True:
            self._lost_client.clear()
            try:
                client = await self._door.open_client(_ADDRESS, self._lost_client.set)
                try:
                    await client.login_by_setting(Purpose.NATS)
                except ShardError:
                    await self._door.close_client(client)
                    raise
            except (ShardError, WorkerLostError) as error:
                level = logging.WARNING if isinstance(error, ShardError) and delay_s >= AGAIN_MAX_S else logging.DEBUG
                _log.log(level, "nobody may store what comes from NATS: %s", error)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, AGAIN_MAX_S)
                continue
            delay_s = AGAIN_FIRST_S
            self._client = client
            self._has_client.set()
            await self._lost_client.wait()
            self._client = None
            self._has_client.clear()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _hear_no_more(_: StreamInfo) -> None:
    pass
