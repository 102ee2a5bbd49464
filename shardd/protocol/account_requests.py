"""Requests about users, their tokens and the server's own state: codes 11, 31-37, 41-44, 503
(docs/protocol/accounts.md, docs/protocol/system.md). Sans-IO, both directions. The value of a user's status is only
judged after the login check, so it is kept as sent.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.permissions import Permissions, encode_permissions, read_permissions
from shardd.protocol.primitives import Identifier, Reader


class SnapshotCompression(IntEnum):
    """docs/protocol/system.md#get-snapshot."""

    STORED = 1
    DEFLATED = 2
    BZIP2 = 3
    ZSTD = 4
    LZMA = 5
    XZ = 6


class SnapshotType(IntEnum):
    """What a snapshot may hold; ALL stands alone (docs/protocol/system.md#get-snapshot)."""

    FILESYSTEM_OVERVIEW = 1
    PROCESS_LIST = 2
    RESOURCE_USAGE = 3
    TEST = 4
    SERVER_LOGS = 5
    SERVER_CONFIG = 6
    ALL = 100


class GetSnapshot(msgspec.Struct, frozen=True):
    """A type may be given twice; no type at all is an archive without members."""

    compression: SnapshotCompression
    types: tuple[SnapshotType, ...]

    @classmethod
    def read(cls, reader: Reader) -> GetSnapshot:
        compression = reader.u8()
        types = tuple(reader.take(reader.u8()))
        try:
            request = cls(SnapshotCompression(compression), tuple(map(SnapshotType, types)))
        except ValueError as error:
            raise ShardError(Status.INVALID_COMMAND, "unknown option of a snapshot") from error
        if SnapshotType.ALL in request.types and len(request.types) > 1:
            raise ShardError(Status.INVALID_COMMAND, "all stands alone")
        return request

    def encode(self) -> bytes:
        return wire.u8(self.compression) + wire.u8(len(self.types)) + bytes(self.types)


class UserRequest(msgspec.Struct, frozen=True):
    """GET_USER, DELETE_USER."""

    user: Identifier

    @classmethod
    def read(cls, reader: Reader) -> UserRequest:
        return cls(reader.identifier())

    def encode(self) -> bytes:
        return wire.identifier(self.user)


def _read_optional_permissions(reader: Reader) -> Permissions | None:
    return read_permissions(reader) if reader.u8() == 1 else None


def _encode_optional_permissions(permissions: Permissions | None) -> bytes:
    return wire.u8(0) if permissions is None else wire.u8(1) + encode_permissions(permissions)


class CreateUserRequest(msgspec.Struct, frozen=True):
    """`status` as sent: 1 active, 2 inactive. Bytes behind a missing permission block are ignored (Node SDK)."""

    username: str
    password: str
    status: int
    permissions: Permissions | None = None

    @classmethod
    def read(cls, reader: Reader) -> CreateUserRequest:
        return cls(reader.name(), reader.text8(), reader.u8(), _read_optional_permissions(reader))

    def encode(self) -> bytes:
        head = wire.text8(self.username) + wire.text8(self.password) + wire.u8(self.status)
        return head + _encode_optional_permissions(self.permissions)


class UpdateUserRequest(msgspec.Struct, frozen=True):
    """None: stays as it is. `status` as sent."""

    user: Identifier
    username: str | None = None
    status: int | None = None

    @classmethod
    def read(cls, reader: Reader) -> UpdateUserRequest:
        user = reader.identifier()
        username = reader.name() if reader.u8() == 1 else None
        return cls(user, username, reader.u8() if reader.u8() == 1 else None)

    def encode(self) -> bytes:
        username = wire.u8(0) if self.username is None else wire.u8(1) + wire.text8(self.username)
        status = wire.u8(0) if self.status is None else wire.u8(1) + wire.u8(self.status)
        return wire.identifier(self.user) + username + status


class UpdatePermissionsRequest(msgspec.Struct, frozen=True):
    """None takes all rights away."""

    user: Identifier
    permissions: Permissions | None

    @classmethod
    def read(cls, reader: Reader) -> UpdatePermissionsRequest:
        return cls(reader.identifier(), _read_optional_permissions(reader))

    def encode(self) -> bytes:
        return wire.identifier(self.user) + _encode_optional_permissions(self.permissions)


class ChangePasswordRequest(msgspec.Struct, frozen=True):
    user: Identifier
    current_password: str
    new_password: str

    @classmethod
    def read(cls, reader: Reader) -> ChangePasswordRequest:
        return cls(reader.identifier(), reader.text8(), reader.text8())

    def encode(self) -> bytes:
        return wire.identifier(self.user) + wire.text8(self.current_password) + wire.text8(self.new_password)


class CreateTokenRequest(msgspec.Struct, frozen=True):
    """`expiry_us`: a duration; 0 and 2^64-1 mean never (docs/protocol/primitives.md#topic-values)."""

    name: str
    expiry_us: int

    @classmethod
    def read(cls, reader: Reader) -> CreateTokenRequest:
        return cls(reader.name(), reader.u64())

    def encode(self) -> bytes:
        return wire.text8(self.name) + wire.u64(self.expiry_us)


class DeleteTokenRequest(msgspec.Struct, frozen=True):
    name: str

    @classmethod
    def read(cls, reader: Reader) -> DeleteTokenRequest:
        return cls(reader.name())

    def encode(self) -> bytes:
        return wire.text8(self.name)


class TokenLogin(msgspec.Struct, frozen=True):
    """LOGIN_WITH_PERSONAL_ACCESS_TOKEN."""

    token: str

    @classmethod
    def read(cls, reader: Reader) -> TokenLogin:
        return cls(reader.name())

    def encode(self) -> bytes:
        return wire.text8(self.token)


class DeleteSegments(msgspec.Struct, frozen=True):
    stream: Identifier
    topic: Identifier
    partition: int
    count: int

    @classmethod
    def read(cls, reader: Reader) -> DeleteSegments:
        return cls(reader.identifier(), reader.identifier(), reader.u32(), reader.u32())

    def encode(self) -> bytes:
        address = wire.identifier(self.stream) + wire.identifier(self.topic)
        return address + wire.u32(self.partition) + wire.u32(self.count)
