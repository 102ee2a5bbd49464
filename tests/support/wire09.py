"""A connection that speaks 0.9 (docs/protocol/iggy-0.9.md): it is asked as a classic one, writes what clients of 0.9
write, and gives back what a classic server would have answered. A member of a group asks which partitions it has, and
polls them in turn."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final

from xxhash import xxh3_64_intdigest as xxh3_64

from shardd.protocol import iggy09
from tests.support import wire
from tests.support.iggy09 import EVICTION, REFUSED, RESULT_FRAMED, head
from tests.support.wire import Wire

RELEASE: Final = "0.9"
EVICTED: Final = 0x8000_0000  # of a StatusError, with the reason
_SYNC_GROUP, _NOT_OWNED, _NOT_A_MEMBER = 606, 5009, 5006
_OPERATION_OF: Final[dict[int, int]] = {code: operation for operation, code in iggy09.OPERATIONS.items()}
_WITH_ACKNOWLEDGEMENT: Final = frozenset({121, 122})
_GROUP: Final = 2
_ROUNDS: Final = 4  # over its partitions, then a member asks again
_JOIN, _LEAVE = 604, 605
_BATCH: Final = struct.Struct("<QQQQQQI204x")
_SUMMED: Final = struct.Struct("<QQQQQI")
_FRAME: Final = struct.Struct("<16sIIIIQ")  # behind its checksum


class Wire09(Wire):
    """One session of one client, whose requests are numbered."""

    def __init__(self, address: str, *, timeout_s: float = 60.0) -> None:
        super().__init__(address, timeout_s=timeout_s)
        self._client = os.urandom(16)
        self._session, self._next = 0, 1
        self._assigned: dict[bytes, Iterator[int]] = {}  # by stream, topic and group

    def login(self, name: str = "iggy", password: str = "iggy") -> int:
        return self._register(wire.str8(name) + wire.str8(password))

    def login_with_token(self, token: str) -> None:
        self._register(wire.str8(token))

    def exchange(self, code: int, payload: bytes = b"") -> tuple[int, bytes]:
        if code == wire.SEND_MESSAGES:
            payload = send_as_09(payload)
        elif code in _WITH_ACKNOWLEDGEMENT:
            payload += b"\x01"
        elif code == wire.POLL_MESSAGES and payload[0] == _GROUP:
            return self._poll_of_member(payload)
        elif code in (_JOIN, _LEAVE):
            self._assigned.clear()
        status, answer = self._ask(code, payload)
        return status, polled_as_classic(answer) if code == wire.POLL_MESSAGES and status == 0 else answer

    def _register(self, who: bytes) -> int:
        body = struct.pack("<I", iggy09.VERSION) + wire.str8("rust-sdk") + wire.str8("0.11.0") + who + bytes(4)
        self.send_bytes(head(256 + len(body), iggy09.REGISTER, client=self._client) + body)
        status, answer = self._answer()
        if status != 0:
            raise wire.StatusError(iggy09.REGISTER, status)
        user, self._session = struct.unpack_from("<IQ", answer)
        return int(user)

    def _ask(self, code: int, body: bytes) -> tuple[int, bytes]:
        operation = _OPERATION_OF.get(code, iggy09.NON_REPLICATED)
        numbered = operation != iggy09.NON_REPLICATED
        first = head(
            256 + len(body), operation, 0 if numbered else code, self._next, self._session, client=self._client
        )
        self._next += numbered
        self.send_bytes(first + body)
        return self._answer()

    def _answer(self) -> tuple[int, bytes]:
        first = self.receive(256)
        body = self.receive(struct.unpack_from("<I", first, 48)[0] - 256)
        if first[60] == EVICTION:
            return EVICTED | first[255], b""
        if first[208] in RESULT_FRAMED and body[:8] == REFUSED:
            return struct.unpack_from("<I", body, 8)[0], b""
        has_result = first[208] in RESULT_FRAMED or first[208] in (iggy09.REGISTER, 161, 162)
        return struct.unpack_from("<I", first, 216)[0], body[4:] if has_result else body

    def _poll_of_member(self, payload: bytes) -> tuple[int, bytes]:
        """As released clients do: the next one of its partitions; after a fence, and now and then, it asks again what
        it has."""
        behind = len(payload) - 19  # flag and partition, then 14 bytes
        names = payload[1:behind]
        group_bytes = 2 + names[1]
        asked = names[group_bytes:] + names[:group_bytes]
        for _ in range(2):
            if asked not in self._assigned and (status := self._sync(asked)) != 0:
                return status, b""
            partition = next(self._assigned[asked], None)
            if partition is None:
                del self._assigned[asked]
                continue
            chosen = payload[:behind] + b"\x01" + struct.pack("<I", partition) + payload[behind + 5 :]
            status, answer = self._ask(wire.POLL_MESSAGES, chosen)
            if status != _NOT_OWNED:
                return status, polled_as_classic(answer) if status == 0 else answer
            del self._assigned[asked]
        return 0, bytes(16)

    def _sync(self, asked: bytes) -> int:
        status, answer = self._ask(_SYNC_GROUP, asked)
        if status != 0 or not answer:
            return status or _NOT_A_MEMBER
        _generation, count = struct.unpack_from("<QI", answer)
        partitions = struct.unpack_from(f"<{count}I", answer, 12)
        self._assigned[asked] = iter(partitions * _ROUNDS)
        return 0


def send_as_09(payload: bytes) -> bytes:
    """A classic SEND."""
    end = 4 + int.from_bytes(payload[:4], "little")
    count = int.from_bytes(payload[end - 4 : end], "little")
    sent = wire.parse_messages(payload[end + 16 * count :])
    first = min(each.origin_timestamp_us for each in sent)
    frames, sums = [], []
    for number, each in enumerate(sent):
        sizes = (len(each.headers), len(each.payload), 0)
        rest = _FRAME.pack(each.id, number, each.origin_timestamp_us - first, *sizes) + each.payload + each.headers
        sums.append(struct.pack("<Q", xxh3_64(rest)))
        frames.append(sums[-1] + rest)
    length = _BATCH.size + sum(map(len, frames))
    checksum = xxh3_64(_SUMMED.pack(0, 0, 0, first, length, count) + b"".join(sums))
    return payload[:end] + _BATCH.pack(0, 0, 0, first, length, checksum, count) + b"".join(frames)


def polled_as_classic(answer: bytes) -> bytes:
    """The records as classic ones, whose checksum nobody has told. ValueError: a checksum is wrong, or a batch is not
    of the partition."""
    partition, _current, count = struct.unpack_from("<IQI", answer)
    at, records = 16, []
    while at < len(answer):
        of, base, timestamp, first, length, checksum, frames = _BATCH.unpack_from(answer, at)
        end, at, sums = at + length, at + _BATCH.size, b""
        for _ in range(frames):
            id_, delta, origin, headers_length, size, _reserved = _FRAME.unpack_from(answer, at + 8)
            data = answer[at + 8 + _FRAME.size :][: size + headers_length]
            sums += answer[at : at + 8]
            if xxh3_64(answer[at + 8 : at + 8 + _FRAME.size] + data) != int.from_bytes(sums[-8:], "little"):
                raise ValueError(f"the checksum of offset {base + delta} is wrong")
            values = (0, id_, base + delta, timestamp, first + origin, headers_length, size, 0)
            records.append(struct.pack("<Q16sQQQIIQ", *values) + data)
            at += 8 + _FRAME.size + len(data)
        if at != end or of != partition:
            raise ValueError(f"a batch of partition {of} of {length} bytes in an answer of partition {partition}")
        if checksum != xxh3_64(_SUMMED.pack(of, base, timestamp, first, length, frames) + sums):
            raise ValueError(f"the checksum of the batch at offset {base} is wrong")
    if len(records) != count:
        raise ValueError(f"{count} messages announced, {len(records)} carried")
    return answer[:16] + b"".join(records)
