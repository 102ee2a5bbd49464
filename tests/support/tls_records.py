"""A client of TLS 1.3 that seals records by itself after the handshake: updates of keys as many as one likes, which no
library sends."""

from __future__ import annotations

import hmac
import socket
import ssl
import struct
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

APPLICATION_DATA: Final = 23
HANDSHAKE: Final = 22
KEY_UPDATE: Final = bytes([24, 0, 0, 1, 0])  # without asking for one of the server
_HANDSHAKE_BYTES_MAX: Final = 65536


def _expand(hash_name: str, secret: bytes, label: bytes, length: int) -> bytes:
    """HKDF-Expand-Label of one block, without a context."""
    whole = b"tls13 " + label
    info = struct.pack(">HB", length, len(whole)) + whole + b"\0"
    return hmac.digest(secret, info + b"\1", hash_name)[:length]


class Records:
    """What the client of one connection seals, in order."""

    def __init__(self, secret: bytes) -> None:
        self._hash = "sha256" if len(secret) == 32 else "sha384"
        self._key_bytes = 16 if len(secret) == 32 else 32
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._sealer = AESGCM(_expand(self._hash, secret, b"key", self._key_bytes))
        self._vector = int.from_bytes(_expand(self._hash, secret, b"iv", 12), "big")
        self._number = 0

    def seal(self, kind: int, payload: bytes) -> bytes:
        head = struct.pack(">BHH", APPLICATION_DATA, 0x0303, len(payload) + 17)
        nonce = (self._vector ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + self._sealer.encrypt(nonce, payload + bytes([kind]), head)

    def update_of_keys(self) -> bytes:
        record = self.seal(HANDSHAKE, KEY_UPDATE)
        self._use(_expand(self._hash, self._secret, b"traffic upd", len(self._secret)))
        return record


def shake_hands(peer: socket.socket, context: ssl.SSLContext, key_log: Path) -> Records:
    """The handshake by Python's module, whose secret of the client comes from its log of keys."""
    context.keylog_filename = str(key_log)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            peer.sendall(outgoing.read())
            incoming.write(peer.recv(_HANDSHAKE_BYTES_MAX))
    peer.sendall(outgoing.read())
    cipher = client.cipher()
    assert cipher is not None and "GCM" in cipher[0], cipher
    said = [line.split() for line in key_log.read_text().splitlines()]
    return Records(bytes.fromhex(next(line[2] for line in said if line[0] == "CLIENT_TRAFFIC_SECRET_0")))
