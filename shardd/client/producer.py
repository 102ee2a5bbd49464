"""Sends messages in batches, several on the way at a time."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Final, Literal, Self

from shardd.client import commands
from shardd.client.client import Client
from shardd.client.codec import encode_batch, records_of
from shardd.client.errors import (
    ClientError,
    ClosedError,
    ConnectionLostError,
    DeadlineError,
    DeliveryError,
    Fate,
    NotFoundError,
    SettingsError,
)
from shardd.client.idempotence import BATCH_BYTES_MAX as ONCE_BYTES_MAX
from shardd.client.idempotence import Sequencer
from shardd.client.link import Link
from shardd.client.messages import Header, batch_head, encode_headers, encode_record
from shardd.client.outbox import Batch, Lane, Position
from shardd.client.partitioning import Partitioner, TopicSize, by_key, checked
from shardd.client.session import PAUSE_S, Session, pause_s
from shardd.client.wire import Identifier

Delivery = Literal["at_least_once", "at_most_once", "idempotent"]
BATCH_BYTES_MAX: Final = 16 << 20
_RECORD_OVERHEAD_BYTES: Final = 16  # its entry in the index


class Producer:
    """`async with Producer(client, "stream", "topic") as producer:`. Leaving it waits for everything that was sent.

    `linger_ms`: how long a message may wait for others; 0: until the loop has run once. `batch_bytes`: how large a
    batch may grow. `in_flight`: batches on the way. `buffer_bytes`: of messages whose end is not known; `send` waits
    while they are more. `partitioner`: of messages with a key; those without one go to one partition after the other,
    a batch to each. `delivery` after a lost connection: "at_least_once" sends again what may have been stored,
    "at_most_once" does not, "idempotent" does and the server stores it once. After a purge an idempotent producer goes
    on in a new epoch; a message then has an unknown fate only if its answer was lost. `deadline_s`: how long a message
    is tried. `shares_connection`: goes over that of the client, beside its requests, instead of one of its own.
    `refresh_interval_ms`: how often it is asked how many partitions there are. Messages of a key may be in two
    partitions when some were added: those before and those after it was noticed."""

    def __init__(
        self,
        client: Client,
        stream: Identifier,
        topic: Identifier,
        *,
        linger_ms: float = 0.0,
        batch_bytes: int = 256 << 10,
        in_flight: int = 32,
        buffer_bytes: int = 32 << 20,
        partitioner: Partitioner = by_key,
        delivery: Delivery = "at_least_once",
        deadline_s: float | None = None,
        shares_connection: bool = False,
        refresh_interval_ms: float = 10_000.0,
    ) -> None:
        if delivery not in ("at_least_once", "at_most_once", "idempotent"):
            raise SettingsError(f"delivery is at_least_once, at_most_once or idempotent, not {delivery!r}")
        self._batch_max = ONCE_BYTES_MAX if delivery == "idempotent" else BATCH_BYTES_MAX
        if (
            not 0 < batch_bytes <= self._batch_max
            or in_flight < 1
            or buffer_bytes < 1
            or linger_ms < 0
            or refresh_interval_ms <= 0
        ):
            raise SettingsError(
                "batch_bytes, in_flight, buffer_bytes, linger_ms or refresh_interval_ms is out of range"
            )
        self._client = client
        self._session = client.session if shares_connection else Session(client.settings)
        self._own_session = not shares_connection
        self._stream, self._topic = stream, topic
        self._linger_s = linger_ms / 1000
        self._batch_bytes, self._in_flight, self._buffer_bytes = batch_bytes, in_flight, buffer_bytes
        self._partitioner = partitioner
        self._again_when_unknown = delivery != "at_most_once"
        self._once = Sequencer(self._session) if delivery == "idempotent" else None
        self._deadline_s = client.settings.deadline_s if deadline_s is None else deadline_s
        self._loop = asyncio.get_running_loop()
        self._topic_size = TopicSize(client, stream, topic, self._deadline_s, refresh_interval_ms / 1000)
        self._lanes: dict[int, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._open: list[Lane] = []  # have a batch that may still grow
        self._sticky = 0  # where messages without a key go
        self._buffered = 0
        self._on_the_way = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.Handle | None = None
        self._link: Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- sending ----

    async def send(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Mapping[str, Header] | None = None,
    ) -> asyncio.Future[Position]:
        """Takes the message, when there is room for it; the future is done when it is stored, or its fate is known.

        SettingsError, ClosedError, NotFoundError; the future: ClientError, whose `fate` says what became of it."""
        telemetry = self._client.telemetry
        if telemetry is None:
            record = encode_record(payload, encode_headers(headers)) if headers else records_of([payload])[0]
            return await self._put([record], payload, key, partition, None)
        headers, span = telemetry.sending(str(self._topic), headers)
        try:
            answer = await self._put([encode_record(payload, encode_headers(headers))], payload, key, partition, None)
        except BaseException:
            span.end()
            raise
        telemetry.ends(span, answer)
        return answer

    async def send_and_wait(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Mapping[str, Header] | None = None,
    ) -> Position:
        """The same, when it is stored."""
        return await (await self.send(payload, key=key, partition=partition, headers=headers))

    async def send_batch(
        self, payloads: Iterable[bytes], *, key: bytes | None = None, partition: int | None = None
    ) -> asyncio.Future[Position]:
        """Messages that are stored together, one behind the other, or not at all."""
        records = records_of(payloads)
        if not records:
            raise SettingsError("a batch has no message")
        batch = Batch(self._loop.time() + self._deadline_s)
        return await self._put(records, b"", key, partition, batch)

    async def _put(
        self, records: list[bytes], payload: bytes, key: bytes | None, partition: int | None, own: Batch | None
    ) -> asyncio.Future[Position]:
        if self._closed:
            raise ClosedError("this producer is closed")
        size = sum(map(len, records)) + _RECORD_OVERHEAD_BYTES * len(records)
        if (own is not None or self._once is not None) and size > self._batch_max:
            raise SettingsError(f"a batch of {size} bytes is too large, at most {self._batch_max} go together")
        if not self._topic_size.count:
            await self._topic_size.need(partition)
        if self._buffered and self._buffered + size > self._buffer_bytes:
            await self._room_for(size)
            if not self._topic_size.count:  # the topic was deleted meanwhile
                await self._topic_size.need(partition)
        if self._closed:
            raise ClosedError("this producer is closed")
        if self._once is not None and self._once.final is not None:
            raise DeliveryError(self._once.final, Fate.NOT_SENT)
        lane = self._lane(self._chosen(key, payload, partition))
        batch = own or self._open_batch(lane, size)
        answer: asyncio.Future[Position] = self._loop.create_future()
        batch.answers.append(answer)
        batch.records += records
        batch.size_bytes += size
        self._buffered += size
        if own is not None:
            if lane.waiting:
                lane.waiting[-1].sealed = True
            lane.waiting.append(own)
        if own is not None or batch.size_bytes >= self._batch_bytes:
            self._seal(lane)
            self._pump()
        elif self._timer is None:
            self._timer = (
                self._loop.call_later(self._linger_s, self._lingered)
                if self._linger_s
                else self._loop.call_soon(self._lingered)
            )
        return answer

    def _chosen(self, key: bytes | None, payload: bytes, partition: int | None) -> int:
        if partition is not None:
            return checked(partition)
        if key is None:
            return self._sticky % self._topic_size.count
        if not key:
            raise SettingsError("a key is empty")
        return checked(self._partitioner(key, payload, self._topic_size.count))

    def _lane(self, partition: int) -> Lane:
        found = self._lanes.get(partition)
        if found is None:
            found = self._once.lane(partition) if self._once is not None else Lane(partition)
            self._lanes[partition] = found
        return found

    def _open_batch(self, lane: Lane, size: int) -> Batch:
        """The last one of the lane while there is room in it."""
        if lane.waiting and not lane.waiting[-1].sealed:
            batch = lane.waiting[-1]
            if not batch.records or batch.size_bytes + size <= self._batch_bytes:
                return batch
            batch.sealed = True
            self._offer(lane)
        batch = Batch(self._loop.time() + self._deadline_s)
        lane.waiting.append(batch)
        self._open.append(lane)
        return batch

    def _seal(self, lane: Lane) -> None:
        """Its last batch grows no more; the next message without a key goes to another partition."""
        lane.waiting[-1].sealed = True
        if self._topic_size.count and lane.partition == self._sticky % self._topic_size.count:
            self._sticky += 1
        self._offer(lane)

    def _offer(self, lane: Lane) -> None:
        if lane.ready() and not lane.listed:
            lane.listed = True
            self._ready.append(lane)

    def _lingered(self) -> None:
        self._timer = None
        opened, self._open = self._open, []
        for lane in opened:
            if lane.waiting and not lane.waiting[-1].sealed:
                self._seal(lane)
        self._pump()

    async def _room_for(self, size: int) -> None:
        """In the order of who waits."""
        while self._buffered and (self._buffered + size > self._buffer_bytes):
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room.append(waiter)
            self._lingered()
            await waiter

    async def refresh(self) -> None:
        """Asks how many partitions the topic has. NotFoundError, ClientError."""
        await self._topic_size.refresh()

    # ---- the way out ----

    def _pump(self) -> None:
        """Sends what may go, one batch of each partition in turn, or has the connection made."""
        link, once = self._link, self._once
        if once is not None and once.is_over:
            for lane in self._lanes.values():
                self._offer(lane)  # it may have waited for others to be settled
        if link is None or not link.usable or (once is not None and once.is_due):
            wants = any(lane.ready() for lane in self._ready)  # others wait until what failed is settled
            if self._connecting is None and wants and not self._closed:
                self._connecting = self._loop.create_task(self._connect())
            return
        now = self._loop.time()
        self._topic_size.look(now)
        while self._ready and self._on_the_way < self._in_flight and link.usable:
            lane = self._ready.popleft()
            lane.listed = False
            if not lane.ready():
                continue
            if lane.waiting[0].until <= now:
                self._drop(lane, DeadlineError("there was no time to send it"))
            else:
                self._post(link, lane, lane.take())
            self._offer(lane)

    def _post(self, link: Link, lane: Lane, batch: Batch) -> None:
        payload = encode_batch(batch_head(self._stream, self._topic, lane.partition), batch.records)
        code, once = commands.SEND, self._once
        if once is not None:
            code, payload = commands.SEND_ONCE, once.head(lane, batch) + payload
        self._on_the_way += 1
        try:
            patience_s = self._client.settings.patience_s if self._again_when_unknown else math.inf
            future = link.post(code, payload, patience_s=patience_s)
        except ConnectionLostError as error:
            self._answered(lane, batch, error)
            return
        silent = self._loop.call_at(batch.until, link.abort)  # whatever is behind it waits, too

        def ended(done: asyncio.Future[bytes]) -> None:
            silent.cancel()
            error = done.exception()
            if error is None and once is not None:
                error = once.judge(done.result())
            self._answered(lane, batch, error if error is None or isinstance(error, ClientError) else ClientError())

        future.add_done_callback(ended)

    def _answered(self, lane: Lane, batch: Batch, error: ClientError | None) -> None:
        self._on_the_way -= 1
        lane.answered(batch, error)
        if error is None:
            batch.stored(Position(self._stream, self._topic, lane.partition))
            self._released(batch)
        if lane.failed and not lane.on_the_way:
            again = any(each.error is not None and each.error.retryable for each in lane.failed)
            self._loop.call_later(pause_s(lane.attempts) if again else 0, self._settle, lane)
        self._pump()

    def _settle(self, lane: Lane) -> None:
        for batch, error in lane.settle(self._loop.time(), self._again_when_unknown):
            self._end(batch, error)
            if isinstance(error, NotFoundError):
                self._topic_size.count = 0  # asked again by the next message
        self._offer(lane)
        self._pump()

    def _drop(self, lane: Lane, error: ClientError) -> None:
        """Its next batch waits no more."""
        batch = lane.waiting.popleft()
        lane.dropped(batch)
        self._end(batch, error)

    def _end(self, batch: Batch, error: ClientError) -> None:
        batch.failed(error)
        self._released(batch)

    def _released(self, batch: Batch) -> None:
        self._buffered -= batch.size_bytes
        while self._room:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def _connect(self) -> None:
        """Until it works, or nothing waits for it any more."""
        try:
            while waiting := [lane for lane in self._lanes.values() if lane.ready()]:
                until = min(lane.waiting[0].until for lane in waiting)
                try:
                    link = await self._session.link(until)
                    if self._once is not None and self._once.is_due:
                        await self._once.begin(until - self._loop.time())
                    self._link = link
                    return
                except ClientError as error:
                    self._give_up(error, waiting)
        finally:
            self._connecting = None
            self._pump()

    def _give_up(self, error: ClientError, waiting: list[Lane]) -> None:
        """Without a connection: batches whose time is over end; all of them when a login is refused."""
        soon = self._loop.time() + 2 * PAUSE_S
        for lane in waiting:
            while lane.ready() and (not error.retryable or soon >= lane.waiting[0].until):
                self._drop(lane, error)

    # ---- the end ----

    async def flush(self) -> None:
        """Waits until the end of everything that was sent is known. It raises nothing: the futures have the errors."""
        while self._buffered:
            self._lingered()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room.append(waiter)
            await waiter

    async def close(self) -> None:
        """`flush`, then the connection is closed. What was cancelled meanwhile ends with its fate."""
        if self._closed:
            return
        try:
            await self.flush()
        finally:
            self._closed = True
            self._topic_size.close()
            if self._timer is not None:
                self._timer.cancel()
            if self._once is not None:
                self._once.close()
            if self._own_session:
                await self._session.close()
            for lane in self._lanes.values():
                for batch in (*lane.failed, *lane.waiting):
                    self._end(batch, ClosedError("the producer was closed"))
                lane.failed.clear()
                lane.waiting.clear()
