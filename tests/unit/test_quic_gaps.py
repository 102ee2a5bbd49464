"""Gaps in a stream of QUIC cost each later frame a look: beyond a bound the connection ends."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final

import pytest

from shardd.doors.quic.flow import GAPS_MAX, HANDSHAKE_GAPS_MAX
from tests.hostile.quic_inputs import sealed
from tests.unit.test_quic_handshakes import Client, Wire, let_run, listening

_LONG: Final = 0x80000000  # an integer of four bytes
_FRAMES: Final = 200  # of a datagram


def byte_of_stream(offset: int) -> bytes:
    return b"\x0e\x00" + struct.pack(">I", _LONG | offset) + b"\x01x"


def byte_of_handshake(offset: int) -> bytes:
    return b"\x06" + struct.pack(">I", _LONG | offset) + b"\x01x"


@pytest.mark.parametrize(("byte", "gaps_max"), [(byte_of_stream, GAPS_MAX), (byte_of_handshake, HANDSHAKE_GAPS_MAX)])
def test_a_connection_with_too_many_gaps_is_closed(byte: Callable[[int], bytes], gaps_max: int) -> None:
    async def scenario() -> None:
        wire = Wire()
        listener = listening(wire)
        client = Client(listener, wire, "192.0.2.1", 5)
        await let_run(lambda: client.quic._handshake_confirmed)
        (whole,) = listener._all

        def send(first: int, count: int) -> None:
            """Every second byte, beginning behind a gap."""
            for at in range(first, first + count, _FRAMES):
                some = range(at, min(at + _FRAMES, first + count))
                listener.datagram_received(
                    sealed(client.quic, b"".join(byte(1000 + 2 * number) for number in some)), client.address
                )

        send(0, gaps_max)
        assert whole._quic._close_event is None, "as many as the bound are taken"
        send(gaps_max, 1)
        assert whole._quic._close_event is not None and "gaps" in whole._quic._close_event.reason_phrase
        listener.close()

    asyncio.run(scenario())
