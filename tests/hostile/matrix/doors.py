"""The doors of the matrix by name."""

from __future__ import annotations

from typing import Final

from tests.hostile.matrix.classic import Classic
from tests.hostile.matrix.door import Client, Door
from tests.hostile.matrix.grpc import Grpc
from tests.hostile.matrix.http import Http
from tests.hostile.matrix.iggy09 import Iggy09
from tests.hostile.matrix.lines import STRANGER, Line
from tests.hostile.matrix.nats import Nats
from tests.hostile.matrix.quic import KERNEL_BYTES_MAX, QuicPeer
from tests.hostile.matrix.target import Target
from tests.hostile.matrix.websocket import WebSocketDoor

STREAMS: Final[dict[str, Door]] = {
    **{name: Classic(name) for name in ("tcp", "tls", "unix")},
    **{name: WebSocketDoor(name) for name in ("websocket", "wss")},
    **{name: Http(name) for name in ("http", "https", "metrics")},
    "iggy09": Iggy09(),
    "grpc": Grpc(),
    "nats": Nats(),
}
QUIC: Final = "quic"


def client_of(door: str, target: Target) -> Client:
    """One that behaves."""
    return QuicPeer(target) if door == QUIC else STREAMS[door].client(target)


STRANGER_KERNEL_BYTES_MAX: Final = 512 << 10
"""Of 64 KiB that the kernel keeps before a login, in segments that cost several times as much as they hold."""


def kernel_bytes_max(line: Line) -> int:
    """Of what is sent to a connection."""
    if line.door == QUIC:
        return KERNEL_BYTES_MAX
    most = STREAMS[line.door].kernel_bytes_max
    return min(most, STRANGER_KERNEL_BYTES_MAX) if line.role == STRANGER and line.door != "unix" else most
