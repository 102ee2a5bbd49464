"""The control channel between the supervisor and one worker or one door: JSON lines both ways, sans-IO.

    worker -> supervisor    {"heartbeat": n}         every HEARTBEAT_INTERVAL_MS, from the first moment of the loop
                            ... "connections": n     in it, when it was told to drain: those that are open
                            {"ready": {...}}         once, when the shard serves
                            {"fatal": "sentence"}    before it ends because a new start would not help
                            {"logs": true}           asks for the newest log lines of the supervisor
    supervisor -> worker    {"logs": [...]}          the answer: as many whole lines as one message holds
                            {"peer_down": j}         shard j died; also right after a start, for each shard that is down
                            {"peer_up": {...}}       shard j is ready, and which of its processes that is
                            {"peer_key": {...}}      shard j died: what its next process will prove itself with
                            {"door_key": {...}}      a door died: what its next process will prove itself with
                            {"all_ready": true}      every shard was ready once; at once for a worker that came later
                            {"stalls": {...}}        which shards stand still now, and how often this one did
                            {"tls": true}            certificates were read again (tls_material.py)
                            {"log_level": "debug"}   lines from there on are written from now on
                            {"limits": {...}}        `server.*` from now on; `connections_max` needs a restart
                            {"drain": true}          take no more clients, serve those that are here
                            {"stop": seconds}        flush and end within that time

A door says the same to the supervisor, and hears of workers what a worker hears of its peers.

A worker takes every peer for up until it is told otherwise. End of file means that the other side is gone.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import msgspec

from shardd.config.schema import Server as ServerLimits
from shardd.runtime.trust import PeerKey

HEARTBEAT_INTERVAL_MS: Final = 250
HEARTBEAT_TIMEOUT_MS: Final = 2_000
DOOR_HEARTBEAT_TIMEOUT_MS: Final = 10_000  # of a door whose loop moves no further: it gives way to the workers
STARTUP_TIMEOUT_MS: Final = 60_000
LINE_BYTES_MAX: Final = 65_536


class ControlError(Exception):
    """The other side broke the protocol."""


class Ready(msgspec.Struct, frozen=True, omit_defaults=True):
    """`root_created`: the first user was made by this very worker. `generation`: counts the processes of a shard."""

    root_created: bool = False
    generation: int = 0


class PeerUp(msgspec.Struct, frozen=True):
    """A shard that is ready, in this generation."""

    shard: int
    generation: int


class Standing(msgspec.Struct, frozen=True):
    """A shard that stands still: `cause` "device" or "cpu", since when (monotonic clock, microseconds)."""

    shard: int
    cause: str
    since_us: int


class Stalls(msgspec.Struct, frozen=True):
    """Shards that stand still now; how often and how long in all the one that hears this did, by cause."""

    standing: list[Standing]
    times: dict[str, int]
    total_ms: dict[str, int]


class WorkerMessage(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """From a worker; exactly one field is set, and `connections` beside `heartbeat`."""

    heartbeat: int | None = None  # of a door: how far its loop has come
    connections: int | None = None
    ready: Ready | None = None
    fatal: str | None = None
    logs: bool = False


class SupervisorMessage(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """From the supervisor; exactly one field is set."""

    peer_down: int | None = None
    peer_key: PeerKey | None = None
    door_key: PeerKey | None = None
    peer_up: PeerUp | None = None
    all_ready: bool = False
    stalls: Stalls | None = None
    tls: bool = False
    log_level: str = ""
    limits: ServerLimits | None = None
    drain: bool = False
    stop: float | None = None
    logs: list[str] | None = None


def newest_lines(lines: list[str]) -> list[str]:
    """The last ones, as many as surely fit into one message."""
    left = LINE_BYTES_MAX // 2
    for number, line in enumerate(reversed(lines)):
        left -= len(msgspec.json.encode(line)) + 1
        if left < 0:
            return lines[len(lines) - number :]
    return lines


def encode_message(message: WorkerMessage | SupervisorMessage) -> bytes:
    """One line, with its end."""
    return msgspec.json.encode(message) + b"\n"


Message = TypeVar("Message", WorkerMessage, SupervisorMessage)


class MessageDecoder(Generic[Message]):
    """Bytes in, whole messages out."""

    def __init__(self, message_type: type[Message]) -> None:
        self._decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(message_type)
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Messages completed by `data`. Raises ControlError on a line that is no message or longer than the limit."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise ControlError(f"a line of the control channel exceeds {LINE_BYTES_MAX} bytes")
        try:
            return [self._decoder.decode(line) for line in lines]
        except msgspec.MsgspecError as error:
            raise ControlError(f"control channel: {error}") from error
