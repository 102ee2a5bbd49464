"""Reply of CREATE_ACCESS_TOKEN and REFRESH_ACCESS_TOKEN, commands of doors (docs/protocol/doors.md#codes). Sans-IO."""

from __future__ import annotations

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.primitives import Reader


class AccessToken(msgspec.Struct, frozen=True):
    """`expires_at_s`: seconds since the epoch. `token` is longer than a str8."""

    user_id: int
    token: str
    expires_at_s: int

    @classmethod
    def read(cls, reader: Reader) -> AccessToken:
        user_id, expires_at_s = reader.u32(), reader.u64()
        return cls(user_id, reader.text32(), expires_at_s)

    def encode(self) -> bytes:
        return wire.u32(self.user_id) + wire.u64(self.expires_at_s) + wire.text32(self.token)
