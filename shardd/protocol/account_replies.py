"""What services answer about users and tokens, as `replies` (docs/protocol/accounts.md)."""

from __future__ import annotations

import struct
from typing import Final

import msgspec
from msgspec.structs import replace

from shardd.protocol import primitives as wire
from shardd.protocol.permissions import Permissions, encode_permissions, read_permissions
from shardd.protocol.primitives import Reader

STATUS_ACTIVE: Final = 1
STATUS_INACTIVE: Final = 2
_USER_HEAD: Final = struct.Struct("<IQB")


class UserDetails(msgspec.Struct, frozen=True):
    """Entry of GET_USERS and head of the details."""

    id: int
    created_at_us: int
    active: bool
    username: str
    permissions: Permissions | None = None

    def encode(self) -> bytes:
        """The entry of a list."""
        status = STATUS_ACTIVE if self.active else STATUS_INACTIVE
        return _USER_HEAD.pack(self.id, self.created_at_us, status) + wire.text8(self.username)

    def encode_details(self) -> bytes:
        """UserDetails; four zero bytes stand for no permissions."""
        if self.permissions is None:
            return self.encode() + bytes(4)
        return self.encode() + wire.u8(1) + encode_permissions(self.permissions)

    @classmethod
    def read(cls, reader: Reader) -> UserDetails:
        """The entry of a list."""
        number, created_at_us, status = _USER_HEAD.unpack(reader.take(_USER_HEAD.size))
        return cls(number, created_at_us, status == STATUS_ACTIVE, reader.text8())

    @classmethod
    def read_details(cls, reader: Reader) -> UserDetails:
        user = cls.read(reader)
        permissions = read_permissions(reader) if reader.u8() == 1 else None
        return replace(user, permissions=permissions)


class TokenSummary(msgspec.Struct, frozen=True):
    """Entry of GET_PERSONAL_ACCESS_TOKENS; `expires_at_us` 0: never. The secret itself is never listed."""

    name: str
    expires_at_us: int

    def encode(self) -> bytes:
        return wire.text8(self.name) + wire.u64(self.expires_at_us)

    @classmethod
    def read(cls, reader: Reader) -> TokenSummary:
        return cls(reader.text8(), reader.u64())


class TokenSecret(msgspec.Struct, frozen=True):
    """Answer of CREATE_PERSONAL_ACCESS_TOKEN."""

    text: str

    def encode(self) -> bytes:
        return wire.text8(self.text)

    @classmethod
    def read(cls, reader: Reader) -> TokenSecret:
        return cls(reader.text8())


class LoggedIn(msgspec.Struct, frozen=True):
    """Answer of both logins."""

    user_id: int

    def encode(self) -> bytes:
        return wire.u32(self.user_id)

    @classmethod
    def read(cls, reader: Reader) -> LoggedIn:
        return cls(reader.u32())
