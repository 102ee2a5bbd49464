"""Released clients over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doors.http_server import HttpServer
from tests.support import clients
from tests.support.venvs import CLIENT_VERSIONS


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_a_released_client_is_served_over_http(tmp_path: Path, version: str) -> None:
    with HttpServer(tmp_path / "data") as server:
        host, port = server.http_address
        url = f"iggy+http://iggy:iggy@{host}:{port}"
        (seen,) = clients.run(version, Path(__file__).with_name("client_http.py"), [url])
    assert seen == ["t", 1, [[0, 5], [1, 70_000]]]
