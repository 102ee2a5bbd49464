"""The lines that keep a consumer's place: what the load client asks for is what the server has afterwards."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from bench.native_build import build
from bench.targets import Shardd
from bench.wire import Wire, identifier
from shardd.protocol.codes import Code

MESSAGES = 1000
STORED_AT = 12  # behind the partition and its current offset


def load(port: int, stream: int, *arguments: str) -> None:
    command = [str(build("load")), "--port", str(port), "--login", "--streams", str(stream), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def stored_offset(wire: Wire, stream: int) -> int | None:
    consumer = b"\x01" + identifier(1)
    place = consumer + identifier(stream) + identifier(0) + b"\x01" + struct.pack("<I", 0)
    reply = wire.request(Code.GET_CONSUMER_OFFSET, place)
    return int.from_bytes(reply[STORED_AT:], "little") if reply else None


@pytest.mark.parametrize(("mode", "batch", "requests", "stored"), [("commit", 10, 7, 69), ("store", 1, 7, 6)])
def test_load_client_keeps_the_place_of_a_consumer(
    mode: str, batch: int, requests: int, stored: int, tmp_path: Path
) -> None:
    server = Shardd(tmp_path / "server", [0], None, {})
    try:
        with Wire(server.port) as wire:
            stream = wire.create_stream("bench")
            wire.create_topic(stream, "bench", 1)
            load(server.port, stream, "--mode", "send", "--batch", str(MESSAGES), "--requests", "1")
            assert stored_offset(wire, stream) is None
            polled = ("--poll-messages", str(MESSAGES), "--batch", str(batch), "--requests", str(requests))
            load(server.port, stream, "--mode", "poll", *polled)
            assert stored_offset(wire, stream) is None
            load(server.port, stream, "--mode", mode, *polled)
            assert stored_offset(wire, stream) == stored
    finally:
        server.stop()
