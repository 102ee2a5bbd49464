"""The wire of Apache Iggy 0.9 as far as it differs from the classic one (docs/protocol/iggy-0.9.md): heads, logins,
options. Sans-IO. What frames and batches are is known by the core (native/src/wire/iggy09.h)."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.catalogue import COMMANDS
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Reader

HEAD_BYTES: Final = 256
VERSION: Final = 11264  # 0.11.0: major << 20 | minor << 10 | patch; the only one that is taken
SERVER_VERSION: Final = "0.9.0"
SERVER_SEMVER: Final = 9 << 10  # packed as VERSION
COMMAND_REQUEST: Final = 5

REGISTER: Final = 1
NON_REPLICATED: Final = 2
LOGOUT: Final = 3

OPERATIONS: Final = {entry.operation: code for code, entry in COMMANDS.items() if entry.operation}
"""Those with a number of their own; all other commands are operation 2 with their code."""

DESCRIBE_OPTIONS: Final = 13
SYNC_CONSUMER_GROUP: Final = 606
CLASSIC_LOGINS: Final = frozenset({Code.LOGIN_USER, Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN})

EVICTION: Final = 0x8000_0000
"""As a status of the engine: an eviction with the reason in the low bits."""
NO_SESSION: Final = 1
SESSION_TOO_LOW: Final = 7
INVALID_CREDENTIALS: Final = 9
INVALID_TOKEN: Final = 10
USER_INACTIVE: Final = 11
SESSION_ERROR: Final = 12
INCOMPATIBLE_PROTOCOL: Final = 14
MALFORMED_LOGIN: Final = 15

_OPERATION: Final = 176
_CODE: Final = struct.Struct("<I")
_CODE_AT: Final = 196
_CLIENT: Final = slice(128, 144)


class Head(msgspec.Struct, frozen=True):
    """What Python has to know of the head of a request; the core has checked and will answer the rest of it."""

    operation: int
    code: int  # of NON_REPLICATED
    client: bytes

    @classmethod
    def read(cls, frame: bytes) -> Head:
        return cls(frame[_OPERATION], _CODE.unpack_from(frame, _CODE_AT)[0], frame[_CLIENT])


class Register(msgspec.Struct, frozen=True):
    """A login. `token`: instead of name and password."""

    version: int
    username: str = ""
    password: str = ""
    token: str | None = None

    @classmethod
    def read(cls, body: bytes) -> Register:
        """The shape with name and password, if it takes the body exactly, else the one with a token. `ShardError`: it
        is neither; for another version only the version is read."""
        reader = Reader(body)
        version = reader.u32()
        if version != VERSION:
            return cls(version)
        reader.name(), reader.name()
        rest = reader.take(reader.remaining)
        try:
            reader = Reader(rest)
            username, password = reader.name(), reader.text8()
            reader.take(reader.u32())
            if not reader.remaining:
                return cls(version, username, password)
        except ShardError:
            pass
        reader = Reader(rest)
        token = reader.name()
        reader.take(reader.u32())
        if reader.remaining:
            raise ShardError(Status.INVALID_FORMAT, "surplus bytes")
        return cls(version, token=token)


def registered(user_id: int, session: int) -> bytes:
    return wire.u32(user_id) + wire.u64(session) + wire.u32(VERSION) + wire.text8(SERVER_VERSION)
