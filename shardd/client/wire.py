"""Bytes of requests and answers (docs/protocol/primitives.md). Sans-IO, of the standard library alone."""

from __future__ import annotations

import struct
from typing import Any, Final

from shardd.client.errors import ProtocolError, SettingsError

Identifier = int | str
"""A numeric id, or a name; a name that looks like a number is a name."""

FRAME_HEAD: Final = struct.Struct("<II")
CODE_BYTES: Final = 4  # counted in the length of a request
NEVER: Final = (1 << 64) - 1  # an expiry that does not come, a size without a limit
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


def u8(value: int) -> bytes:
    return bytes((value,))


def u32(value: int) -> bytes:
    return _U32.pack(value)


def u64(value: int) -> bytes:
    return _U64.pack(value)


def text8(value: str) -> bytes:
    data = value.encode()
    if len(data) > 255:
        raise SettingsError(f"{value[:20]!r}... has more than 255 bytes")
    return bytes((len(data),)) + data


def text32(value: str) -> bytes:
    data = value.encode()
    return _U32.pack(len(data)) + data


def identifier(value: Identifier) -> bytes:
    if isinstance(value, int):
        return b"\x01\x04" + _U32.pack(value)
    if not value:
        raise SettingsError("a name is empty")
    return b"\x02" + text8(value)


def identifiers(*values: Identifier) -> bytes:
    return b"".join(map(identifier, values))


def optional_partition(value: int | None) -> bytes:
    return b"\x00\x00\x00\x00\x00" if value is None else b"\x01" + _U32.pack(value)


def consumer(group: bool, name: Identifier) -> bytes:
    return (b"\x02" if group else b"\x01") + identifier(name)


def frame(code: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(len(payload) + CODE_BYTES, code) + payload


class Reader:
    """Reads an answer from its beginning. ProtocolError when it is cut."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Whether something is left."""
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise ProtocolError("an answer is cut")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self.take(layout.size))

    def u8(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a text of an answer is not UTF-8") from error

    def text8(self) -> str:
        return self.text(self.u8())

    def text32(self) -> str:
        return self.text(self.u32())
