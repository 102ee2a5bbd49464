"""Frames between a door and a worker (docs/protocol/doors.md), sans-IO, both directions.

    u32 length of what follows | u64 request id | u8 kind | payload, MessagePack

Integers are little-endian. The payload of an answer begins with a u32 status and a u8 of flags.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

import msgspec

from shardd.protocol.door_figures import What

REQUEST_BYTES_MAX: Final = 8 << 20  # a frame of a door, all in all
ANSWER_BYTES_MAX: Final = 64 << 20  # a frame of a worker
PROOF_BYTES_MAX: Final = 1024  # the first frame of a connection
CLIENT_SHARE: Final = 2  # one door has at most 1/2 of `server.connections_max`, in equal parts at all workers
CLIENT_CLOSED: Final = 1  # flag of an answer: the client that asked is closed
_HEAD: Final = struct.Struct("<IQB")
_LENGTH: Final = struct.Struct("<I")
_ANSWER: Final = struct.Struct("<IB")
_encoder: Final = msgspec.msgpack.Encoder()
_LARGE_BYTES: Final = 16 << 10  # payloads from here on are not copied out of what has come
_HEAD_BEHIND_LENGTH: Final = _HEAD.size - _LENGTH.size


class Kind(enum.IntEnum):
    """What a frame is: up to 127 from a door, above from a worker."""

    PROVE = 1
    OPEN_CLIENT = 2
    CLOSE_CLIENT = 3
    LOGIN = 4
    LOGIN_WITH_TOKEN = 5
    LOGOUT = 6
    COMMAND = 7
    LOGIN_WITH_ACCESS_TOKEN = 8
    FIGURES = 9
    LOGIN_BY_SETTING = 10
    TASK = 11
    ANSWER = 128
    CLIENT_ENDED = 129
    METADATA_CHANGED = 130


class FrameError(Exception):
    """The other side broke the protocol: the connection ends."""


class _Payload(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Fields in their order."""


class Prove(_Payload):
    """The first frame: name with incarnation, and the key for this worker."""

    id: str
    key: str

    def __repr__(self) -> str:
        return f"Prove({self.id}, ***)"


class OpenClient(_Payload):
    """`address` of the client itself: "ip:port" or "[v6]:port". Answer: the number of the client."""

    address: str


class CloseClient(_Payload):
    client: int


class Login(_Payload):
    """Answer: `LoggedIn`."""

    client: int
    username: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.client}, ***)"


class LoginWithToken(_Payload):
    """Answer: `LoggedIn`."""

    client: int
    token: str

    def __repr__(self) -> str:
        return f"LoginWithToken({self.client}, ***)"


class LoginWithAccessToken(_Payload):
    """An access token, or a personal one. Answer: `LoggedIn`. The login ends with what the token rests on."""

    client: int
    token: str

    def __repr__(self) -> str:
        return f"LoginWithAccessToken({self.client}, ***)"


class LoggedIn(_Payload):
    """The handle is good on this connection only. `owner`: the user for which the things stored in its name count, as
    an incarnation; 0: for no user."""

    handle: int
    user_id: int
    owner: int


class Logout(_Payload):
    handle: int


class Command(_Payload):
    """`request` as the service wants it: a map of its fields. `trace`: a traceparent, or "". Answer: what the service
    returns."""

    handle: int
    name: str
    request: msgspec.Raw
    trace: str = ""


class Figures(_Payload):
    """In nobody's name: what this door may know of the server (door_figures.py). Answer: as `what` says."""

    what: What


class Purpose(enum.StrEnum):
    """Who a client of a door is without a login of its own, by the setting that says so."""

    ANONYMOUS = "anonymous"  # liftbridge.anonymous_user
    NATS = "nats"  # liftbridge.nats.user


class LoginBySetting(_Payload):
    """Answer: `LoggedIn`. The user is that of the worker's settings, never root."""

    client: int
    purpose: Purpose


class Task(_Payload):
    """In nobody's name: what the server itself wants done, and has a door for. Answer: as the task says."""

    name: str
    request: msgspec.Raw


class MetadataChanged(_Payload):
    """Unasked: there is a newer record. Not one for each; the door that needs it (`liftbridge`) hears it."""

    index: int


class ClientEnded(_Payload):
    """Unasked: the worker has closed a client."""

    client: int
    status: int


REQUESTS: Final[dict[int, type[_Payload]]] = {
    Kind.PROVE: Prove,
    Kind.OPEN_CLIENT: OpenClient,
    Kind.CLOSE_CLIENT: CloseClient,
    Kind.LOGIN: Login,
    Kind.LOGIN_WITH_TOKEN: LoginWithToken,
    Kind.LOGOUT: Logout,
    Kind.COMMAND: Command,
    Kind.LOGIN_WITH_ACCESS_TOKEN: LoginWithAccessToken,
    Kind.FIGURES: Figures,
    Kind.LOGIN_BY_SETTING: LoginBySetting,
    Kind.TASK: Task,
}
Request = (
    Prove
    | OpenClient
    | CloseClient
    | Login
    | LoginWithToken
    | LoginWithAccessToken
    | Logout
    | Command
    | Figures
    | LoginBySetting
    | Task
)


class Frame(msgspec.Struct, frozen=True):
    """`size`: of the whole frame in bytes. `payload`: nothing else holds or changes its bytes."""

    request_id: int
    kind: int
    payload: bytes | memoryview

    @property
    def size(self) -> int:
        return _HEAD.size + len(self.payload)


class Frames:
    """Bytes in, whole frames out, one at a time: what is not taken stays as bytes. A large payload is not copied when
    its frame came whole, in one piece with others perhaps: it keeps that piece then."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._data: bytes | bytearray = b""
        self._begin = 0  # what stands before it was taken

    @property
    def waiting_bytes(self) -> int:
        return len(self._data) - self._begin

    def feed(self, data: bytes) -> None:
        if not self.waiting_bytes:
            self._data, self._begin = data, 0
            return
        if isinstance(self._data, bytearray):
            del self._data[: self._begin]
        else:
            self._data = bytearray(memoryview(self._data)[self._begin :])
        self._begin = 0
        self._data += data

    def take(self) -> Frame | None:
        """The next frame, None when it is not whole. FrameError as soon as its length is wrong."""
        begin, waiting = self._begin, self.waiting_bytes
        if waiting < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._data, begin)
        size = _LENGTH.size + length
        if length < _HEAD_BEHIND_LENGTH or size > self.frame_bytes_max:
            raise FrameError(f"a frame of {size} bytes")
        if waiting < size:
            return None
        _, request_id, kind = _HEAD.unpack_from(self._data, begin)
        payload = self._kept(begin + size) if length >= _LARGE_BYTES else self._copied(begin + size)
        if not self.waiting_bytes:
            self._data, self._begin = b"", 0
        return Frame(request_id, kind, payload)

    def _copied(self, end: int) -> bytes:
        with memoryview(self._data) as view:
            payload = bytes(view[self._begin + _HEAD.size : end])
        self._begin = end
        return payload

    def _kept(self, end: int) -> memoryview:
        """What can grow cannot while a payload keeps it: what comes behind that gets a new one."""
        data, begin = self._data, self._begin + _HEAD.size
        self._begin = end
        if isinstance(data, bytearray):
            self._data, self._begin = data[end:], 0
            del data[end:]
        return memoryview(data)[begin:end]


def encode_frame(request_id: int, kind: Kind, payload: bytes) -> bytes:
    return _HEAD.pack(_HEAD_BEHIND_LENGTH + len(payload), request_id, kind) + payload


def encode_request(request_id: int, kind: Kind, request: Request) -> bytearray:
    frame = bytearray(_HEAD.size)  # a batch of messages is copied once
    _encoder.encode_into(request, frame, _HEAD.size)
    _HEAD.pack_into(frame, 0, len(frame) - _LENGTH.size, request_id, kind)
    return frame


def encode_answer(request_id: int, status: int, flags: int, value: bytes) -> bytes:
    """`value` in MessagePack."""
    head = _HEAD.pack(_HEAD_BEHIND_LENGTH + _ANSWER.size + len(value), request_id, Kind.ANSWER)
    return head + _ANSWER.pack(status, flags) + value


def decode_answer(payload: bytes | memoryview) -> tuple[int, int, bytes | memoryview]:
    """(status, flags, value in MessagePack). FrameError."""
    if len(payload) < _ANSWER.size:
        raise FrameError("an answer without a status")
    status, flags = _ANSWER.unpack_from(payload)
    return status, flags, payload[_ANSWER.size :]


def decode_request(frame: Frame) -> Request:
    """FrameError for an unknown kind, and for a payload that is not that of its kind."""
    kind = REQUESTS.get(frame.kind)
    if kind is None:
        raise FrameError(f"kind {frame.kind}")
    try:
        return msgspec.msgpack.decode(frame.payload, type=kind)  # type: ignore[return-value]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"kind {frame.kind}: {error}") from error
