"""Datagrams of QUIC without effect: packets that a client of the tests seals by itself, with frames that no library
sends so often."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from aioquic.quic.connection import QuicConnection
from aioquic.quic.crypto import CryptoContext, apply_key_phase, next_key_phase
from aioquic.quic.packet import PACKET_NUMBER_MAX_SIZE
from aioquic.tls import Epoch

from tests.doors.quic_server import QuicClient, request_frame
from tests.support import wire

DATAGRAMS: Final = 2_000
PAYLOAD_BYTES: Final = 1_100
_FIXED_BIT: Final = 0x40
_KEY_PHASE_BIT: Final = 2
_STREAM: Final = 0  # of the login
_OPEN_STREAM: Final = 4
_PADDING: Final = b"\0" * 8

Datagrams = Callable[[QuicClient], list[bytes]]


def sealed(quic: QuicConnection, payload: bytes, *, phase: int | None = None) -> bytes:
    """A packet of the client with these frames, as the next one. `phase`: of its keys, else that of its keys now."""
    sender = quic._cryptos[Epoch.ONE_RTT].send
    number = quic._packet_number
    quic._packet_number += 1
    first = _FIXED_BIT | (sender.key_phase if phase is None else phase) << _KEY_PHASE_BIT | 1  # two bytes of number
    head = bytes([first]) + quic._peer_cid.cid + struct.pack(">H", number & 0xFFFF)
    return sender.encrypt_packet(head, payload.ljust(PACKET_NUMBER_MAX_SIZE, b"\0"), number)


def frames(each: bytes) -> Datagrams:
    """Datagrams full of one frame."""
    payload = each * (PAYLOAD_BYTES // len(each))
    return lambda client: [sealed(client._quic, payload) for _ in range(DATAGRAMS)]


def frames_of_open_stream(each: bytes) -> Datagrams:
    """Of a stream whose request is not whole."""

    def made(client: QuicClient) -> list[bytes]:
        assert client.write(request_frame(wire.PING)[:4], end=False) == _OPEN_STREAM
        return frames(each)(client)

    return made


def new_connection_ids(client: QuicClient) -> list[bytes]:
    """Each one retires the one before it."""
    made = []
    for number in range(8, 8 + DATAGRAMS):
        sequence = struct.pack(">H", 0x4000 | number)
        name = struct.pack(">Q", number)
        made.append(sealed(client._quic, b"\x18" + sequence + sequence + b"\x08" + name + bytes(16)))
    return made


def updates_of_keys(client: QuicClient) -> list[bytes]:
    """A packet under the next keys, again and again."""
    sender: CryptoContext = client._quic._cryptos[Epoch.ONE_RTT].send
    made = []
    for _ in range(DATAGRAMS):
        apply_key_phase(sender, next_key_phase(sender), trigger="local_update")
        made.append(sealed(client._quic, b"\x01" + _PADDING))
    return made


def other_key_phases(client: QuicClient) -> list[bytes]:
    """Under the keys of now, with the bit of the next ones: to look, the server makes these."""
    other = 1 - client._quic._cryptos[Epoch.ONE_RTT].send.key_phase
    return [sealed(client._quic, b"\x01" + _PADDING, phase=other) for _ in range(DATAGRAMS)]


def gaps_in_the_handshake(client: QuicClient) -> list[bytes]:
    """Single bytes behind what TLS has read, each with a gap before it."""
    made, each = [], PAYLOAD_BYTES // 7
    for first in range(0, DATAGRAMS * each, each):
        offsets = (1000 + 2 * number for number in range(first, first + each))
        made.append(sealed(client._quic, b"".join(b"\x06%b\x01x" % struct.pack(">I", 1 << 31 | at) for at in offsets)))
    return made


def nonsense(client: QuicClient) -> list[bytes]:
    """Packets that nobody can open."""
    return [b"\x40" + client._quic._peer_cid.cid + bytes(PAYLOAD_BYTES)] * DATAGRAMS


QUIC_INPUTS: Final[dict[str, Datagrams]] = {
    "quic: updates of keys": updates_of_keys,
    "quic: challenges of paths": frames(b"\x1a" + bytes(8)),
    "quic: empty frames of a stream": frames_of_open_stream(bytes([0x0A, _OPEN_STREAM, 0])),
    "quic: connection ids that retire each other": new_connection_ids,
    "quic: pings": frames(b"\x01"),
    "quic: padding": frames(b"\0"),
    "quic: limits of the connection": frames(b"\x10\x01"),
    "quic: limits of a stream": frames_of_open_stream(bytes([0x11, _OPEN_STREAM, 1])),
    "quic: empty frames of a stream that is over": frames(bytes([0x0A, _STREAM, 0])),
    "quic: empty frames of the handshake": frames(b"\x06\0\0"),
    "quic: gaps in the handshake": gaps_in_the_handshake,
    "quic: acknowledgements": frames(b"\x02\0\0\0\0"),
    "quic: connection ids that are known": frames(b"\x18\x01\0\x08" + bytes(24)),
    "quic: nothing left to send": frames(b"\x14\0"),
    "quic: other phases of keys": other_key_phases,
    "quic: packets that nobody can open": nonsense,
}
