"""Messages on their way to everybody who listens: the stream that they are addressed to, others on the same subject,
and a NATS server where there is one."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.ingest import ALL
from shardd.doors.liftbridge.publishing import Done, Outcome, Publisher
from shardd.doors.liftbridge.registry import Registry
from shardd.doors.liftbridge.router import Target
from shardd.protocol.errors import Status
from shardd.protocol.liftbridge.creation import RESERVED_STREAMS
from shardd.protocol.liftbridge.records import NewMessage
from shardd.protocol.liftbridge.requests import StreamInfo

_LINE_S: Final = 10.0  # between lines about others that have not got a message
_log = logging.getLogger(__name__)


class Spread:
    """Loop thread only."""

    def __init__(self, registry: Registry, publisher: Publisher, *, all_fsync: bool) -> None:
        self.publisher = publisher
        self._registry = registry
        self._all_fsync = all_fsync
        self._missed = 0
        self._next_line_s = 0.0

    def send(
        self, client: DoorClient, stream: StreamInfo, partition: int, subject: str, request: Any, done: Done
    ) -> None:
        """To a stream, for whoever waits with `done`, and to whoever else listens to the subject."""
        message = message_of(request, subject)
        self._submit(client, stream, partition, message, request, request.expectedOffset, done)
        for target in self.others(Target(stream.name, partition), stream.group, subject):
            self._send_along(client, target, message, request)

    def send_to(self, client: DoorClient, target: Target, message: NewMessage, request: Any, done: Done) -> bool:
        """To one of those who listen; False: it takes none now. What comes by subject expects offset 0."""
        stream = self._awake(target)
        if stream is not None:
            self._submit(client, stream, target.partition, message, request, 0, done)
        return stream is not None

    def others(self, own: Target, group: str, subject: str) -> list[Target]:
        """Who else listens. Of the queue group that the addressed stream is in, it is the one that gets the message."""
        found = self._registry.router.matches(subject)
        if len(found) == 1 and found[0] == own:
            return []
        if own in found or not group:
            return [each for each in found if each != own]
        streams = self._registry.streams()
        return [each for each in found if each != own and streams[each.stream].group != group]

    def _send_along(self, client: DoorClient, target: Target, message: NewMessage, request: Any) -> None:
        stream = self._awake(target)
        if stream is not None:
            self._submit(client, stream, target.partition, message, request, request.expectedOffset, self._along)

    def _awake(self, target: Target) -> StreamInfo | None:
        """What is paused or read-only drops what it gets by subject; the server's own streams get nothing."""
        stream = None if target.stream in RESERVED_STREAMS else self._registry.get(target.stream)
        if stream is None or target.partition in stream.paused or target.partition in stream.readonly:
            return None
        return stream

    def _submit(
        self,
        client: DoorClient,
        stream: StreamInfo,
        partition: int,
        message: NewMessage,
        request: Any,
        expected_offset: int,
        done: Done,
    ) -> None:
        self.publisher.submit(
            client,
            stream,
            partition,
            message,
            expected_offset=expected_offset,
            fsync=self._all_fsync and request.ackPolicy == ALL,
            done=done,
        )

    def _along(self, outcome: Outcome) -> None:
        if outcome.status is Status.OK:
            return
        self._missed += 1
        now_s = time.monotonic()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + _LINE_S
            why = outcome.status.http_code
            _log.warning("%d messages did not get into other streams on their subject: %s", self._missed, why)
            self._missed = 0


def message_of(request: Any, subject: str) -> NewMessage:
    headers = dict(request.headers) if request.headers else {}
    return NewMessage(request.value, request.key, headers, subject)
