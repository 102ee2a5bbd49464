"""What TLS offers at the ports of doors: nothing below version 1.2, no compression, no renegotiation, no early data.
The ports of the engine are asked as well: all of them speak to the same scanner."""

from __future__ import annotations

import asyncio
import datetime
import re
import select
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from aioquic.tls import CipherSuite, SessionTicket

from tests.doors.quic_server import connected
from tests.support import wire
from tests.support.certificates import Authority, settings
from tests.support.doors import serving_door
from tests.support.server import ONE_SHARD, Server

WAIT_S: Final = 60.0
PAUSES_S: Final = (0.1, 1.0, 5.0)  # until the ticket is there
NAMES: Final = "DNS:localhost,IP:127.0.0.1"
REFUSED: Final = "Cipher is (NONE)"
PORTS: Final = {"tcp": (), "websocket": (), "http": ("-alpn", "http/1.1"), "liftbridge": ("-alpn", "h2")}
DOORS: Final = ("http", "liftbridge", "quic")
ANY_SUITE: Final = ("-cipher", "ALL:@SECLEVEL=0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Certificates of all ports are those of TCP."""
    directory: Path = tmp_path_factory.mktemp("offers")
    env = ONE_SHARD | settings(Authority.make(directory).sign("server", names=NAMES))
    for name in ("WEBSOCKET", *(door.upper() for door in DOORS)):
        env |= {f"SHARDD_{name}_ENABLED": "true", f"SHARDD_{name}_ADDRESS": "127.0.0.1:0"}
    env |= {"SHARDD_WEBSOCKET_TLS_MODE": "required"}
    env |= {f"SHARDD_{name}_TLS_ENABLED": "true" for name in ("HTTP", "LIFTBRIDGE")}
    with Server(directory / "data", env) as running:
        for door in DOORS:
            serving_door(running, door)
        yield running


def address(server: Server, port: str) -> str:
    return str(tomllib.loads(server.runtime_config.read_text())[port]["address"])


def scanner(server: Server, port: str, *options: str) -> list[str]:
    return ["openssl", "s_client", "-connect", address(server, port), *PORTS[port], *options]


def offered(server: Server, port: str, *options: str) -> str:
    command = scanner(server, port, *options)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S)
    return (done.stdout + done.stderr).decode(errors="replace")


def seen_of(server: Server, port: str, said: bytes, until: re.Pattern[str], *options: str) -> str:
    """What the scanner tells until it has told that, or has ended."""
    command = scanner(server, port, *options)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        assert running.stdin is not None and running.stdout is not None
        running.stdin.write(said)
        running.stdin.flush()
        seen, until_s = "", time.monotonic() + WAIT_S
        while not until.search(seen) and time.monotonic() < until_s:
            if select.select([running.stdout], [], [], 1.0)[0]:
                data = running.stdout.read1()  # type: ignore[attr-defined]
                if not data:
                    break
                seen += data.decode(errors="replace")
        running.kill()
    return seen


def seen_with_ticket(server: Server, port: str) -> str:
    """What the scanner tells at its end, with a ticket of the server, which comes behind the handshake."""
    for pause_s in PAUSES_S:
        command = scanner(server, port, "-tls1_3")
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
            time.sleep(pause_s)
            seen = running.communicate(timeout=WAIT_S)[0].decode(errors="replace")
        if "Max Early Data" in seen:
            break
    return seen


@pytest.mark.parametrize("port", PORTS)
def test_versions_below_1_2_are_refused(server: Server, port: str) -> None:
    for version in ("-tls1", "-tls1_1"):
        assert REFUSED in offered(server, port, version, *ANY_SUITE)
    for version in ("-tls1_2", "-tls1_3"):
        assert REFUSED not in offered(server, port, version)


@pytest.mark.parametrize("port", PORTS)
def test_compression_that_is_asked_for_is_not_agreed_on(server: Server, port: str) -> None:
    seen = offered(server, port, "-tls1_2", "-comp")
    assert "Compression: NONE" in seen and "Expansion: NONE" in seen


@pytest.mark.parametrize("port", PORTS)
def test_a_client_that_wants_to_renegotiate_is_refused(server: Server, port: str) -> None:
    """`R` is the command of the scanner for it."""
    end = re.compile(r"alert no renegotiation|no renegotiation|closed\n|errno|unexpected|:error:", re.IGNORECASE)
    seen = seen_of(server, port, b"R\n", end, "-tls1_2")
    assert "RENEGOTIATING" in seen, seen
    behind = seen.split("RENEGOTIATING", 1)[1]
    assert end.search(behind), behind
    assert "verify return" not in behind and "depth=" not in behind, "a second handshake has shown a certificate"


@pytest.mark.parametrize("port", PORTS)
def test_no_ticket_allows_early_data(server: Server, port: str) -> None:
    found = re.findall(r"Max Early Data: (\d+)", seen_with_ticket(server, port))
    assert found and set(found) == {"0"}
    assert "Early data was not sent" in offered(server, port, "-tls1_3")


def test_early_data_over_quic_is_not_accepted(server: Server) -> None:
    """Of a client that claims to have a ticket: the server gives none."""
    now = datetime.datetime.now(datetime.UTC)
    ticket = SessionTicket(
        age_add=0,
        cipher_suite=CipherSuite.AES_128_GCM_SHA256,
        not_valid_after=now + datetime.timedelta(days=1),
        not_valid_before=now - datetime.timedelta(days=1),
        resumption_secret=bytes(32),
        server_name="localhost",
        ticket=bytes(64),
        max_early_data_size=0xFFFFFFFF,
    )

    async def scenario() -> None:
        given: list[object] = []
        host, port = wire.host_and_port(address(server, "quic"))
        async with connected((host, port), session_ticket=ticket) as client:
            client._quic._session_ticket_handler = given.append
            assert await client.ask(wire.PING) == (0, b"")
            assert not client._quic.tls.early_data_accepted and not client._quic.tls.session_resumed
            assert given == []

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))
