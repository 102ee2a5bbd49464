"""Which partition a message goes to, and how many there are."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from shardd.client import commands, statuses
from shardd.client.errors import (
    ClientError,
    ConnectionLostError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    RightNeededError,
    SettingsError,
    UnavailableError,
)
from shardd.client.wire import Identifier

if TYPE_CHECKING:
    from shardd.client.client import Client
    from shardd.client.values import TopicBounds

Partitioner = Callable[[bytes, bytes, int], int]
"""(key, payload, partitions) -> partition"""

_REFUSED_PAUSE_S: Final = 0.1  # between two tries at a server that refuses connections
_P1: Final = 2654435761
_P2: Final = 2246822519
_P3: Final = 3266489917
_P4: Final = 668265263
_P5: Final = 374761393
_MASK: Final = 0xFFFF_FFFF
_STRIPE: Final = struct.Struct("<IIII")
_WORD: Final = struct.Struct("<I")


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def xxh32(data: bytes) -> int:
    """XXH32 with seed 0, by which the server and all clients choose the partition of a key."""
    size, at = len(data), 0
    if size >= 16:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while at <= size - 16:
            words = _STRIPE.unpack_from(data, at)
            lanes = [
                _rotated((lane + word * _P2) & _MASK, 13) * _P1 & _MASK for lane, word in zip(lanes, words, strict=True)
            ]
            at += 16
        hashed = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
    else:
        hashed = _P5
    hashed = (hashed + size) & _MASK
    while at <= size - 4:
        hashed = _rotated((hashed + _WORD.unpack_from(data, at)[0] * _P3) & _MASK, 17) * _P4 & _MASK
        at += 4
    for byte in data[at:]:
        hashed = _rotated((hashed + byte * _P5) & _MASK, 11) * _P1 & _MASK
    hashed = (hashed ^ hashed >> 15) * _P2 & _MASK
    hashed = (hashed ^ hashed >> 13) * _P3 & _MASK
    return hashed ^ hashed >> 16


def by_key(key: bytes, _payload: bytes, partitions: int) -> int:
    """The one of the server."""
    return xxh32(key) % partitions


def checked(partition: int) -> int:
    """SettingsError."""
    if not 0 <= partition < 1 << 32:
        raise SettingsError(f"partition {partition} is not between 0 and {(1 << 32) - 1}")
    return partition


async def _bounds(client: Client, stream: Identifier, topic: Identifier, deadline_s: float | None) -> TopicBounds:
    try:
        return await client.call(commands.bounds(stream, topic, for_sender=True), deadline_s)
    except InvalidRequestError as refusal:  # from a shardd before version 4
        if refusal.status != statuses.INVALID_FORMAT:
            raise
        return await client.call(commands.bounds(stream, topic), deadline_s)


async def partitions_of(
    client: Client, stream: Identifier, topic: Identifier, deadline_s: float | None = None
) -> int | None:
    """The number of partitions of a topic; None: the topic does not exist. A server that has the command for bounds
    asks for the right to send alone. RightNeededError, ClientError."""
    try:
        found = await client.call(commands.topic(stream, topic), deadline_s)
    except PermissionDeniedError as error:
        try:
            bounds = await _bounds(client, stream, topic, deadline_s)
        except PermissionDeniedError:
            needs = "send_messages, at an older shardd poll_messages or read_topic, too, to choose partitions"
            raise RightNeededError(f"a producer of topic {stream}/{topic} needs the right {needs}", error) from None
        except InvalidRequestError as refusal:
            if refusal.status != statuses.INVALID_COMMAND:
                raise
            needs = "read_topic, too, to choose partitions at this server, as at one of Apache Iggy"
            raise RightNeededError(f"a producer of topic {stream}/{topic} needs the right {needs}", error) from None
        return len(bounds.partitions)
    return None if found is None else found.partitions_count


class TopicSize:
    """How many partitions the topic of a producer has. `count` 0: not known (any more)."""

    def __init__(
        self, client: Client, stream: Identifier, topic: Identifier, deadline_s: float, interval_s: float
    ) -> None:
        self._client, self._stream, self._topic, self._deadline_s = client, stream, topic, deadline_s
        self._interval_s, self._next_s = interval_s, 0.0
        self._loop = asyncio.get_running_loop()
        self._asking = asyncio.Lock()
        self._beside: asyncio.Task[None] | None = None
        self.count = 0
        self._is_untold = False

    def look(self, now_s: float) -> None:
        """It is asked for anew now and then, while batches go on: partitions that were added get some."""
        if now_s >= self._next_s and self.count and self._beside is None:
            self._beside = self._loop.create_task(self._refresh_beside())

    async def need(self, partition: int | None) -> None:
        """Before a message for `partition`, None: for any of them, while the count is not known. A user who is not told
        may still choose. As `refresh`."""
        if self._is_untold and partition is not None:
            return
        try:
            await self.refresh()
        except (PermissionDeniedError, UnavailableError, InvalidRequestError):
            if partition is None:
                raise
            self._is_untold = True

    async def refresh(self) -> None:
        """A server that refuses connections may be starting: it is asked again until the deadline. NotFoundError,
        RightNeededError, ClientError."""
        async with self._asking:
            until_s = self._loop.time() + self._deadline_s
            while True:
                try:
                    count = await partitions_of(self._client, self._stream, self._topic, self._deadline_s)
                    break
                except ConnectionLostError as error:
                    if not error.refused or self._loop.time() + _REFUSED_PAUSE_S >= until_s:
                        raise
                await asyncio.sleep(_REFUSED_PAUSE_S)
            if not count:
                raise NotFoundError(statuses.TOPIC_NOT_FOUND)
            self.count = count
            self._next_s = self._loop.time() + self._interval_s

    async def _refresh_beside(self) -> None:
        try:
            await self.refresh()
        except ClientError:
            self._next_s = self._loop.time() + self._interval_s  # what is sent finds out for itself
        finally:
            self._beside = None

    def close(self) -> None:
        if self._beside is not None:
            self._beside.cancel()
