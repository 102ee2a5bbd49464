"""Gaps in a stream of QUIC cost each later frame a look: beyond a bound the connection ends. Paths that lose packets of
a long frame stay within it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final

import pytest

from shardd.doors.quic.flow import GAP_BYTES, GAPS_LOOKED_AT_MAX, GAPS_MIN, HANDSHAKE_GAPS_MAX
from tests.hostile.quic_inputs import sealed
from tests.unit.test_quic_handshakes import Client, Wire, let_run, listening

WINDOW_BYTES: Final = 1 << 20  # of `listening`
_LONG: Final = 0x80000000  # an integer of four bytes
_FRAMES: Final = 20  # of a datagram: few enough for the gaps that they look at


def byte_of_stream(offset: int) -> bytes:
    return b"\x0e\x00" + struct.pack(">I", _LONG | offset) + b"\x01x"


def byte_of_handshake(offset: int) -> bytes:
    return b"\x06" + struct.pack(">I", _LONG | offset) + b"\x01x"


@pytest.mark.parametrize(
    ("byte", "gaps_max"), [(byte_of_stream, WINDOW_BYTES // GAP_BYTES), (byte_of_handshake, HANDSHAKE_GAPS_MAX)]
)
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


def test_a_datagram_whose_frames_look_at_too_many_gaps_closes_its_connection() -> None:
    async def scenario() -> None:
        wire = Wire()
        listener = listening(wire)
        client = Client(listener, wire, "192.0.2.1", 5)
        await let_run(lambda: client.quic._handshake_confirmed)
        (whole,) = listener._all

        def send(offsets: range) -> None:
            frames = b"".join(map(byte_of_stream, offsets))
            listener.datagram_received(sealed(client.quic, frames), client.address)

        for first in range(1000, 1000 + 2 * GAPS_MIN, 2 * _FRAMES):
            send(range(first, min(first + 2 * _FRAMES, 1000 + 2 * GAPS_MIN), 2))
        again = GAPS_LOOKED_AT_MAX // GAPS_MIN
        send(range(1000, 1000 + 2 * again, 2))
        assert whole._quic._close_event is None, "as many as the bound are looked at"
        send(range(1000, 1002 + 2 * again, 2))
        assert whole._quic._close_event is not None and "gaps in a datagram" in whole._quic._close_event.reason_phrase
        listener.close()

    asyncio.run(scenario())


def test_flood_of_gaps_in_a_long_frame_closes_its_connection() -> None:
    async def scenario() -> None:
        wire = Wire()
        listener = listening(wire)
        client = Client(listener, wire, "192.0.2.1", 5)
        await let_run(lambda: client.quic._handshake_confirmed)
        (whole,) = listener._all
        for first in range(1000, 1000 + 2 * 27_500, 2 * _FRAMES):
            frames = b"".join(map(byte_of_stream, range(first, first + 2 * _FRAMES, 2)))
            listener.datagram_received(sealed(client.quic, frames), client.address)
            if whole._quic._close_event is not None:
                break
        assert whole._quic._close_event is not None
        ranges = whole._quic._streams[0].receiver._ranges
        assert len(ranges) <= max(GAPS_MIN, WINDOW_BYTES // GAP_BYTES) + 1
        listener.close()

    asyncio.run(scenario())
