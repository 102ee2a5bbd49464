"""Producers and consumers for threads."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from shardd.client.closing import Closing
from shardd.client.consumer import Consumer
from shardd.client.messages import Header, Message
from shardd.client.outbox import Position
from shardd.client.positions import Start
from shardd.client.producer import Producer
from shardd.client.sync import SyncClient
from shardd.client.wire import Identifier

Answer = concurrent.futures.Future[Position]


class SyncProducer(Closing):
    """A `Producer` for any thread, also several at a time. Options are those of `Producer`."""

    def __init__(self, client: SyncClient, stream: Identifier, topic: Identifier, **options: Any) -> None:
        self._run = client.portal.run

        async def make() -> Producer:
            return Producer(client.client, stream, topic, **options)

        self._producer = self._run(make())

    def send(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Mapping[str, Header] | None = None,
    ) -> Answer:
        """Takes the message when there is room for it; the future is done when it is stored."""
        return self._taken(self._producer.send(payload, key=key, partition=partition, headers=headers))

    def send_and_wait(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Mapping[str, Header] | None = None,
    ) -> Position:
        return self._run(self._producer.send_and_wait(payload, key=key, partition=partition, headers=headers))

    def send_batch(
        self, payloads: Iterable[bytes], *, key: bytes | None = None, partition: int | None = None
    ) -> Answer:
        """Messages that are stored together or not at all."""
        return self._taken(self._producer.send_batch(payloads, key=key, partition=partition))

    def _taken(self, taking: Coroutine[Any, Any, Any]) -> Answer:
        answer: Answer = concurrent.futures.Future()

        async def take() -> None:
            def ended(done: Any) -> None:
                if done.cancelled():
                    answer.cancel()
                elif (error := done.exception()) is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(done.result())

            (await taking).add_done_callback(ended)

        self._run(take())
        return answer

    def flush(self) -> None:
        self._run(self._producer.flush())

    def refresh(self) -> None:
        self._run(self._producer.refresh())

    def close(self) -> None:
        self._run(self._producer.close())


class SyncConsumer:
    """A `Consumer` for one thread. Options are those of `Consumer`; callbacks run in the thread of the loop."""

    def __init__(self, client: SyncClient, stream: Identifier, topic: Identifier, **options: Any) -> None:
        self._run = client.portal.run

        async def make() -> Consumer:
            return Consumer(client.client, stream, topic, **options)

        self._consumer = self._run(make())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._consumer.__aexit__(kind, error, trace))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return self.get()

    def get(self) -> Message:
        return self._run(self._consumer.get())

    def get_batch(self) -> list[Message]:
        return self._run(self._consumer.get_batch())

    def commit(self) -> None:
        self._run(self._consumer.commit())

    def done(self) -> None:
        self._consumer.done()

    @property
    def partitions(self) -> tuple[int, ...]:
        return self._consumer.partitions

    def pause(self, *partitions: int) -> None:
        self._consumer.pause(*partitions)

    def resume(self, *partitions: int) -> None:
        self._consumer.resume(*partitions)

    def seek(self, start: Start, *partitions: int) -> None:
        self._run(self._consumer.seek(start, *partitions))

    def close(self) -> None:
        self._run(self._consumer.close())
