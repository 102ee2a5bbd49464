"""The certificate of the door for QUIC: its own, or that of TCP, read again when somebody asks."""

from __future__ import annotations

import asyncio
import signal
import ssl
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.doors.quic_server import WAIT_S, QuicServer, connected
from tests.support import wire
from tests.support.certificates import Authority


async def greets(server: QuicServer, authority: Authority) -> bool:
    """Whether a client that trusts nobody else believes the server."""
    trust: dict[str, Any] = {"verify_mode": ssl.CERT_REQUIRED, "cafile": str(authority.certificate)}
    try:
        async with connected(server.quic_address, **trust) as client:
            return await client.ask(wire.PING) == (0, b"")
    except ConnectionError:
        return False


@pytest.mark.parametrize("section", ["QUIC_CERTIFICATE", "TCP_TLS"])
def test_the_certificate_is_its_own_or_that_of_tcp_and_read_again(tmp_path: Path, section: str) -> None:
    first, second = Authority.make(tmp_path, "first"), Authority.make(tmp_path, "second")
    certificate = first.sign("one", names="DNS:localhost")
    key = certificate.with_suffix(".key")
    files = {f"SHARDD_{section}_CERT_FILE": str(certificate), f"SHARDD_{section}_KEY_FILE": str(key)}
    with QuicServer(tmp_path / "data", files) as server:
        assert asyncio.run(greets(server, first))
        assert not asyncio.run(greets(server, second))
        other = second.sign("two", names="DNS:localhost")
        key.write_bytes(other.with_suffix(".key").read_bytes())
        certificate.write_bytes(other.read_bytes())
        psutil.Process(server.pid).send_signal(signal.SIGHUP)
        deadline = time.monotonic() + WAIT_S
        while not asyncio.run(greets(server, second)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert not asyncio.run(greets(server, first))
