"""What a scanner of TLS looks at: each cipher suite that this OpenSSL knows, signatures, groups, downgrades, early
data, compression. Versions: `test_tls.py`. What is agreed on has forward secrecy and authenticates what it encrypts."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.test_tls import NAMES, offered
from tests.support.certificates import Authority, settings
from tests.support.server import ONE_SHARD, Server
from tests.support.tls_wire import TlsWire

GOOD = re.compile(r"^ECDHE-(ECDSA|RSA)-(AES(128|256)-GCM-SHA(256|384)|CHACHA20-POLY1305)$")
REFUSED = "Cipher is (NONE)"


@pytest.fixture(scope="module", params=["ec", "rsa:2048"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("offers")
    authority = Authority.make(directory)
    env = settings(authority.sign("server", names=NAMES, algorithm=request.param)) | ONE_SHARD
    with Server(directory / "data", env) as running:
        yield running


def agrees(server: Server, context: ssl.SSLContext) -> str | None:
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with TlsWire(server.address, context) as client:
            found = client.tls.cipher()
            client.ping()
            return found[0] if found else None
    except (ssl.SSLError, ConnectionError):
        return None


def test_no_suite_of_1_2_is_agreed_on_but_good_ones(server: Server) -> None:
    listed = subprocess.run(
        ["openssl", "ciphers", "-s", "-tls1_2", "ALL:COMPLEMENTOFALL:@SECLEVEL=0"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.strip()
    found = []
    for name in listed.split(":"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.set_ciphers(f"{name}:@SECLEVEL=0")
        except ssl.SSLError:
            continue  # not in this build
        agreed = agrees(server, context)
        if agreed is not None:
            found.append(agreed)
    assert len(found) >= 3
    assert all(GOOD.match(name) for name in found), found


def test_the_suites_of_1_3_are_its_own(server: Server) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    assert agrees(server, context) == "TLS_AES_128_GCM_SHA256"


def test_signatures_by_sha_1_are_refused(server: Server) -> None:
    weak = offered(server, "-tls1_2", "-sigalgs", "ECDSA+SHA1:RSA+SHA1", "-cipher", "ALL:@SECLEVEL=0")
    assert REFUSED in weak


def test_a_downgrade_is_noticed(server: Server) -> None:
    """RFC 7507: a client that could do more says so, and is refused what is less than both can."""
    assert REFUSED in offered(server, "-tls1_2", "-fallback_scsv")
    assert REFUSED not in offered(server, "-tls1_3", "-fallback_scsv")


def test_there_is_no_compression_no_early_data_and_a_group_of_today(server: Server) -> None:
    seen = offered(server, "-tls1_3")
    assert "Compression: NONE" in seen and "Expansion: NONE" in seen
    assert "Early data was not sent" in seen
    assert re.search(r"(Server Temp Key|Negotiated TLS1.3 group): (X25519|ECDH|X25519MLKEM768)", seen), seen
    assert "Secure Renegotiation IS supported" in offered(server, "-tls1_2")
