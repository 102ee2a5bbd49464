"""What pages of other origins may do."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.doors.http_server import HttpServer
from tests.support.serving import Serving

ORIGIN = "https://pages.example"
ASKS = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
CORS = {
    "SHARDD_HTTP_CORS_ENABLED": "true",
    "SHARDD_HTTP_CORS_ALLOWED_ORIGINS": ORIGIN,
    "SHARDD_HTTP_CORS_ALLOWED_METHODS": "GET,POST",
    "SHARDD_HTTP_CORS_EXPOSED_HEADERS": "content-disposition",
    "SHARDD_HTTP_CORS_ALLOW_CREDENTIALS": "true",
}
SERVER: Final = Serving(HttpServer, CORS)


def test_a_page_that_is_named_may_ask(server: HttpServer) -> None:
    client = server.client()
    before = client.ask("OPTIONS", "/streams", headers=ASKS)
    assert before.status == 200
    assert before.headers["access-control-allow-origin"] == ORIGIN
    assert before.headers["access-control-allow-credentials"] == "true"
    assert "POST" in before.headers["access-control-allow-methods"]
    answer = server.root().ask("GET", "/streams", headers={"Origin": ORIGIN})
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["access-control-expose-headers"] == "content-disposition"
    refused = client.ask("GET", "/streams", headers={"Origin": ORIGIN})
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, ORIGIN)  # a page sees why


def test_other_pages_and_methods_may_not(server: HttpServer) -> None:
    client = server.client()
    assert client.ask("OPTIONS", "/streams", headers={**ASKS, "Origin": "https://other.example"}).status == 400
    assert client.ask("OPTIONS", "/streams", headers={**ASKS, "Access-Control-Request-Method": "PUT"}).status == 400
    other = server.root().ask("GET", "/streams", headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers


def test_without_the_setting_no_page_may(tmp_path: Path) -> None:
    with HttpServer(tmp_path / "data") as server:
        assert server.client().ask("OPTIONS", "/streams", headers=ASKS).status == 401
        answer = server.root().ask("GET", "/streams", headers={"Origin": ORIGIN})
        assert "access-control-allow-origin" not in answer.headers


def test_any_origin_with_credentials_is_refused(tmp_path: Path) -> None:
    server = HttpServer(tmp_path / "data", {**CORS, "SHARDD_HTTP_CORS_ALLOWED_ORIGINS": "*"})
    server.spawn()
    assert server.wait() == 2
    assert "http.cors.allow_credentials" in server.log()
