"""Sends frames to the server in their order, several at a time. A frame without an answer is sent again over a new
connection until its time is over: a frame whose answer was lost may be stored twice, unless it is a batch of an
idempotent producer."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Final, Self

from shardd.client import Connection, ConnectionFailedError
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import Produced, ProducedKind
from shardd.spark.server import needed_right
from shardd.spark.sinks.topic.options import SinkOptions
from shardd.spark.sinks.topic.rows import Frame

_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 2.0
_DOUBLED_MAX: Final = 8  # times, by which the pause is the longest
# The same request may be answered differently a moment later: a restart, a full disk that is being emptied, a topic
# that refuses at its size until messages expire or are archived.
_AGAIN: Final = {
    Status.DISCONNECTED,
    Status.STALE_CLIENT,
    Status.SHARD_COMMUNICATION_ERROR,
    Status.TASK_TIMEOUT,
    Status.CANNOT_WRITE_TO_FILE,
    Status.TOPIC_FULL,
}


class FrameDeliveryError(ConnectionError):
    """A frame that the server refuses for good, or that was not delivered within its time."""


class ProducerEndedError(RuntimeError):
    """The server takes no batch of this epoch (any more), or has not all that it has acknowledged in it."""


class OtherContentError(ProducerEndedError):
    """The number of a batch does not tell whether its rows are stored: another attempt gave it to other rows, or the
    server does not know any more to which."""


class Sender:
    """Sends frames of one task. Back-pressure is the server's: no more than `in_flight` are unanswered.

    `connection`: one that is there already, with nothing on its way."""

    def __init__(self, options: SinkOptions, connection: Connection | None = None) -> None:
        self._options = options
        self._connection = connection
        self._unanswered: deque[Frame] = deque()
        self._sent = 0  # of these: on their way over this connection
        self._failures = 0
        self._until_s: float | None = None  # since the first failure without an answer in between
        self.rows = 0  # answered
        self.answered = 0  # frames
        self.ends: dict[int, int] = {}  # of batches of a producer: the offset behind them, by partition

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def send(self, frame: Frame) -> None:
        """Waits while too many are on their way. `FrameDeliveryError`."""
        self._unanswered.append(frame)
        self._work(self._options.in_flight - 1)

    def use(self, connection: Connection | None) -> None:
        """For what is to be sent, when it has none yet."""
        if self._connection is None:
            self._connection = connection
        elif connection is not None:
            connection.close()

    def forget(self) -> None:
        """What is not answered is not sent again."""
        self._drop()
        self._unanswered.clear()

    def flush(self) -> Connection | None:
        """Until all are answered; gives the connection away. `FrameDeliveryError`."""
        self._work(0)
        connection, self._connection = self._connection, None
        return connection

    def _work(self, unanswered_max: int) -> None:
        while True:
            try:
                self._push()
                while len(self._unanswered) > unanswered_max:
                    self._take_answer()
                    self._push()
                return
            except (ConnectionFailedError, ShardError) as error:
                self._drop()
                self._wait_after(error)
            except (ProducerEndedError, FrameDeliveryError):
                self._drop()
                raise

    def _push(self) -> None:
        if self._connection is None:
            servers = self._options.servers
            address = servers[self._failures % len(servers)]
            self._connection = Connection(address, self._options.credentials, timeout_s=self._options.request_timeout_s)
        while self._sent < min(len(self._unanswered), self._options.in_flight):
            frame = self._unanswered[self._sent]
            code = Code.SEND_MESSAGES if frame.number is None else ExtensionCode.SEND_ONCE_DIGEST
            self._connection.send_frame(code, frame.data)
            self._sent += 1

    def _take_answer(self) -> None:
        assert self._connection is not None
        answer = self._connection.receive()
        frame = self._unanswered[0]
        if frame.number is not None:
            self._judge(frame, Produced.read(Reader(bytes(answer))))
        self._unanswered.popleft()
        self.rows += frame.rows
        self.answered += 1
        self._sent -= 1
        self._failures, self._until_s = 0, None

    def _judge(self, frame: Frame, made: Produced) -> None:
        """`ProducerEndedError`, `FrameDeliveryError`."""
        place = f"partition {frame.partition} of '{self._options.topic}'"
        if made.kind is ProducedKind.DUPLICATE and not made.count:
            raise OtherContentError(f"{place} does not know any more what batch {frame.number} has stored")
        if made.kind is ProducedKind.DIFFERENT_CONTENT:
            raise OtherContentError(f"{place} has stored other rows as batch {frame.number}")
        if made.kind in (ProducedKind.STORED, ProducedKind.DUPLICATE):
            if made.kind is ProducedKind.DUPLICATE and made.count != frame.rows:
                raise OtherContentError(f"{place} has batch {frame.number} with {made.count} rows, not {frame.rows}")
            if made.count:
                self.ends[frame.partition] = max(self.ends.get(frame.partition, 0), made.first + made.count)
            return
        if made.kind is ProducedKind.REFUSED_AT_MEMORY:
            raise FrameDeliveryError(
                f"'{self._options.topic}' has the level memory, which may lose what it has acknowledged: semantics"
                " 'idempotent' needs the level written or durable"
            )
        raise ProducerEndedError(f"{place} answers batch {frame.number} with {made.kind.name.lower()}")

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._sent = None, 0

    def _wait_after(self, error: ConnectionFailedError | ShardError) -> None:
        """Before the next attempt. `FrameDeliveryError` when there is to be none."""
        place = f"'{self._options.topic}'"
        if isinstance(error, ShardError) and error.status not in _AGAIN:
            needed = ""
            if error.status is Status.INVALID_COMMAND and self._unanswered and self._unanswered[0].number is not None:
                needed = "; semantics 'idempotent' needs a server that has send_once_digest (0x53440015): upgrade it"
            if error.status is Status.UNAUTHORIZED:
                needed = f"; the user may not send: {needed_right('send_messages', self._options.topic)}"
            raise FrameDeliveryError(f"rows cannot be sent to {place}: {error}{needed}") from error
        now = time.monotonic()
        if self._until_s is None:
            self._until_s = now + self._options.delivery_timeout_s
        pause = min(_PAUSE_S * 2 ** min(self._failures, _DOUBLED_MAX), _PAUSE_MAX_S)
        if now + pause > self._until_s:
            raise FrameDeliveryError(
                f"rows could not be sent to {place} within {self._options.delivery_timeout_s:g} s (option"
                f" 'deliveryTimeoutMs'): {error}"
            ) from error
        self._failures += 1
        time.sleep(pause)
