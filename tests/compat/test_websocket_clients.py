"""Released clients over WebSocket."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeServer
from tests.server.test_tls import NAMES
from tests.server.test_websocket_tls import over_tls
from tests.server.websocket_server import ON, address_of
from tests.support import clients
from tests.support.certificates import Authority
from tests.support.server import ONE_SHARD
from tests.support.venvs import CLIENT_VERSIONS


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_released_client_is_served_over_websocket(make_server: MakeServer, version: str) -> None:
    server = make_server(env=ON | ONE_SHARD)
    url = f"iggy+ws://iggy:iggy@{address_of(server)}"
    assert clients.run(version, Path(__file__).with_name("client_websocket.py"), [url]) == [[5, 70_000]]


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_released_client_is_served_over_websocket_in_tls(
    make_server: MakeServer, tmp_path: Path, version: str
) -> None:
    authority, other = Authority.make(tmp_path), Authority.make(tmp_path, "other")
    server = make_server(env=over_tls(authority.sign("shown", names=NAMES)) | ONE_SHARD)
    options = f"tls=true&tls_domain=localhost&tls_ca_file={authority.certificate}&reconnection_retries=1"
    url = f"iggy+ws://iggy:iggy@{address_of(server)}?{options}"
    script = Path(__file__).with_name("client_websocket.py")
    assert clients.run(version, script, [url]) == [[5, 70_000]]
    with pytest.raises(AssertionError, match="ended with"):
        clients.run(version, script, [url.replace(str(authority.certificate), str(other.certificate))])
