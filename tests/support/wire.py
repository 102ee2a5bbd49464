"""A small blocking client of the classic wire, written from docs/protocol alone.

It shares no code with `shardd.protocol`, so that a misreading on one side shows as a difference. One `Wire` is one TCP
connection and is used by one thread. Integers are little-endian, timestamps microseconds.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardd.client.closing import Closing

PING, GET_STATS, GET_CLUSTER_METADATA, GET_ME, GET_CLIENTS = 1, 10, 12, 20, 22
LOGIN_USER, LOGOUT_USER, CREATE_TOKEN, LOGIN_WITH_TOKEN = 38, 39, 42, 44
POLL_MESSAGES, SEND_MESSAGES, FLUSH_UNSAVED_BUFFER = 100, 101, 102
GET_OFFSET, STORE_OFFSET, DELETE_OFFSET = 120, 121, 122
GET_STREAM, GET_STREAMS, CREATE_STREAM, DELETE_STREAM, UPDATE_STREAM, PURGE_STREAM = 200, 201, 202, 203, 204, 205
GET_TOPIC, GET_TOPICS, CREATE_TOPIC, DELETE_TOPIC, UPDATE_TOPIC, PURGE_TOPIC = 300, 301, 302, 303, 304, 305
CREATE_PARTITIONS, DELETE_PARTITIONS = 402, 403
GET_CONSUMER_GROUP = 600

POLL_OFFSET, POLL_TIMESTAMP, POLL_FIRST, POLL_LAST, POLL_NEXT = 1, 2, 3, 4, 5
HEADER_SIZE = 64
Who = int | str | bytes  # a consumer by id or name; bytes: a consumer or a group as the wire has it
_HEADER = struct.Struct("<Q16sQQQIIQ")


class StatusError(Exception):
    """The server answered with an error status (docs/protocol/statuses.md)."""

    def __init__(self, code: int, status: int) -> None:
        super().__init__(f"command {code}: status {status}")
        self.code = code
        self.status = status


@dataclass(frozen=True, slots=True)
class Message:
    """One message as a poll returns it. `raw` is the whole record (64-byte header, payload, user headers)."""

    offset: int
    timestamp_us: int
    origin_timestamp_us: int
    id: bytes
    checksum: int
    reserved: int
    payload: bytes
    headers: bytes
    raw: bytes


@dataclass(frozen=True, slots=True)
class Polled:
    """A poll answer (docs/protocol/messages.md#poll)."""

    partition: int
    current_offset: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class PartitionDetails:
    id: int
    segments_count: int
    current_offset: int
    size_bytes: int
    messages_count: int


def identifier(value: int | str) -> bytes:
    """Identifier of docs/protocol/primitives.md#identifier: a number or a name."""
    if isinstance(value, int):
        return struct.pack("<BBI", 1, 4, value)
    name = value.encode()
    return struct.pack("<BB", 2, len(name)) + name


def str8(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


def str32(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def to_partition(partition: int) -> bytes:
    return struct.pack("<BBI", 2, 4, partition)


def to_key(key: bytes) -> bytes:
    return struct.pack("<BB", 3, len(key)) + key


def balanced() -> bytes:
    return b"\x01\x00"


def consumer(value: Who = 1) -> bytes:
    return value if isinstance(value, bytes) else b"\x01" + identifier(value)


def group(value: int | str) -> bytes:
    return b"\x02" + identifier(value)


def optional_partition(partition: int | None) -> bytes:
    return bytes(5) if partition is None else struct.pack("<BI", 1, partition)


def message(
    payload: bytes, headers: bytes = b"", *, message_id: bytes = bytes(16), origin_timestamp_us: int = 0
) -> bytes:
    """A message as a client sends it (docs/protocol/messages.md#message): checksum, offset and timestamp are the
    server's."""
    return _HEADER.pack(0, message_id, 0, 0, origin_timestamp_us, len(headers), len(payload), 0) + payload + headers


def batch(stream: int | str, topic: int | str, partitioning: bytes, messages: Sequence[bytes]) -> bytes:
    """Payload of SEND_MESSAGES (docs/protocol/messages.md#batch) from whole messages."""
    address = identifier(stream) + identifier(topic) + partitioning + struct.pack("<I", len(messages))
    index, end = bytearray(), 0
    for item in messages:
        end += len(item)
        index += struct.pack("<IIQ", 0, end, 0)
    return struct.pack("<I", len(address)) + address + bytes(index) + b"".join(messages)


def parse_messages(data: bytes) -> tuple[Message, ...]:
    """Messages back to back; ValueError when the bytes do not end at a message border."""
    found, at = [], 0
    while at < len(data):
        if len(data) - at < HEADER_SIZE:
            raise ValueError(f"{len(data) - at} bytes left, less than a message header")
        checksum, id_, offset, timestamp, origin, headers_length, payload_length, reserved = _HEADER.unpack_from(
            data, at
        )
        middle = at + HEADER_SIZE + payload_length
        end = middle + headers_length
        if end > len(data):
            raise ValueError(f"message at byte {at} ends at {end}, after the {len(data)} bytes of the answer")
        payload, headers = data[at + HEADER_SIZE : middle], data[middle:end]
        found.append(Message(offset, timestamp, origin, id_, checksum, reserved, payload, headers, data[at:end]))
        at = end
    return tuple(found)


def parse_polled(data: bytes) -> Polled:
    partition, current, count = struct.unpack_from("<IQI", data)
    messages = parse_messages(data[16:])
    if len(messages) != count:
        raise ValueError(f"{count} messages announced, {len(messages)} carried")
    return Polled(partition, current, messages)


def frame(code: int, payload: bytes = b"") -> bytes:
    return struct.pack("<II", len(payload) + 4, code) + payload


def host_and_port(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host, int(port)


def exactly(source: socket.socket, size: int) -> bytes:
    """So many bytes; ConnectionError when the other side closes before."""
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        got = source.recv_into(view[filled:])
        if got == 0:
            raise ConnectionError(f"closed by the other side, {filled} of {size} bytes came")
        filled += got
    return bytes(data)


class Wire(Closing):
    """One connection. Raises StatusError for an error status, OSError (also ConnectionError, TimeoutError)."""

    def __init__(
        self, address: str, *, timeout_s: float = 60.0, receive_buffer_bytes: int | None = None, source: str = ""
    ) -> None:
        self.address = address
        local = address.startswith("/")  # the path of a Unix socket
        self.socket = socket.socket(socket.AF_UNIX if local else socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes is not None:  # must be set before the handshake to bound the window
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        if source:  # another address of this host, for instance 127.0.0.2
            self.socket.bind((source, 0))
        self.socket.settimeout(timeout_s)
        if not local:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket.connect(address if local else host_and_port(address))
        except OSError:
            self.socket.close()
            raise

    def close(self) -> None:
        self.socket.close()

    # ---- frames
    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, size: int) -> bytes:
        """Exactly `size` bytes; ConnectionError when the server closes before."""
        return exactly(self.socket, size)

    def reply(self) -> tuple[int, bytes]:
        """The next reply as (status, payload)."""
        status, length = struct.unpack("<II", self.receive(8))
        return status, self.receive(length)

    def exchange(self, code: int, payload: bytes = b"") -> tuple[int, bytes]:
        self.send_bytes(frame(code, payload))
        return self.reply()

    def request(self, code: int, payload: bytes = b"") -> bytes:
        status, answer = self.exchange(code, payload)
        if status != 0:
            raise StatusError(code, status)
        return answer

    def status(self, code: int, payload: bytes = b"") -> int:
        return self.exchange(code, payload)[0]

    # ---- commands
    def ping(self) -> None:
        self.request(PING)

    def login(self, name: str = "iggy", password: str = "iggy") -> int:
        """Returns the user id."""
        answer = self.request(LOGIN_USER, str8(name) + str8(password) + bytes(8))
        return int.from_bytes(answer, "little")

    def create_token(self, name: str) -> str:
        """One that does not expire."""
        return self.request(CREATE_TOKEN, str8(name) + struct.pack("<Q", 2**64 - 1))[1:].decode()

    def login_with_token(self, token: str) -> None:
        self.request(LOGIN_WITH_TOKEN, str8(token))

    def create_stream(self, name: str) -> int:
        return int.from_bytes(self.request(CREATE_STREAM, str8(name))[:4], "little")

    def delete_stream(self, stream: int | str) -> None:
        self.request(DELETE_STREAM, identifier(stream))

    def create_topic(self, stream: int | str, name: str, partitions_count: int) -> int:
        fixed = struct.pack("<IBQQB", partitions_count, 1, 0, 0, 0)
        answer = self.request(CREATE_TOPIC, identifier(stream) + fixed + str8(name))
        return int.from_bytes(answer[:4], "little")

    def purge_topic(self, stream: int | str, topic: int | str) -> None:
        self.request(PURGE_TOPIC, identifier(stream) + identifier(topic))

    def send(self, stream: int | str, topic: int | str, partitioning: bytes, messages: Iterable[bytes]) -> None:
        """Sends whole messages (see `message`) in one request."""
        self.request(SEND_MESSAGES, batch(stream, topic, partitioning, list(messages)))

    def poll(
        self,
        stream: int | str,
        topic: int | str,
        partition: int | None,
        *,
        strategy: int = POLL_OFFSET,
        value: int = 0,
        count: int = 100,
        auto_commit: bool = False,
        who: Who = 1,
    ) -> Polled:
        where = stream, topic, partition
        return parse_polled(
            self.poll_raw(*where, strategy=strategy, value=value, count=count, auto_commit=auto_commit, who=who)
        )

    def poll_raw(
        self,
        stream: int | str,
        topic: int | str,
        partition: int | None,
        *,
        strategy: int = POLL_OFFSET,
        value: int = 0,
        count: int = 100,
        auto_commit: bool = False,
        who: Who = 1,
    ) -> bytes:
        """The answer as it came: a head of 16 bytes, whose last four are the count, and the messages."""
        place = consumer(who) + identifier(stream) + identifier(topic) + optional_partition(partition)
        return self.request(POLL_MESSAGES, place + struct.pack("<BQIB", strategy, value, count, auto_commit))

    def read_all(
        self, stream: int | str, topic: int | str, partition: int, *, count: int = 1000, timeout_s: float = 60.0
    ) -> list[Message]:
        """Every message of a partition from offset 0 on, read by offset. TimeoutError after `timeout_s`."""
        found: list[Message] = []
        next_offset, deadline = 0, time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            polled = self.poll(stream, topic, partition, value=next_offset, count=count)
            if not polled.messages:
                return found
            found.extend(polled.messages)
            next_offset = polled.messages[-1].offset + 1
        raise TimeoutError(f"partition {partition} was not read to its end in {timeout_s} s")

    def store_offset(self, stream: int | str, topic: int | str, partition: int, offset: int, who: Who = 1) -> None:
        address = consumer(who) + identifier(stream) + identifier(topic) + optional_partition(partition)
        self.request(STORE_OFFSET, address + struct.pack("<Q", offset))

    def get_offset(self, stream: int | str, topic: int | str, partition: int, who: Who = 1) -> int | None:
        address = consumer(who) + identifier(stream) + identifier(topic) + optional_partition(partition)
        answer = self.request(GET_OFFSET, address)
        return int.from_bytes(answer[12:20], "little") if answer else None

    def group_members(self, stream: int | str, topic: int | str, group: int | str) -> dict[int, list[int]]:
        """Partitions of each member of a consumer group by its id, in the order of the server."""
        answer = self.request(GET_CONSUMER_GROUP, identifier(stream) + identifier(topic) + identifier(group))
        members, position = {}, 13 + answer[12]
        while position < len(answer):
            member_id, count = struct.unpack_from("<II", answer, position)
            members[member_id] = list(struct.unpack_from(f"<{count}I", answer, position + 8))
            position += 8 + 4 * count
        return members

    def streams(self) -> dict[str, int]:
        """Names and ids of all streams."""
        data, at, found = self.request(GET_STREAMS), 0, {}
        while at < len(data):
            length = data[at + 32]
            found[data[at + 33 : at + 33 + length].decode()] = int.from_bytes(data[at : at + 4], "little")
            at += 33 + length
        return found

    def partitions(self, stream: int | str, topic: int | str) -> list[PartitionDetails]:
        """Partition part of GET_TOPIC; empty when the topic does not exist."""
        data = self.request(GET_TOPIC, identifier(stream) + identifier(topic))
        if not data:
            return []
        at, found = 51 + data[50], []
        while at < len(data):
            id_, _created, segments, current, size, count = struct.unpack_from("<IQIQQQ", data, at)
            found.append(PartitionDetails(id_, segments, current, size, count))
            at += 40
        return found


def connect(address: str, *, deadline_s: float = 60.0, timeout_s: float = 60.0) -> Wire:
    """A logged-in connection; tries again until `deadline_s` has passed (a worker may be starting), then raises."""
    end = time.monotonic() + deadline_s
    while True:
        wire: Wire | None = None
        try:
            wire = Wire(address, timeout_s=timeout_s)
            wire.login()
            return wire
        except (OSError, StatusError):
            if wire is not None:
                wire.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
