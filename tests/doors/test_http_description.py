"""The description of the API, and what is asked of each of its endpoints in the same way."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from shardd.doors.http.app import ENDPOINTS, PUBLIC
from shardd.doors.http.endpoint import Endpoint
from tests.doors.http_server import HttpClient, HttpServer
from tests.support.serving import Serving

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol" / "http.md"
NAMES = [f"{each.method} {each.path}" for each in ENDPOINTS]
ENDS = {"DELETE /users/logout"}  # it ends what the others need
SERVER: Final = Serving(HttpServer)


@pytest.fixture(scope="module")
def root(server: HttpServer) -> HttpClient:
    return server.root()


def path_of(endpoint: Endpoint, part: str = "9") -> str:
    return re.sub(r"\{\w+\}", part, endpoint.path)


def test_every_endpoint_is_described(server: HttpServer) -> None:
    described: dict[str, Any] = server.client().done("GET", "/openapi.json")
    assert described["openapi"] == "3.1.0"
    found = {f"{method.upper()} {path}" for path, methods in described["paths"].items() for method in methods}
    assert found == set(NAMES)
    text = msgspec.json.encode(described).decode()
    for name in re.findall(r'"#/components/schemas/([^"]+)"', text):
        assert name in described["components"]["schemas"], name
    operations = [each for methods in described["paths"].values() for each in methods.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)


def test_every_endpoint_is_documented() -> None:
    rows = re.findall(r"^\| (GET|POST|PUT|DELETE) `([^`]+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert len(rows) == len(ENDPOINTS)
    for method, path in rows:
        end = re.sub(r"\{\w+\}", "{}", path.removeprefix("..."))
        assert any(each.method == method and re.sub(r"\{\w+\}", "{}", each.path).endswith(end) for each in ENDPOINTS), (
            path
        )


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=NAMES)
def test_nobody_gets_anything_without_a_login(server: HttpServer, endpoint: Endpoint) -> None:
    for token in ("", "x", "a.b.c"):
        answer = server.client(token).ask(endpoint.method, path_of(endpoint), b"{}" if endpoint.body else None)
        if endpoint.path in PUBLIC:
            assert answer.status in (200, 422)
        else:
            assert (answer.status, answer.body) == (401, b"")


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=NAMES)
def test_bodies_and_queries_of_other_types_are_refused(root: HttpClient, endpoint: Endpoint) -> None:
    path = path_of(endpoint)
    if endpoint.body is not None:
        for body in (b"", b"null", b"[]", b"7", b'"x"', b"{", b"\xff", b'{"x":' * 2000):
            assert root.ask(endpoint.method, path, body).status in (400, 422), body
        optional = not msgspec.json.schema_components([endpoint.body])[1][endpoint.body.__name__].get("required")
        wrong: dict[str, object] = {name: [[]] for name in endpoint.body.__struct_encode_fields__}
        assert root.ask(endpoint.method, path, wrong).status == 422
        assert optional or root.ask(endpoint.method, path, {}).status == 422
        assert root.ask(endpoint.method, path, b"{}", {"Content-Type": "text/plain"}).status == 415
    if endpoint.query is not None:
        assert root.ask(endpoint.method, f"{path}?partition_id=x&partitions_count=x&segments_count=x").status == 400
        assert root.ask(endpoint.method, f"{path}?" + "&".join(f"x{each}=1" for each in range(99))).status == 400


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if "{" in each.path], ids=lambda each: each.path)
@pytest.mark.parametrize(
    "part", ["%00", "%FF", "%2e%2e", "..%2f..", "n" * 256, "-1", "99999999999", "%", "%zz", "%F0%9F%98%80"]
)
def test_parts_of_paths_that_nobody_has(root: HttpClient, endpoint: Endpoint, part: str) -> None:
    """Only what is wrong is answered: nothing is made, and nothing is 500."""
    body = None if endpoint.body is None else b"{}"
    answer = root.ask(endpoint.method, path_of(endpoint, part), body)
    assert 400 <= answer.status < 500


def test_everything_is_still_there(root: HttpClient, server: HttpServer) -> None:
    assert root.done("GET", "/streams") == []
    assert [each["username"] for each in root.done("GET", "/users")] == ["iggy"]
    assert "a request failed" not in server.log() and "Traceback" not in server.log(), server.log()
