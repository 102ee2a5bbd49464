"""One blocking connection, over TCP or a Unix socket, that speaks the classic protocol (docs/protocol/framing.md). Used
by one thread."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from shardd.client.closing import Closing
from shardd.client.errors import TlsError
from shardd.client.transport import connect, tls_failure, way_to
from shardd.protocol import account_requests, bounds, leases, limits, replies, requests, topic_settings
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import ExtensionCode, ExtensionList, ExtensionRequest, Metrics
from shardd.protocol.messages import Polled
from shardd.protocol.primitives import Identifier, Reader
from shardd.protocol.reply_forms import each, optional

T = TypeVar("T")
Answer = TypeVar("Answer", bytes, Reader)

_PIECE_BYTES: Final = 1 << 20  # first room for an answer


class ConnectionFailedError(ConnectionError):
    """No connection, or it broke; the message names the address."""


class RefusedError(ShardError):
    """The server answered with a status other than 0 (ERROR stands for one that is in no table)."""

    def __init__(self, code: int, status: int, address: str) -> None:
        super().__init__(_known(status), f"{address} answered {_name(status)}")
        self.code = code


class Credentials(msgspec.Struct, frozen=True):
    """A user with a password, or a personal access token."""

    username: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"Credentials({'token' if self.token else self.username!r})"


class Connection(Closing):
    """Connects and logs in at once. `timeout_s` bounds every call on the socket."""

    def __init__(self, address: str, credentials: Credentials | None = None, *, timeout_s: float = 30.0) -> None:
        """`address` is "host:port", "unix:/path", or "shardd+tls://host:port?ca_file=...".

        `ConnectionFailedError`, `RefusedError` for a refused login.
        """
        self.address = address
        self._asked: deque[int] = deque()  # codes of the requests whose answers are to come
        try:
            self._way = way_to(address)
            self._socket = connect(self._way, timeout_s)
        except TlsError as error:
            raise ConnectionFailedError(str(error)) from error
        except (OSError, ValueError) as error:
            raise ConnectionFailedError(f"cannot connect to {address}: {error}") from error
        try:
            if credentials is not None:
                self._login(credentials)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def wait_at_most(self, timeout_s: float) -> None:
        """For what it sends and receives from now on."""
        self._socket.settimeout(timeout_s)

    def _login(self, credentials: Credentials) -> None:
        if credentials.token:
            token = account_requests.TokenLogin(credentials.token)
            self.request(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, token.encode())
        else:
            login = requests.Login(credentials.username, credentials.password)
            self.request(Code.LOGIN_USER, login.encode())

    # ---- frames ----

    def send(self, code: int, payload: bytes = b"") -> None:
        """Sends one request; its answer is to be received before the one of the next."""
        self.send_frame(code, replies.FRAME_HEAD.pack(len(payload) + limits.FRAME_LENGTH_MIN, code) + payload)

    def send_frame(self, code: int, frame: bytes) -> None:
        """The same with a whole frame, which says `code` itself."""
        self._asked.append(code)
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise ConnectionFailedError(f"{self.address}: {error}") from error

    def receive(self, into: bytearray | None = None) -> memoryview:
        """The payload of the next answer: a view of `into` (grown when it is too small) or of fresh memory.

        `RefusedError` for a status other than 0.
        """
        code = self._asked.popleft()
        head = bytearray(replies.FRAME_HEAD.size)
        self._fill(memoryview(head))
        status, length = replies.FRAME_HEAD.unpack(head)
        target = bytearray() if into is None else into
        filled = 0
        while filled < length:  # memory grows with what arrives, not with what the other side claims
            end = min(length, max(len(target), 2 * filled + _PIECE_BYTES))
            target.extend(bytes(max(end - len(target), 0)))
            with memoryview(target) as whole, whole[filled:end] as piece:
                self._fill(piece)
            filled = end
        if status != Status.OK:
            raise RefusedError(code, status, self.address)
        return memoryview(target)[:length]

    def request(self, code: int, payload: bytes = b"") -> bytes:
        """Sends and receives."""
        self.send(code, payload)
        return bytes(self.receive())

    def _fill(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            try:
                got = self._socket.recv_into(view[done:])
            except OSError as error:
                failure = tls_failure(self._way, error)
                raise ConnectionFailedError(str(failure) if failure else f"{self.address}: {error}") from error
            if got == 0:
                raise ConnectionFailedError(f"{self.address} closed the connection")
            done += got

    # ---- commands ----

    def partition_bounds(self, request: bounds.GetPartitionBounds) -> tuple[bounds.TopicBounds, ...]:
        """`RefusedError` 3 from a server that is not shardd. What is too much for one request is asked for in pieces,
        each of them of its own moment."""
        try:
            return self._partition_bounds(request)
        except RefusedError as error:
            if error.status is not Status.TOO_MANY_PARTITIONS:
                raise
        return tuple(self._topic_bounds(each, request.segments) for each in request.topics)

    def _partition_bounds(self, request: bounds.GetPartitionBounds) -> tuple[bounds.TopicBounds, ...]:
        return _decode(bounds.decode_reply, self.request(ExtensionCode.GET_PARTITION_BOUNDS, request.encode()))

    def _topic_bounds(self, selection: bounds.TopicSelection, segments: bool) -> bounds.TopicBounds:
        """`RefusedError` 2010 when the topic is deleted or made anew on the way."""
        wanted = selection.partitions
        if not wanted:
            found = self.topic(selection.stream, selection.topic)
            if found is None:  # which of the two is missing is for the server to say
                return self._partition_bounds(bounds.GetPartitionBounds((selection,), segments))[0]
            wanted = tuple(range(found.topic.partitions_count))
        return self._piece(replace(selection, partitions=wanted), segments)

    def _piece(self, selection: bounds.TopicSelection, segments: bool) -> bounds.TopicBounds:
        """Halved for as long as it is too much."""
        try:
            return self._partition_bounds(bounds.GetPartitionBounds((selection,), segments))[0]
        except RefusedError as error:
            if error.status is not Status.TOO_MANY_PARTITIONS or len(selection.partitions) < 2:
                raise
        half = len(selection.partitions) // 2
        first = self._piece(replace(selection, partitions=selection.partitions[:half]), segments)
        second = self._piece(replace(selection, partitions=selection.partitions[half:]), segments)
        if (first.stream_id, first.topic_id) != (second.stream_id, second.topic_id):
            raise RefusedError(ExtensionCode.GET_PARTITION_BOUNDS, Status.TOPIC_ID_NOT_FOUND, self.address)
        return replace(first, partitions=first.partitions + second.partitions)

    def topic(self, stream: Identifier, topic: Identifier) -> replies.TopicDetails[replies.PartitionSummary] | None:
        """The topic and its partitions by id; None when there is none."""
        answer = self.request(Code.GET_TOPIC, requests.TopicRequest(stream, topic).encode())
        return _decode(optional(replies.TopicDetails.read), answer)

    def streams(self) -> list[replies.StreamSummary]:
        """All there are, by id."""
        return self._list(replies.StreamSummary.read, Code.GET_STREAMS, b"")

    def topics(self, stream: Identifier) -> list[replies.TopicSummary]:
        """All of a stream, by id."""
        return self._list(replies.TopicSummary.read, Code.GET_TOPICS, requests.StreamRequest(stream).encode())

    def _list(self, read: Callable[[Reader], T], code: Code, payload: bytes) -> list[T]:
        return _decode(each(read), self.request(code, payload))

    def poll(self, request: requests.PollMessages) -> Polled:
        """Decoded, not verified."""
        answer = self.request(Code.POLL_MESSAGES, request.encode())
        return _decode(Polled.read, Reader(answer))

    def poll_each(self, asked: Sequence[requests.PollMessages]) -> list[Polled | ShardError]:
        """As many polls, on their way at once; what each of them is answered. Decoded, not verified."""
        for request in asked:
            self.send(Code.POLL_MESSAGES, request.encode())
        answers: list[Polled | ShardError] = []
        for _ in asked:
            try:
                answers.append(_decode(Polled.read, Reader(bytes(self.receive()))))
            except ShardError as error:
                answers.append(error)
        return answers

    def stored_offset(self, request: requests.OffsetRequest) -> replies.ConsumerOffset | None:
        """What a consumer has stored; None when it has stored nothing."""
        answer = self.request(Code.GET_CONSUMER_OFFSET, request.encode())
        return _decode(replies.ConsumerOffset.read, Reader(answer)) if answer else None

    def store_offset(self, request: requests.StoreOffset) -> None:
        self.request(Code.STORE_CONSUMER_OFFSET, request.encode())

    def settings_of_topic(self, stream: Identifier, topic: Identifier) -> tuple[topic_settings.TopicSetting, ...]:
        request = topic_settings.GetTopicSettings(stream, topic)
        answer = self.request(ExtensionCode.GET_TOPIC_SETTINGS, request.encode())
        return _decode(topic_settings.decode_reply, answer)

    def set_topic_settings(self, request: topic_settings.SetTopicSettings) -> None:
        """Every shard has them when this returns."""
        self.request(ExtensionCode.SET_TOPIC_SETTINGS, request.encode())

    def lease_files(self, request: leases.LeaseFiles) -> None:
        self.request(ExtensionCode.LEASE_FILES, request.encode())

    def ping(self) -> None:
        """Any answer, without a login too."""
        self.request(Code.PING)

    def list_extensions(self) -> ExtensionList:
        """`RefusedError` 3 from a server that is not shardd."""
        answer = self.request(ExtensionCode.LIST_EXTENSIONS, ExtensionRequest().encode())
        return _decode(ExtensionList.read, Reader(answer))

    def metrics(self) -> Metrics:
        answer = self.request(ExtensionCode.GET_METRICS, ExtensionRequest().encode())
        return _decode(Metrics.read, Reader(answer))


def _decode(read: Callable[[Answer], T], answer: Answer) -> T:
    try:
        return read(answer)
    except (ShardError, ValueError, struct.error) as error:
        raise ConnectionFailedError(f"the answer cannot be read: {error}") from error


def _known(status: int) -> Status:
    try:
        return Status(status)
    except ValueError:
        return Status.ERROR


def _name(status: int) -> str:
    known = _known(status)
    return f"status {status} ({known.name})" if known == status else f"status {status}"
