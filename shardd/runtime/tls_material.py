"""What workers need for TLS: certificates, keys, the secret of session tickets. The supervisor reads the files, and
keeps the last ones that were good in a memfd that the workers inherit: one that starts later gets the same."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Final

import msgspec

TICKET_PERIOD_S: Final = 3600  # TLS_TICKET_PERIOD_S of native/src/net/tls.h
CLIENTS: Final = {"off": 0, "optional": 1, "required": 2}  # as tls_clients there
MODES: Final = {"off": 0, "required": 1, "both": 2}  # as tls_mode there
PORTS: Final = {"tcp.tls": 0, "websocket.tls": 1}  # as tls_port there, by the section of its settings
_DIGEST_BYTES: Final = 32


class TlsMaterial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`pairs`: chain and key, PEM; the first one is for names that no other one has."""

    pairs: list[tuple[bytes, bytes]]
    clients: int
    clients_ca: bytes
    only_13: bool
    ciphers: str


class Tickets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secret of a period of TICKET_PERIOD_S; tls_tickets.c makes keys of it."""

    secret: bytes
    period: int

    def followed(self, now_s: float) -> Tickets:
        """Those of now. What was before is forgotten."""
        secret, period = self.secret, self.period
        while period < int(now_s) // TICKET_PERIOD_S:
            secret, period = hashlib.sha256(secret + b"+").digest(), period + 1
        return Tickets(secret, period)


class TlsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`ports`: by the names of PORTS, those that have TLS; `not_after_s`: of all certificates in this order."""

    ports: dict[str, TlsMaterial]
    tickets: Tickets
    not_after_s: list[int]


def new_tickets() -> Tickets:
    return Tickets(os.urandom(32), int(time.time()) // TICKET_PERIOD_S)


def write_state(fd: int, state: TlsState) -> None:
    """Over what was there. Who reads at the same time sees that it does not fit."""
    data = msgspec.msgpack.encode(state)
    data = hashlib.sha256(data).digest() + data
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))


def read_state(fd: int) -> TlsState | None:
    """None: it is being written; whoever writes says when it is there."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
        return None
    return msgspec.msgpack.decode(data[_DIGEST_BYTES:], type=TlsState)
