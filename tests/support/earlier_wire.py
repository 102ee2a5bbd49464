"""A connection that speaks an earlier generation (docs/protocol/legacy.md): it is asked as a classic one, writes what
clients of that release write, and gives back what a classic server would have answered."""

from __future__ import annotations

import struct
from typing import Final

from shardd.protocol.legacy.generations import Generation, release_of
from tests.support import wire
from tests.support.wire import Wire

RELEASES: Final = ("0.1.7", "0.4.4", "0.6.31", "0.6.202", "0.7.0", "0.8.0")
NAME_TOO_SHORT: Final = 43
_PARTITION_FLAG: Final = {
    wire.POLL_MESSAGES: 14,
    wire.STORE_OFFSET: 8,
    wire.GET_OFFSET: 0,
}  # bytes behind the partition
_FORM_45: Final = struct.Struct("<QBQ16sII")
_FORM_56: Final = struct.Struct("<Q16sQQQII")


class EarlierWire(Wire):
    """`release`: of the crate `iggy`, one with a login."""

    def __init__(self, address: str, release: str, *, timeout_s: float = 60.0) -> None:
        super().__init__(address, timeout_s=timeout_s)
        self._generation = release_of(release)
        self._release = release

    def login(self, name: str = "iggy", password: str = "iggy") -> int:
        answer = super().request(wire.LOGIN_USER, wire.str8(name) + wire.str8(password) + self._who())
        return int.from_bytes(answer, "little")

    def login_with_token(self, token: str) -> None:
        """A token tells nobody's release: a login that is refused before anything is looked up does."""
        refused = super().status(wire.LOGIN_USER, wire.str8("x") + wire.str8("wrong") + self._who())
        if refused != NAME_TOO_SHORT:
            raise wire.StatusError(wire.LOGIN_USER, refused)
        super().login_with_token(token)

    def request(self, code: int, payload: bytes = b"") -> bytes:
        if code == wire.SEND_MESSAGES:
            return super().request(code, send_as(self._generation, payload))
        if code in _PARTITION_FLAG and not self._generation.has(0, 8, 0):
            payload = without_flag(payload, _PARTITION_FLAG[code])
        answer = super().request(code, payload)
        return answer if code != wire.POLL_MESSAGES else polled_as_classic(self._generation, answer)

    def _who(self) -> bytes:
        if not self._generation.has(0, 5, 0):
            return b""
        return wire.str32(self._release) + wire.str32("")


def without_flag(payload: bytes, behind: int) -> bytes:
    """A partition is its number from 1, or 0 for none."""
    at = len(payload) - behind
    given, number = struct.unpack_from("<BI", payload, at - 5)
    return payload[: at - 5] + struct.pack("<I", number + 1 if given else 0) + payload[at:]


def send_as(generation: Generation, payload: bytes) -> bytes:
    """A classic SEND without user headers."""
    end = 4 + int.from_bytes(payload[:4], "little")
    address, count = payload[4 : end - 4], int.from_bytes(payload[end - 4 : end], "little")
    if address[-6:-4] == b"\x02\x04" and generation.one_based:
        address = address[:-4] + struct.pack("<I", int.from_bytes(address[-4:], "little") + 1)
    sent = wire.parse_messages(payload[end + 16 * count :])
    if not generation.has(0, 7, 0):
        records = (each.id + struct.pack("<II", 0, len(each.payload)) + each.payload for each in sent)
        return address + b"".join(records)
    short = [each.raw[:56] + each.payload for each in sent]
    index, position = b"", 0
    for each in short:
        position += len(each)
        index += struct.pack("<IIQ", 0, position, 0)
    return struct.pack("<I", len(address) + 4) + address + struct.pack("<I", count) + index + b"".join(short)


def polled_as_classic(generation: Generation, answer: bytes) -> bytes:
    """The records as classic ones, whose checksum nobody has told."""
    partition, current, count = struct.unpack_from("<IQI", answer)
    at, records = 16, []
    for _ in range(count):
        if generation.record_form == 56:
            _checksum, id_, offset, timestamp, origin, headers, length = _FORM_56.unpack_from(answer, at)
            payload = answer[at + 56 : at + 56 + length]
            at += 56 + length + headers
        else:
            offset, _state, timestamp, id_, _checksum, headers = _FORM_45.unpack_from(answer, at)
            at += _FORM_45.size + headers
            length, origin = int.from_bytes(answer[at : at + 4], "little"), timestamp
            payload = answer[at + 4 : at + 4 + length]
            at += 4 + length
        records.append(struct.pack("<Q16sQQQIIQ", 0, id_, offset, timestamp, origin, 0, length, 0) + payload)
    first = partition - 1 if generation.one_based and count else partition
    return struct.pack("<IQI", first, current, count) + b"".join(records)
