"""Ends the pause of a partition that has stored messages of native clients: in Liftbridge a publish resumes a paused
partition. The Liftbridge door itself resumes the partition before it publishes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from shardd.metadata import Metadata
from shardd.metadata.commands import ResumeLiftbridgeStream
from shardd.metadata.liftbridge_runs import is_on
from shardd.protocol.errors import Status
from shardd.protocol.namespaces import partition_ids
from shardd.runtime.channel import BusError
from shardd.security import ROOT_USER_ID
from shardd.service import base
from shardd.service.users import user_ref

RETRY_S: Final = 0.5  # until those that were refused are tried again: twice as long each time that all of them are, to
RETRY_MAX_S: Final = 30.0
REFUSALS_AT_ONCE_MAX: Final = 256  # then the others wait for the next time
_log = logging.getLogger(__name__)


class LiftbridgeResumptions:
    """Lives on the loop thread. Two changes of the metadata at a time, however many partitions wait: those that are
    refused wait apart, and hold up no others."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._new: dict[int, None] = {}  # namespaces of partitions, each once, oldest first
        self._refused: dict[int, None] = {}
        self._resuming: asyncio.Task[None] | None = None
        self._retrying: asyncio.Task[None] | None = None

    def add(self, namespace: int) -> None:
        """Of a partition that has got a message."""
        self._new[namespace] = None
        if self._resuming is None:
            self._resuming = _start(self._resume_new(), "resume partitions")

    def close(self) -> None:
        for task in (self._resuming, self._retrying):
            if task is not None:
                task.cancel()

    async def _resume_new(self) -> None:
        while self._new:
            namespace = next(iter(self._new))
            del self._new[namespace]  # it is added again when it is paused, and gets a message, meanwhile
            if not await self._resume(namespace):
                self._refused[namespace] = None
                if self._retrying is None:
                    self._retrying = _start(self._retry(), "resume partitions again")
        self._resuming = None

    async def _retry(self) -> None:
        pause_s = RETRY_S
        while self._refused:
            await asyncio.sleep(pause_s)
            resumed = refused = 0
            for namespace in [*self._refused]:
                del self._refused[namespace]
                if await self._resume(namespace):
                    resumed += 1
                    continue
                self._refused[namespace] = None  # behind the others
                refused += 1
                if refused == REFUSALS_AT_ONCE_MAX:
                    break
            pause_s = RETRY_S if resumed else min(2 * pause_s, RETRY_MAX_S)
            if refused and not resumed:
                _log.warning("%d paused partitions that have got messages are resumed later", len(self._refused))
        self._retrying = None

    async def _resume(self, namespace: int) -> bool:
        """False: it is to be tried again. What is gone, or not paused any more, is done."""
        stream_id, topic_id, partition = partition_ids(namespace)
        state = self._metadata.state
        stream = state.streams.get(stream_id)
        topic = None if stream is None else stream.topics.get(topic_id)
        if stream is None or topic is None or topic.liftbridge is None or not is_on(topic.liftbridge.paused, partition):
            return True
        command = ResumeLiftbridgeStream(base.stream_ref(stream), base.topic_ref(topic), partition)
        try:
            result = await self._metadata.submit(user_ref(state.users[ROOT_USER_ID]), command)
        except BusError as error:
            _log.debug("a partition is resumed later: %s", error)
            return False
        except Exception:
            _log.exception("a partition is resumed later")
            return False
        if result.status != Status.OK:
            _log.debug("a partition is resumed later: status %d", result.status)
        return result.status == Status.OK


def _start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    return asyncio.create_task(work, name=name)
