"""Handshakes at HTTPS and QUIC are among the figures of the server, by the names that those of the engine have."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from tests.doors.http_server import HttpServer
from tests.doors.quic_server import QuicServer, connected
from tests.doors.test_http_tls import TLS, get, trusting
from tests.support import wire
from tests.support.certificates import Authority
from tests.support.server import Server
from tests.support.stalls import figures_of, metrics, wait_until

PER_ADDRESS = 4
WHOLE = 3
FEW = {
    "SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": str(PER_ADDRESS),
    "SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": "10 m",  # no silent connection ends in this test
}
WRONG, SILENT = "127.0.0.8", "127.0.0.9"


def figures(server: Server, door: str) -> dict[str, int]:
    """Of all shards together; without those of the classic port."""
    with wire.connect(server.address) as root:
        shards = figures_of(metrics(root))
    names = {name for shard in shards for name in shard if name.startswith(f"{door}.tls_")}
    return {name.partition(".tls_")[2]: sum(shard[name] for shard in shards) for name in names}


def wait_for(server: Server, door: str, expected: dict[str, int]) -> None:
    found = dict[str, int]()

    def is_told() -> bool:
        nonlocal found
        found = figures(server, door)
        return found == expected

    with contextlib.suppress(AssertionError):
        wait_until(is_told, "the door has told its handshakes")
    assert found == expected


def test_handshakes_of_https_are_among_the_figures(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    certificate = authority.sign("server", names="IP:127.0.0.1")
    files = {"CERT_FILE": str(certificate), "KEY_FILE": str(certificate.with_suffix(".key"))}
    env = FEW | TLS | {f"SHARDD_HTTP_TLS_{name}": value for name, value in files.items()}
    with HttpServer(tmp_path / "data", env) as server, contextlib.ExitStack() as held:
        for _ in range(WHOLE):
            assert get(server, trusting(authority))[0] == 200
        stranger = held.enter_context(server.connect(WRONG))
        stranger.sendall(b"this is no hello\r\n\r\n")
        for _ in range(PER_ADDRESS + 2):
            held.enter_context(server.connect(SILENT))
        begun = WHOLE + 1 + PER_ADDRESS
        counted = {"begun": begun, "handshakes": WHOLE, "resumed": 0, "failed": 1, "refused": 2, "waiting": 0}
        wait_for(server, "http", counted)


def test_handshakes_of_quic_are_among_the_figures(tmp_path: Path) -> None:
    async def knock(server: QuicServer) -> None:
        async with contextlib.AsyncExitStack() as held:
            for _ in range(WHOLE):
                client = await held.enter_async_context(connected(server.quic_address))
                assert (await client.ask(wire.PING))[0] == 0

    with QuicServer(tmp_path / "data") as server:
        asyncio.run(knock(server))
        counted = {"begun": WHOLE, "handshakes": WHOLE, "resumed": 0, "failed": 0, "refused": 0, "waiting": 0}
        wait_for(server, "quic", counted)
