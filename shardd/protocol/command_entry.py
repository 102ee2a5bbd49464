"""What the catalogue (`shardd/protocol/catalogue.py`) says of a command."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Generic, Protocol, Self, TypeVar

import msgspec

from shardd.protocol.codes import Code
from shardd.protocol.extensions import DoorCode, ExtensionCode
from shardd.protocol.primitives import Payload, Reader

SMALL_BYTES: Final = 4096
PERMISSIONS_BYTES: Final = 512 << 10
SETTINGS_BYTES: Final = 64 << 10
BOUNDS_BYTES: Final = 1 << 20
SEND_ONCE_BYTES: Final = 4 << 20
SEND_BYTES: Final = 96 << 20
SHORT_ANSWER_BYTES: Final = 16 << 10
WIDE_ANSWER_BYTES: Final = 16 << 20  # answers that grow with what there is; most of them are far smaller


class WireRequest(Protocol):
    """A request type, both directions."""

    @classmethod
    def read(cls, reader: Reader) -> Self: ...
    def encode(self) -> bytes: ...


Q = TypeVar("Q", bound=WireRequest)
R = TypeVar("R")


class Repeat(Enum):
    """Whether a second execution is as good as one, so that a client may ask again when no answer came."""

    NO = "no"
    YES = "yes"
    BY_REQUEST = "by request"  # a field of the request decides


class CommandEntry(msgspec.Struct, Generic[Q, R], frozen=True):
    """A command.

    `payload_bytes_max`: of a request; `answer_bytes`: what a door keeps free for the answer while the command runs.
    `before_login`: a connection needs no login. `changes_login`: doors have frames of their own for it.
    `needs_connection`: the clients of doors get FEATURE_UNAVAILABLE (5). `in_engine`: the engine executes it for
    connections. `rights_first`: a long request is decoded only for users who may change users. `version`: of an
    extension. `operation`: the number that 0.9 has for it; 0: it is operation 2 with the code. `doors`: the kinds of
    doors whose clients alone have the command; empty: every port has it."""

    code: Code | ExtensionCode | DoorCode
    request: type[Q]
    reply: Callable[[Payload], R]
    repeat: Repeat = Repeat.NO
    payload_bytes_max: int = SMALL_BYTES
    answer_bytes: int = SHORT_ANSWER_BYTES
    before_login: bool = False
    changes_login: bool = False
    needs_connection: bool = False
    in_engine: bool = False
    rights_first: bool = False
    version: int = 0
    operation: int = 0
    doors: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.code.name.lower()
