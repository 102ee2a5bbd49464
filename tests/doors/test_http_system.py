"""The server, its users and their tokens over HTTP."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from typing import Final

import pytest

from tests.doors.http_server import HttpClient, HttpServer
from tests.support.serving import Serving

NEVER = (1 << 64) - 1
SIZE = re.compile(r"\d+(\.\d{1,3})? ([KMGTPE]i?)?B")
SERVER: Final = Serving(HttpServer)


@pytest.fixture
def root(server: HttpServer) -> Iterator[HttpClient]:
    client = server.root()
    yield client
    client.close()


def test_figures(root: HttpClient) -> None:
    stats = root.done("GET", "/stats")
    assert list(stats)[:4] == ["process_id", "cpu_usage", "total_cpu_usage", "memory_usage"]
    for name in ("memory_usage", "total_memory", "read_bytes", "messages_size_bytes", "free_disk_space"):
        assert SIZE.fullmatch(stats[name]), (name, stats[name])
    assert stats["cache_metrics"] == {} and stats["iggy_server_version"]
    assert {"run_time", "start_time", "hostname", "threads_count", "total_disk_space"} <= stats.keys()


def test_clients_and_nodes(server: HttpServer, root: HttpClient) -> None:
    clients = root.done("GET", "/clients")
    own = [each for each in clients if each["user_id"] == 0][-1]
    assert own["address"].startswith("127.0.0.1:") and own["transport"] == "http"
    details = root.done("GET", f"/clients/{own['client_id']}")
    assert {**own, "consumer_groups": []} == details
    assert root.get("/clients/1").error == (404, 404)
    assert root.get("/clients/0").error == (400, 101)
    assert root.get("/clients/x").status == 400
    [node] = root.done("GET", "/cluster/metadata")["nodes"]
    assert (node["role"], node["status"], node["endpoints"]["quic"]) == ("leader", "healthy", 0)
    assert node["endpoints"]["http"] == server.http_address[1]


def test_the_archive_for_supporters(root: HttpClient) -> None:
    answer = root.post("/snapshot", {"compression": "Stored", "snapshot_types": ["Test", "ServerConfig"]})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/zip")
    name = answer.headers["content-disposition"]
    assert re.fullmatch(r'attachment; filename="iggy_snapshot_\d{8}_\d{6}\.zip"', name)
    assert zipfile.ZipFile(io.BytesIO(answer.body)).namelist()
    assert root.post("/snapshot", {"snapshot_types": ["All", "Test"]}).error == (400, 3)
    assert root.post("/snapshot", {"compression": "Zip"}).status == 422


def test_the_life_of_a_user(root: HttpClient) -> None:
    rights = {"manage_servers": False, "read_servers": True}
    streams = {"3": {"read_stream": True, "topics": {"4": {"poll_messages": True}}}}
    asked = {
        "username": "clerk", "password": "secret", "status": "active",
        "permissions": {"global": rights, "streams": streams},
    }  # fmt: skip
    made = root.done("POST", "/users", asked)
    assert made["permissions"]["global"]["read_servers"] is True
    assert made["permissions"]["streams"]["3"]["topics"]["4"]["poll_messages"] is True
    assert len(made["permissions"]["global"]) == 10 and len(made["permissions"]["streams"]["3"]) == 7
    assert root.done("GET", "/users/clerk") == root.done("GET", f"/users/{made['id']}") == made
    listed = {name: value for name, value in made.items() if name != "permissions"}
    assert listed in root.done("GET", "/users")
    assert root.post("/users", asked).error == (400, 46)
    assert root.put("/users/clerk/permissions", {"permissions": None}).status == 204
    assert root.done("GET", "/users/clerk")["permissions"] is None
    assert root.put("/users/clerk", {"username": "chief", "status": "inactive"}).status == 204
    assert root.done("GET", "/users/chief")["status"] == "inactive"
    assert root.put("/users/chief/password", {"current_password": "wrong", "new_password": "better"}).error == (400, 42)
    assert root.get("/users/clerk").error == (404, 404)
    assert root.delete("/users/chief").status == 204
    assert root.delete("/users/chief").error == (404, 20)
    assert root.delete("/users/iggy").error == (400, 48)
    for body, expected in (
        ({"username": "x", "password": "secret"}, (400, 43)), ({"username": "xyz", "password": "x"}, (400, 44)),
        ({"username": "xyz", "password": "secret", "status": "other"}, 422), ({"username": "xyz"}, 422),
        ({"username": "xyz", "password": "secret", "permissions": {"streams": None}}, 422),
        ({"username": "xyz", "password": "secret", "permissions": {"global": {}, "streams": {"x": {}}}}, 422),
        ({"username": "xyz", "password": "secret", "permissions": {"global": {}, "streams": {"-1": {}}}}, (400, 4)),
    ):  # fmt: skip
        answer = root.post("/users", body)
        assert (answer.status if isinstance(expected, int) else answer.error) == expected, body


def test_personal_tokens(root: HttpClient) -> None:
    assert len(root.done("POST", "/personal-access-tokens", {"name": "second", "expiry": 0})["token"]) > 40
    root.done("POST", "/personal-access-tokens", {"name": "first", "expiry": 3_600_000_000})
    first, second = root.done("GET", "/personal-access-tokens")
    assert (first["name"], second) == ("first", {"name": "second", "expiry_at": None})
    assert first["expiry_at"] > 1_700_000_000_000_000
    assert root.post("/personal-access-tokens", {"name": "first"}).error == (400, 51)
    assert root.post("/personal-access-tokens", {"name": "x"}).error == (400, 50)
    for name in ("first", "second"):
        assert root.delete(f"/personal-access-tokens/{name}").status == 204
    assert root.delete("/personal-access-tokens/first").error == (404, 20)


def test_too_few_rights(server: HttpServer, root: HttpClient) -> None:
    root.done("POST", "/users", {"username": "guest", "password": "secret"})
    guest = server.logged_in("guest", "secret")
    for method, path, body in (
        ("GET", "/stats", None), ("GET", "/clients", None), ("GET", "/clients/1", None), ("POST", "/snapshot", {}),
        ("GET", "/users", None), ("GET", "/users/iggy", None), ("DELETE", "/users/iggy", None),
        ("POST", "/users", {"username": "third", "password": "secret"}), ("PUT", "/users/iggy", {"username": "x123"}),
        ("PUT", "/users/iggy/permissions", {"permissions": None}),
        ("PUT", "/users/iggy/password", {"current_password": "iggy", "new_password": "mine"}),
    ):  # fmt: skip
        assert guest.ask(method, path, body).error == (403, 41), (method, path)
    assert guest.done("GET", "/users/guest")["username"] == "guest"
    root.done("DELETE", "/users/guest")
