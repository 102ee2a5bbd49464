"""A partition of `__cursors` or `__activity`, which this door writes in nobody's name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from shardd.client.codec import encode_batch
from shardd.doors.door import Door
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge.records import LiftbridgeMessage, encode_records, loaded
from shardd.protocol.liftbridge.requests import InternalPoll, InternalPublish
from shardd.protocol.record_layout import RECORD_HEAD

PUBLISH: Final = "publish"
POLL: Final = "poll"
MESSAGES_OF_POLL: Final = 1_000
_PAYLOAD_BYTES_MAX: Final = 1 << 20
_BATCH_HEAD_BYTES: Final = 8  # of `encode_batch`: what a worker is told beside the batch
_RETRY_S: Final = 0.1
_APPEND_TRIES: Final = 50  # while a worker is replaced
_POLL_TRIES: Final = 300
_FOR_A_WHILE: Final = frozenset({Status.SHARD_COMMUNICATION_ERROR, Status.DISCONNECTED, Status.TASK_TIMEOUT})


class InternalLog:
    """Loop thread only."""

    def __init__(self, door: Door, name: str, partition: int) -> None:
        self._door = door
        self._name = name
        self._partition = partition

    async def append(self, messages: list[LiftbridgeMessage]) -> None:
        """At least once: a worker that is replaced is waited for. ShardError, WorkerLostError when it stays away."""
        records = list(encode_records(messages, "", _PAYLOAD_BYTES_MAX))
        batch = bytes(memoryview(encode_batch(b"", records))[_BATCH_HEAD_BYTES:])
        await self._done(PUBLISH, InternalPublish(self._name, self._partition, len(records), batch), _APPEND_TRIES)

    async def read(self) -> AsyncIterator[LiftbridgeMessage]:
        """All that is there, from the oldest on. ShardError, WorkerLostError when workers stay away."""
        offset = 0
        while True:
            polled = await self._poll(offset, MESSAGES_OF_POLL)
            if not polled["count"]:
                return
            for found_at, message in _messages(polled):
                offset = found_at + 1
                yield message
            await asyncio.sleep(0)

    async def last(self) -> LiftbridgeMessage | None:
        """The newest one."""
        polled = await self._poll(0, 1)
        if not polled["count"]:
            return None
        newest = await self._poll(polled["current_offset"], 1)
        found = [message for _, message in _messages(newest)]
        return found[-1] if found else None

    async def _poll(self, offset: int, count: int) -> dict[str, Any]:
        said: dict[str, Any] = await self._done(
            POLL, InternalPoll(self._name, self._partition, offset, count), _POLL_TRIES
        )
        return said

    async def _done(self, name: str, request: InternalPublish | InternalPoll, tries: int) -> Any:
        for left in reversed(range(tries)):
            try:
                return await self._door.task(name, request)
            except (ShardError, WorkerLostError) as error:
                if not left or (isinstance(error, ShardError) and error.status not in _FOR_A_WHILE):
                    raise
                await asyncio.sleep(_RETRY_S)
        raise AssertionError


def _messages(polled: dict[str, Any]) -> Iterator[tuple[int, LiftbridgeMessage]]:
    """With their offsets."""
    at, records = 0, polled["records"]
    for _ in range(polled["count"]):
        _, _, offset, _, _, headers, payload, _ = RECORD_HEAD.unpack_from(records, at)
        body = at + RECORD_HEAD.size
        end = body + payload
        at = end + headers
        yield offset, loaded(records[body:end], records[end:at], "")
