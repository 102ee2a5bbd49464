"""Released clients over WebSocket."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeServer
from tests.server.websocket_server import ON, address_of
from tests.support import clients
from tests.support.server import ONE_SHARD
from tests.support.venvs import CLIENT_VERSIONS


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_released_client_is_served_over_websocket(make_server: MakeServer, version: str) -> None:
    server = make_server(env=ON | ONE_SHARD)
    url = f"iggy+ws://iggy:iggy@{address_of(server)}"
    assert clients.run(version, Path(__file__).with_name("client_websocket.py"), [url]) == [[5, 70_000]]
