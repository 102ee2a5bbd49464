"""The released client 0.8.0, unchanged, over TLS: its own judgement of certificates, and what it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.test_tls import NAMES, TWO_SHARDS
from tests.support import clients
from tests.support.certificates import Authority, settings
from tests.support.server import Server
from tests.support.venvs import CLIENT_VERSIONS

SCRIPT = Path(__file__).parent / "client_tls.py"
pytestmark = pytest.mark.timeout(600)


def seen(server: Server, authority: Authority, name: str = "localhost") -> object:
    options = f"tls=true&tls_domain={name}&tls_ca_file={authority.certificate}&reconnection_retries=1"
    (result,) = clients.run(CLIENT_VERSIONS[0], SCRIPT, [f"iggy+tcp://iggy:iggy@{server.address}?{options}"])
    return result


def test_the_client_talks_to_whom_it_trusts_alone(tmp_path: Path) -> None:
    authority, other = Authority.make(tmp_path), Authority.make(tmp_path, "other")
    env = settings(authority.sign("server", names=NAMES))
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:
        assert isinstance(seen(server, other), str)
        assert isinstance(seen(server, authority, "wrong.example"), str)
        assert seen(server, authority) == ["over tls"]


def test_the_client_does_not_take_an_expired_certificate(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    env = settings(authority.sign("expired", names=NAMES, days=-1))
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:
        assert isinstance(seen(server, authority), str)


def test_the_client_is_refused_where_it_has_to_show_a_certificate(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    both = {"client_certificates": "required", "client_ca_file": str(authority.certificate)}
    env = settings(authority.sign("strict", names=NAMES), **both)
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:
        assert isinstance(seen(server, authority), str)
