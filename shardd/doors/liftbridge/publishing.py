"""Messages on their way into partitions: what a client publishes to a partition is stored in the order in which it was
submitted. What is submitted in one turn of the loop, or while a batch is under way, becomes one batch."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from shardd.client.codec import encode_batch
from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.publish_batches import Batch, Done, Key, Outcome, Pending, Queue, encode_some, next_batch
from shardd.doors.liftbridge.publish_turns import PublishTurns, share_of
from shardd.doors.liftbridge.refusals import Refusals, refused
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.records import LiftbridgeMessage
from shardd.protocol.liftbridge.requests import BATCH_MESSAGES_MAX, NO_EXPECTED_OFFSET, Publish, StreamInfo
from shardd.runtime.crowds import Member, SharedRoom

PENDING_BYTES_MAX: Final = 64 << 20  # not answered yet, of all clients: with their overhead 131,072 messages at most
UNDER_WAY_BYTES_MAX: Final = 32 << 20  # sent to workers, and not answered yet
APART_BYTES: Final = 2 << 10  # of each client, which count in no share: one small message at a time costs no count
AHEAD_PART: Final = 8  # a client counts with 1/8 more than it has: most messages are not counted one by one
TURN_PART: Final = 16  # a client that waits has its turn when the largest message fits; 1/16 of all is enough
MESSAGE_OVERHEAD_BYTES: Final = 512  # what a message costs beside its bytes
HEADER_OVERHEAD_BYTES: Final = 128  # and each of its headers
TURN_MESSAGES_MAX: Final = BATCH_MESSAGES_MAX  # encoded in one turn of the loop, and told of, but
TURN_S: Final = 0.005  # is the longest that a turn tells: what whoever hears of a message does takes its time
GATHERED_MESSAGES: Final = 64  # that came while a batch was under way are the next one at once; fewer wait for others
GATHER_S: Final = 0.001
COMMAND: Final = "liftbridge_publish"
CONCURRENCY_CONTROL: Final = "optimisticConcurrencyControl"
_BATCH_HEAD_BYTES: Final = 8  # of `encode_batch`: what a worker is told beside the batch
_NS_PER_US: Final = 1_000
_log = logging.getLogger(__name__)


_NOTHING: Final = Outcome(Status.OK)


_Turn = tuple[DoorClient, asyncio.Future[None]]


class _Submitted:
    """What a client has submitted and has not heard of: `size`, of which workers have `sent`. `pending`, `under_way`:
    its parts of the rooms; up to `size_counted` nothing more has to be counted. `coming`: turns that it was given, and
    that have not come yet: each has room in `pending`."""

    __slots__ = ("client", "coming", "messages", "pending", "sent", "settled", "size", "size_counted", "under_way")

    def __init__(self, client: DoorClient) -> None:
        owner, network = share_of(client)
        self.client = client
        self.pending = Member(owner, network, _stays, at_work=True)
        self.under_way = Member(owner, network, _stays, at_work=True)
        self.size = self.sent = self.messages = self.coming = 0
        self.size_counted = APART_BYTES
        self.settled: asyncio.Event | None = None


class Hearing(Protocol):
    """Those who hear of what is stored. `is_behind`: some have not yet; `caught_up` is called when all have."""

    caught_up: Callable[[], None]

    @property
    def is_behind(self) -> bool: ...


class Publisher:
    """Loop thread only. `message_bytes_max`: of a value, and of a whole message where it becomes one payload.
    `gather_s`: how long a few messages of who sends ahead wait for others.
    `arrived` is told of what is stored: stream, partition, where it ends now, the time of its newest message."""

    def __init__(self, message_bytes_max: int, gather_s: float = GATHER_S) -> None:
        self._gather_s = gather_s
        self.arrived: Callable[[StreamInfo, int, int, int], None] = lambda stream, partition, end, timestamp_ns: None
        self._message_bytes_max = message_bytes_max
        self._queues: dict[Key, Queue] = {}
        self._under_way = SharedRoom(UNDER_WAY_BYTES_MAX)
        self._ready = PublishTurns[Queue](self._under_way, 1, self._has_sent_nothing)  # not under way
        self._answered: deque[Batch] = deque()  # of which nobody has heard yet
        self._is_due = False
        self._hearing: Hearing | None = None
        self._refusals = Refusals()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending = SharedRoom(PENDING_BYTES_MAX)
        self._submitted: dict[DoorClient, _Submitted] = {}
        self._turn_bytes = min(message_bytes_max + MESSAGE_OVERHEAD_BYTES, PENDING_BYTES_MAX // TURN_PART)
        self._ample_bytes = PENDING_BYTES_MAX // 4 - self._turn_bytes  # up to this, each share has room for a turn
        self._coming, self._coming_max = 0, max(self._ample_bytes // (2 * self._turn_bytes), 1)  # turns
        self._waiting = PublishTurns[_Turn](self._pending, self._turn_bytes, lambda client: False)  # these have

    def follow(self, hearing: Hearing) -> None:
        """From now on answers wait while it is behind: whoever publishes goes at the pace of those who hear."""
        self._hearing = hearing
        hearing.caught_up = self._be_due

    @property
    def _is_held(self) -> bool:
        return self._hearing is not None and self._hearing.is_behind

    @property
    def pending_messages(self) -> int:
        return sum(each.messages for each in self._submitted.values())

    @property
    def pending_bytes(self) -> int:
        return sum(each.size for each in self._submitted.values())

    def has_room(self, client: DoorClient) -> bool:
        """Whether `room` returns at once. A client that has submitted nothing waits for no other one of its address
        while its user has room: so one message at a time comes through beside those who send ahead."""
        used = self._pending.used
        if used <= self._ample_bytes:
            return True
        mine = self._submitted.get(client)
        owner, network = share_of(client)
        if mine is None or mine.size + mine.coming * self._turn_bytes < mine.pending.size:
            return used <= PENDING_BYTES_MAX // 3 or self._pending.leaves_as_much(owner, network)
        return self._pending.has_room(owner, network, self._turn_bytes)

    async def room(self, client: DoorClient) -> None:
        """Until the client may submit one message: whoever has waited for it submits without waiting for anything else
        in between. Users come in turn, and their clients: a share that is full holds up no other one."""
        if self.has_room(client):
            return
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn: _Turn = (client, came)
        self._waiting.put(client, turn)
        try:
            await came
        except asyncio.CancelledError:
            self._waiting.drop(client, turn)
            raise
        finally:
            if came.done() and not came.cancelled():
                self._submitted[client].coming -= 1
                self._coming -= 1

    def submit(
        self,
        client: DoorClient,
        stream: StreamInfo,
        partition: int,
        message: LiftbridgeMessage,
        *,
        expected_offset: int = NO_EXPECTED_OFFSET,
        fsync: bool = False,
        done: Done | None = None,
        refusal: str = "",
    ) -> None:
        """`done` hears what became of it, in another turn of the loop. Without concurrency control of the stream the
        expected offset does not count. `fsync`: what is in one batch waits for the device together. `refusal`: the
        message is too large, as the caller has found out; it is refused in its turn, after the right was asked."""
        if not stream.settings.get(CONCURRENCY_CONTROL):
            expected_offset = NO_EXPECTED_OFFSET
        size = len(message.value) + len(message.key) + MESSAGE_OVERHEAD_BYTES
        if message.headers:
            size += sum(len(name) + len(value) + HEADER_OVERHEAD_BYTES for name, value in message.headers.items())
        key = (client, stream.stream_id, stream.topic_id, stream.incarnation, partition)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = Queue(client, stream, partition, key)
            self._make_ready(queue)
        queue.waiting.append(Pending(message, size, expected_offset, fsync, done, refusal))
        mine = self._submitted.get(client)
        if mine is None:
            mine = self._submitted[client] = _Submitted(client)
        mine.messages += 1
        mine.size += size
        if mine.size > mine.size_counted:
            self._count_pending(mine)

    async def settled(self, client: DoorClient) -> None:
        """Until everything that the client has submitted is answered."""
        mine = self._submitted.get(client)
        if mine is not None:
            await _settled(mine)

    async def drained(self) -> None:
        """Until everything that has been submitted is answered."""
        while self._submitted:
            await _settled(next(iter(self._submitted.values())))

    # ---- a turn of the loop: so many messages, whatever has come ----

    def _make_ready(self, queue: Queue) -> None:
        self._ready.put(queue.client, queue)
        self._be_due()

    def _be_due(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_due = False
        if self._answered:
            self._tell_some()
            self._let_in()
        left = TURN_MESSAGES_MAX
        while left > 0 and (queue := self._ready.take()) is not None:
            batch = next_batch(queue.waiting)
            left -= len(batch)
            size = sum(pending.size for pending in batch)
            self._count_under_way(queue.client, size)
            task = asyncio.create_task(self._send(queue, batch, size), name="publish")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if (self._answered and not self._is_held) or self._ready.has_next:
            self._be_due()

    def _count_under_way(self, client: DoorClient, size: int) -> None:
        mine = self._submitted[client]
        mine.sent += size
        self._under_way.count(mine.under_way, mine.sent if mine.sent > APART_BYTES else 0)

    def _has_sent_nothing(self, client: DoorClient) -> bool:
        mine = self._submitted.get(client)
        return mine is None or not mine.sent

    async def _send(self, queue: Queue, batch: list[Pending], size: int) -> None:
        base = _NOTHING
        try:
            records, batch, base = self._records_of(queue, batch)
            if records:
                base = await _stored(queue, batch, records)
                if self._refusals.has_stored(queue.client, queue.stream):
                    queue.client.when_left(self._forget)
                count = len(batch)
                self.arrived(
                    queue.stream, queue.partition, base.offset + count, base.timestamp_ns + (count - 1) * _NS_PER_US
                )
        except WorkerLostError:
            base = refused(Status.TASK_TIMEOUT, "the worker was lost")
        except ShardError as error:
            base = refused(error.status, str(error))
        except Exception as error:  # of this program: whoever waits hears of it all the same
            _log.exception("a batch for %s", queue.stream.name)
            base = refused(Status.ERROR, str(error))
        if base.status is not Status.OK:
            base = await self._refusals.judged(queue.client, queue.stream, base)
        self._count_under_way(queue.client, -size)
        self._answered.append(Batch(queue.client, batch, base))
        alone = queue.stream.settings.get(CONCURRENCY_CONTROL)  # each is a batch of its own
        if len(queue.waiting) >= (1 if alone or not self._gather_s else GATHERED_MESSAGES):
            self._make_ready(queue)
        elif queue.waiting:  # somebody sends ahead: a batch of one or two costs more than this moment
            asyncio.get_running_loop().call_later(self._gather_s, self._make_ready, queue)
            self._be_due()
        else:
            del self._queues[queue.key]
            self._be_due()

    def _records_of(self, queue: Queue, batch: list[Pending]) -> tuple[list[bytes], list[Pending], Outcome]:
        """Records, and their messages: those in front of the first message that cannot be stored. That message is
        refused alone, in its turn, so that answers have the order of the messages."""
        records, refusal = encode_some(batch, queue.subject, self._message_bytes_max)
        if not refusal:
            return records, batch, _NOTHING
        taken = max(len(records), 1)
        queue.waiting.extendleft(reversed(batch[taken:]))
        return records, batch[:taken], refused(Status.TOO_BIG_MESSAGE_PAYLOAD, refusal)

    def _tell_some(self) -> None:
        """Whoever waits hears what became of it. There is room again when all of a batch have."""
        clock, left = asyncio.get_running_loop().time, TURN_MESSAGES_MAX
        end_s = clock() + TURN_S
        while self._answered and left > 0 and not self._is_held:
            batch = self._answered[0]
            base, messages = batch.base, batch.messages
            for at in range(batch.told, len(messages)):
                if left <= 0 or self._is_held or (left < TURN_MESSAGES_MAX and clock() >= end_s):
                    return
                left -= 1
                batch.told = at + 1
                done = messages[at].done
                if done is None:
                    continue
                outcome = base
                if base.status is Status.OK and at:
                    outcome = Outcome(Status.OK, base.offset + at, base.timestamp_ns + at * _NS_PER_US)
                try:
                    done(outcome)
                except Exception:
                    _log.exception("what hears of a message")
            self._answered.popleft()
            self._give_back(batch.client, messages)

    # ---- room ----

    def _give_back(self, client: DoorClient, messages: list[Pending]) -> None:
        mine = self._submitted[client]
        mine.size -= sum(pending.size for pending in messages)
        mine.messages -= len(messages)
        if mine.coming:
            return  # it is counted when they have come
        counted = mine.size_counted
        if not mine.messages:
            self._end(mine)
        elif counted > APART_BYTES and mine.size + counted // (AHEAD_PART // 2) < counted:
            self._count_pending(mine)

    def _end(self, mine: _Submitted) -> None:
        """Nothing of it is left."""
        del self._submitted[mine.client]
        self._pending.count(mine.pending, 0)
        if mine.settled is not None:
            mine.settled.set()
        if not mine.client.is_open:
            self._refusals.forget(mine.client)

    def _forget(self, client: DoorClient) -> None:
        """It has left: what is not answered yet is judged first."""
        if client not in self._submitted:
            self._refusals.forget(client)

    def _count_pending(self, mine: _Submitted) -> None:
        """Nothing ahead of those who wait."""
        member = mine.pending
        self._count_pending_as(mine, mine.size + mine.size // AHEAD_PART)
        room = self._pending
        if room.used > self._ample_bytes and not room.has_room(member.owner, member.address, self._turn_bytes):
            self._count_pending_as(mine, mine.size)

    def _count_pending_as(self, mine: _Submitted, size: int) -> None:
        self._pending.count(mine.pending, size)
        mine.size_counted = size

    def _let_in(self) -> None:
        """Those that wait and have room, which is theirs until the next step. Few at once: many would keep it all."""
        let = list[_Submitted]()
        while self._coming < self._coming_max and (turn := self._waiting.take()) is not None:
            client, came = turn
            if came.done():  # cancelled
                continue
            mine = self._submitted.get(client)
            if mine is None:
                mine = self._submitted[client] = _Submitted(client)
            self._count_pending_as(mine, max(mine.size, mine.pending.size) + self._turn_bytes)
            came.set_result(None)
            mine.coming += 1
            self._coming += 1
            let.append(mine)
        if let:
            asyncio.get_running_loop().call_soon(self._end_turns, let)

    def _end_turns(self, let: list[_Submitted]) -> None:
        """They have come, and keep room for what they have submitted: perhaps nothing."""
        for mine in let:
            if mine.coming:
                continue
            if mine.messages:
                self._count_pending(mine)
            elif self._submitted.get(mine.client) is mine:
                self._end(mine)
        self._let_in()


async def _settled(mine: _Submitted) -> None:
    if mine.settled is None:
        mine.settled = asyncio.Event()
    await mine.settled.wait()


def _stays() -> None:
    raise AssertionError("a message on its way does not give way")


async def _stored(queue: Queue, batch: list[Pending], records: list[bytes]) -> Outcome:
    """Of the first message. ShardError, WorkerLostError."""
    stream = queue.stream
    request = Publish(
        stream_id=stream.stream_id,
        topic_id=stream.topic_id,
        incarnation=stream.incarnation,
        partition=queue.partition,
        count=len(records),
        batch=memoryview(encode_batch(b"", records))[_BATCH_HEAD_BYTES:],  # type: ignore[arg-type]  # no copy
        expected_offset=batch[0].expected_offset,
        fsync=any(pending.fsync for pending in batch),
    )
    said = await queue.client.command(COMMAND, request)
    return Outcome(Status.OK, said["base_offset"], said["timestamp_us"] * _NS_PER_US)
