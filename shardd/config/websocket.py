"""`websocket.*`: the port for WebSocket."""

from __future__ import annotations

import msgspec


class WebSocketTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`websocket.tls.*`: what differs from `tcp.tls`. Without a certificate of its own the port shows that of TCP."""

    enabled: bool
    mode: str
    self_signed: bool
    cert_file: str
    key_file: str


class WebSocket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`websocket.*`. `address` as that of TCP."""

    enabled: bool
    address: str
    max_message_size_bytes: int
    max_frame_size_bytes: int
    accept_unmasked_frames: bool
    allowed_origins: tuple[str, ...]
    tls: WebSocketTls

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])
