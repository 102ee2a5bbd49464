"""Replies about users and tokens (docs/protocol/accounts.md): one frozen type per block, `encode()` gives its bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from shardd.protocol import primitives as wire
from shardd.protocol.permissions import Permissions, encode_permissions

STATUS_ACTIVE: Final = 1
STATUS_INACTIVE: Final = 2
_USER_HEAD: Final = struct.Struct("<IQB")


@dataclass(frozen=True, slots=True)
class User:
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


@dataclass(frozen=True, slots=True)
class Token:
    """Entry of GET_PERSONAL_ACCESS_TOKENS; `expires_at_us` 0: never. The secret itself is never listed."""

    name: str
    expires_at_us: int

    def encode(self) -> bytes:
        return wire.text8(self.name) + wire.u64(self.expires_at_us)
